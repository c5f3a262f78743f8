// Throttle: where threads wait while too much waits for one worker already.
//
// Shared by those who call that worker and by its connection, which says when there is room. Any
// thread.
#pragma once

#include "muster/base/clock.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace muster::rpc {

class Throttle {
 public:
  // Returns when `may_go` holds; false once `deadline` (of the monotonic clock) has passed. Other
  // work of a pool gets the place of one of its threads meanwhile.
  bool wait(TimePoint deadline, const std::function<bool()>& may_go);
  // What `may_go` looks at has changed. Costs next to nothing when nobody waits.
  void changed();

 private:
  std::atomic<int> waiting_count_ = 0;
  std::atomic<std::uint64_t> change_count_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace muster::rpc
