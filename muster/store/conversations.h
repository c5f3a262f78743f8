// Conversations: those that one session has with the services of its server.
//
// A service may speak, and end conversations, at any time: while this session or another receives,
// while a session goes away, or from a timer. So nothing here is looked at again after a service
// was called.
//
// Pure, as the Hub is. Owned by the Session, and ends what is left when it goes.
#pragma once

#include "muster/base/error.h"
#include "muster/store/service.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

namespace muster::store {

class Session;

class Conversations {
 public:
  // What remembering one costs, roughly.
  static constexpr std::size_t kBytesEach = 128;

  // Requires: the session outlives them.
  explicit Conversations(Session& session) : session_(session) {}
  ~Conversations() { lose_all(); }
  Conversations(const Conversations&) = delete;
  Conversations& operator=(const Conversations&) = delete;

  bool contains(std::uint32_t id) const { return open_.contains(id); }
  std::size_t size() const { return open_.size(); }

  // Requires: no conversation has the id, and `service` outlives the session.
  void open(std::uint32_t id, Service& service, std::string_view namespace_name,
            std::string_view message);
  // Nothing if the conversation is over: the service may have ended it while this was on the way.
  void hear(std::uint32_t id, std::string_view message);
  // The client ends one. False if there is none with that id.
  bool leave(std::uint32_t id);
  // The connection is lost: every service is told, in the order of the ids, and what they say to
  // this session from now on goes nowhere.
  void lose_all();

 private:
  class Open final : public Conversation {
   public:
    Open(Conversations& all, std::uint32_t id, Service& service)
        : all_(all), id_(id), service_(service) {}

    void say(std::string_view message) override;
    void finish(std::string_view message) override;
    void refuse(ErrorKind kind, std::string_view reason) override;

   private:
    friend class Conversations;
    Conversations& all_;
    const std::uint32_t id_;
    Service& service_;
    bool over_ = false;  // the service is being told
  };
  using Map = std::map<std::uint32_t, Open>;

  void end(Map::iterator place, Service::End how);
  // Forgets a conversation that its service has ended.
  void drop(std::uint32_t id);

  Session& session_;
  Map open_;
  bool lost_ = false;
};

}  // namespace muster::store
