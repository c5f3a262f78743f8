// ExtensionClient: what the parts of an ExtensionStore share: the connection to the server, which
// is opened again when it is lost, and those who need one.
//
// Owned by the store; lives on its loop. Calls, watches and abandoned pops refer to it and end
// before it.
#pragma once

#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/store/extension_link.h"
#include "muster/store/handshake.h"

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace muster::store {

class ExtensionClient;

// Whoever needs a connection and there is none. Told once, by then it has left the line. Leaves the
// line when it is destroyed.
class ConnectionWaiter {
 public:
  ConnectionWaiter() = default;
  ConnectionWaiter(const ConnectionWaiter&) = delete;
  ConnectionWaiter& operator=(const ConnectionWaiter&) = delete;
  virtual ~ConnectionWaiter() { leave_line(); }

  virtual void on_connected() = 0;
  // Reconnecting has ended without success.
  virtual void on_given_up(const Error& error) = 0;

  void leave_line() {
    if (line_ != nullptr) std::exchange(line_, nullptr)->erase(place_);
  }

 private:
  friend class ExtensionClient;
  std::list<ConnectionWaiter*>* line_ = nullptr;  // none if it does not wait
  std::list<ConnectionWaiter*>::iterator place_;
};

// Whoever wants to be told of every new connection, and of giving up. Outlives its place in the
// client's list (`enlist`, `dismiss`).
class ConnectionFollower {
 public:
  virtual ~ConnectionFollower() = default;
  virtual void on_new_connection() = 0;
  virtual void on_no_connection(const Error& error) = 0;
};

class ExtensionClient {
 public:
  ExtensionClient(ClientContext context, std::unique_ptr<Channel> channel);
  ~ExtensionClient();
  ExtensionClient(const ExtensionClient&) = delete;
  ExtensionClient& operator=(const ExtensionClient&) = delete;

  Loop& loop() const { return context_.loop; }
  TimePoint now() const { return context_.loop.now(); }
  const TcpStoreOptions& options() const { return context_.options; }

  // The present connection; nullptr if there is none that works.
  ExtensionLink* link() const {
    return link_ != nullptr && !link_->broken() ? link_.get() : nullptr;
  }
  // For those who may outlive it. Shared with them weakly; the client owns it.
  std::weak_ptr<ExtensionLink> weak_link() const { return link_; }

  // Puts `waiter` in line for the next connection. After reconnecting was given up, this begins
  // another round, which may be over, and the waiter told, before this returns.
  void await_connection(ConnectionWaiter& waiter);
  // Likewise for coroutines, at most until `deadline`.
  Task<Result<>> connected(TimePoint deadline);
  // "the connection to the store at … is lost and not restored yet".
  Error no_connection() const;

  void enlist(ConnectionFollower& follower) { followers_.push_back(&follower); }
  void dismiss(ConnectionFollower& follower) { followers_.remove(&follower); }

  // The caller of a pop is gone. The server may have given it an item before it learned that; such
  // an item goes back to the end of its queue, for nothing may be lost with a caller who no longer
  // wants it. `queue` is the name on the wire.
  void abandon_pop(ExtensionLink& link, std::uint32_t id, std::string queue);
  // An item that nobody wants any more.
  void push_back(std::string_view queue, std::string_view item);

 private:
  class AbandonedPop;

  void attach(std::unique_ptr<Channel> channel);
  void lost();
  void start_reconnecting() { scope_.start(reconnect()); }
  Task<void> reconnect();

  ClientContext context_;
  std::shared_ptr<ExtensionLink> link_;
  std::list<ConnectionWaiter*> line_;
  std::list<ConnectionFollower*> followers_;
  std::list<std::unique_ptr<AbandonedPop>> abandoned_;
  std::optional<Error> given_up_;  // why the last reconnecting ended without success
  TaskScope scope_;
};

}  // namespace muster::store
