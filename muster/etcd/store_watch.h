// The Watch of a store in etcd. Changes are pulled: a watcher that falls behind holds up only its
// own connection.
#pragma once

#include "muster/etcd/client.h"
#include "muster/store/store.h"

#include <deque>
#include <memory>
#include <set>
#include <string>

namespace muster::etcd {

class StoreWatch final : public store::Watch {
 public:
  // `start` is the beginning of all keys of the store; `key` is without it.
  StoreWatch(Client& client, std::string start, std::string key, store::Store::WatchScope scope);

  // Reads the present state.
  Task<Result<>> begin();
  Task<Result<store::Change>> next(TimePoint deadline) override;

 private:
  // Waits for changes and keeps them; returns none of them, so that destroying it loses none.
  Task<Result<>> fill();
  void keep(const Event& event);

  Client& client_;
  const std::string start_;
  const std::string key_;
  const bool is_prefix_;
  std::set<std::string, std::less<>> known_;  // keys that are there, as far as we have reported
  std::deque<store::Change> changes_;
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace muster::etcd
