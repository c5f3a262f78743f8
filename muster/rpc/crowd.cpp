#include "muster/rpc/crowd.h"

#include <sched.h>
#include <utility>

namespace muster::rpc {

bool Crowd::give_way() {
  const TimePoint before = clock_->now();
  if (!is_there(before)) return false;
  ::sched_yield();
  const TimePoint now = clock_->now();
  forget_losses(now);
  came_back(now, now - before);
  return true;
}

void Crowd::came_back(TimePoint now, Duration after) {
  if (after < kLate) return;
  const std::lock_guard lock(mutex_);
  const TimePoint began = now - after;
  // Others that waited for the end of the same slice tell of it again.
  if (now < rest_.until() || began < late_) return;
  const TimePoint late_before = std::exchange(late_, now);
  if (began - late_before > kSoon) return;
  rest_.begin(now, after);
  rests_until_.store(rest_.until(), std::memory_order_relaxed);
}

}  // namespace muster::rpc
