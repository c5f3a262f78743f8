#include "muster/rpc/throttle.h"

#include "muster/rpc/future.h"
#include "muster/rpc/pool.h"

namespace muster::rpc {

bool Throttle::wait(TimePoint deadline, const std::function<bool()>& may_go) {
  const Pool::Waiting waiting;
  // Before it looks: whoever changes something after that sees it.
  ++waiting_count_;
  bool may = false;
  bool is_in_time = true;
  while (is_in_time) {
    const std::uint64_t seen = change_count_;
    // Without the lock: what it looks at may have a lock of its own.
    may = may_go();
    if (may) break;
    std::unique_lock lock(mutex_);
    is_in_time =
        internal::wait_until(changed_, lock, deadline, [&] { return change_count_ != seen; });
  }
  --waiting_count_;
  return may;
}

void Throttle::changed() {
  ++change_count_;
  if (waiting_count_ == 0) return;
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace muster::rpc
