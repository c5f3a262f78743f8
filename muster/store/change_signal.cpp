#include "muster/store/change_signal.h"

#include "muster/base/assert.h"

namespace muster::store {

Duration jittered(Duration delay, Random& random) {
  MUSTER_ASSERT(delay >= Duration::zero());
  const auto quarter = static_cast<std::uint64_t>(delay.count()) / 4;
  return delay - Duration(static_cast<Duration::rep>(random.below(quarter + 1)));
}

TimedChangeSignal::Waiting::Waiting(TimedChangeSignal& owner) : signal(owner), due(owner.loop_) {
  MUSTER_ASSERT(signal.waiting_ == nullptr);
  signal.waiting_ = this;
}

TimedChangeSignal::Waiting::~Waiting() {
  signal.timer_.cancel();
  signal.waiting_ = nullptr;
}

Task<void> TimedChangeSignal::wait() {
  Waiting waiting(*this);
  timer_.set(after(loop_.now(), jittered(delay_, random_)));
  delay_ = longer(delay_, options_.max);
  co_await waiting.due;
}

void TimedChangeSignal::hurry() {
  // The wait in progress is a short one already; beginning it anew at every call would never end.
  if (delay_ <= longer(options_.first, options_.max)) return;
  delay_ = options_.first;
  if (waiting_ != nullptr) timer_.set(after(loop_.now(), jittered(delay_, random_)));
}

}  // namespace muster::store
