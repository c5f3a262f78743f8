#include "muster/base/spin.h"

#include <algorithm>
#include <sys/resource.h>
#include <utility>

namespace muster {
namespace {

constexpr Duration kFirst = std::chrono::microseconds(20);
constexpr int kMissesMax = 4;
constexpr int kSkips = 64;
constexpr Duration kAskEvery = std::chrono::milliseconds(1);
constexpr int kRestsPerLoss = 32;
constexpr Duration kRestMin = std::chrono::milliseconds(2);
constexpr Duration kRestMax = std::chrono::seconds(1);

}  // namespace

void SpinBudget::came(Duration total, bool while_looking) {
  if (while_looking) {
    misses_ = 0;
    return;
  }
  if (total > kNear) {
    budget_ = Duration::zero();
    misses_ = 0;
    return;
  }
  if (skips_ > 0) {
    --skips_;
    return;
  }
  if (budget_ >= kLongest && ++misses_ >= kMissesMax) {
    // It always takes a little longer than we look.
    budget_ = Duration::zero();
    misses_ = 0;
    skips_ = kSkips;
    return;
  }
  budget_ = std::clamp(budget_ * 2, kFirst, kLongest);
}

bool SpinBudget::wants_to_know(TimePoint now) {
  if (at(now) == Duration::zero() || now - asked_ < kAskEvery) return false;
  asked_ = now;
  return true;
}

void SpinBudget::preempted(TimePoint now, Duration lost) {
  // It went well for longer than it had rested before.
  if (now - rests_until_ > rest_) rest_ = Duration::zero();
  rest_ = std::clamp(std::max(rest_ * 2, lost * kRestsPerLoss), kRestMin, kRestMax);
  rests_until_ = now + rest_;
}

bool was_preempted() {
  thread_local long last = -1;  // it has not asked yet
  rusage usage{};
  if (::getrusage(RUSAGE_THREAD, &usage) != 0) return true;
  const long before = std::exchange(last, usage.ru_nivcsw);
  return before >= 0 && before != usage.ru_nivcsw;
}

}  // namespace muster
