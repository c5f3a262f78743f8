#include "muster/base/spin.h"

#include <algorithm>

namespace muster {
namespace {

constexpr Duration kFirst = std::chrono::microseconds(20);
constexpr int kMissesMax = 4;
constexpr int kSkips = 64;
constexpr Duration kRestMin = std::chrono::milliseconds(2);
constexpr Duration kRestMax = std::chrono::seconds(1);

}  // namespace

void SpinBudget::came(Duration total, bool while_looking) {
  if (while_looking) {
    misses_ = 0;
    rest_ = std::max(rest_ / 2, Duration::zero());
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

void SpinBudget::preempted(TimePoint now) {
  rest_ = std::clamp(rest_ * 2, kRestMin, kRestMax);
  rests_until_ = now + rest_;
}

}  // namespace muster
