// ExtensionWatch: a watch on a Muster server. It survives lost connections: it subscribes again and
// begins anew with the present state.
//
// Owned by the watcher; lives on the loop of its store, which outlives it.
#pragma once

#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/store/extension_client.h"
#include "muster/store/extension_link.h"
#include "muster/store/store.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

namespace muster::store {

class ExtensionWatch final : public Watch, public ReplySink, private ConnectionFollower {
 public:
  // Subscribes over the present connection. Requires: there is one.
  ExtensionWatch(ExtensionClient& client, const std::string& key, Store::WatchScope scope);
  ~ExtensionWatch() override;

  // Told when the server has confirmed or refused it, or `end` was called.
  Oneshot<Result<>>& started() { return started_; }
  // Ends it, once.
  void end(Error error);

  Task<Result<Change>> next(TimePoint deadline) override;

 private:
  void subscribe();
  void wake();

  void on_reply(const wire::Reply& reply) override;
  void on_lost(const std::string& reason, bool sent) override;
  void on_new_connection() override { subscribe(); }
  void on_no_connection(const Error& error) override { end(error); }

  ExtensionClient& client_;
  const std::string wire_key_;
  const Store::WatchScope scope_;
  // Owned by the client, which drops it when it breaks; a watch lives on.
  std::weak_ptr<ExtensionLink> link_;
  std::uint32_t id_ = 0;
  std::deque<Change> changes_;
  std::size_t event_count_ = 0;  // of `changes_`, those that are no state
  std::optional<Error> ended_;
  Oneshot<Result<>> started_;
  Oneshot<bool>* waiter_ = nullptr;
};

}  // namespace muster::store
