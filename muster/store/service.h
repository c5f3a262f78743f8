// Services: what a store server hosts beside its keys, and what clients of it see.
//
// A client opens a conversation with a service of the server it is connected to. From then on both
// sides send messages, any number, in order. A conversation ends when the service ends it, when the
// client destroys its side, or with the connection; there is no resuming here, services that need
// it have messages for it.
//
// The store knows nothing about what is said: rendezvous, for one, is a service, so it can run in
// the server without the server knowing it.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace muster::store {

// The numbers on the wire. Numbers are given once.
enum class ServiceId : std::uint8_t {
  Rendezvous = 1,
};

// The server's side of one conversation. Owned by the session; valid from `Service::opened` until
// the service has ended it or `Service::ended` has returned.
class Conversation {
 public:
  virtual ~Conversation() = default;
  // Queued; never calls back into the service.
  virtual void say(std::string_view message) = 0;
  // The last words. After one of these the conversation is gone.
  virtual void finish(std::string_view message) = 0;
  virtual void refuse(ErrorKind kind, std::string_view reason) = 0;

  // For the service, which finds again by it what it knows of the conversation.
  void set_note(void* note) { note_ = note; }
  void* note() const { return note_; }

 private:
  void* note_ = nullptr;
};

// Called on the server's loop, inside the request that causes it; so a service only takes notes,
// answers, and sets timers.
class Service {
 public:
  virtual ~Service() = default;
  // `message` is what the client opened it with. May end the conversation at once.
  virtual void opened(Conversation& conversation, std::string_view namespace_name,
                      std::string_view message) = 0;
  virtual void heard(Conversation& conversation, std::string_view message) = 0;

  enum class End {
    Left,  // the client ended it
    Lost,  // the connection broke
  };
  // Not called for conversations that the service itself has ended.
  virtual void ended(Conversation& conversation, End how) = 0;
};

// The client's side. Destroying it ends the conversation. Must not outlive its store.
class Talk {
 public:
  virtual ~Talk() = default;
  // Queued, and lost if the connection breaks first. Nothing happens once the talk is over.
  virtual void say(std::string message) = 0;
  // For whoever says something now and then and needs no answer: the connection breaks when the
  // other machine has not confirmed for that long what was sent (net::Stream::set_patience).
  virtual void set_patience(Duration patience) = 0;
  // The next message of the service. Timeout leaves the talk usable; any other error ends it:
  // Finished when the service has said its last words (which were delivered as a message before),
  // Unavailable when the connection broke, Unimplemented when the server has no such service, or
  // whatever the service refused it with.
  virtual Task<Result<std::string>> next(TimePoint deadline) = 0;
};

class ServiceClient {
 public:
  virtual ~ServiceClient() = default;
  // Opens a conversation. Connects first if need be, as every other request does. Fails with
  // Unavailable if the server cannot be reached.
  virtual Task<Result<std::unique_ptr<Talk>>> open(ServiceId service, std::string message) = 0;
};

}  // namespace muster::store
