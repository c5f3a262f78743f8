// PollingWatch: a watch on a store that cannot push changes, so it is asked again and again.
//
// Owned by the watcher; lives on the loop of its store, which outlives it.
#pragma once

#include "muster/base/loop.h"
#include "muster/store/store.h"

#include <deque>
#include <map>
#include <string>
#include <utility>

namespace muster::store {

class PollingWatch final : public Watch {
 public:
  // Requires: `loop` and `store` outlive the watch.
  PollingWatch(Loop& loop, Store& store, std::string key, Store::WatchScope scope)
      : loop_(loop), store_(store), key_(std::move(key)), scope_(scope) {}
  Task<Result<Change>> next(TimePoint deadline) override;

 private:
  // Reads the present state and appends the differences to what it was before.
  Task<Result<>> poll();

  Loop& loop_;
  Store& store_;
  const std::string key_;
  const Store::WatchScope scope_;
  bool begun_ = false;
  std::map<std::string, std::string> known_;
  std::deque<Change> changes_;
};

}  // namespace muster::store
