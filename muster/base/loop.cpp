#include "muster/base/loop.h"

#include <algorithm>

#include "muster/base/assert.h"

namespace muster {
namespace {
constexpr int kReadyBurstMax = 10'000;
}

void Ready::withdraw() {
  if (next_ == nullptr) return;
  previous_->next_ = next_;
  next_->previous_ = previous_;
  next_ = nullptr;
  previous_ = nullptr;
}

Timer::~Timer() {
  cancel();
  if (loop_.expiring_ == this) loop_.expiring_ = nullptr;
}

void Timer::set(TimePoint when) {
  cancel();
  if (when == kNever) return;
  // Not earlier than now: a timer that always sets itself into the past would stay ahead of all others.
  when_ = std::max(when, loop_.now());
  loop_.insert(*this);
}

void Timer::cancel() {
  if (pending()) loop_.remove(*this);
}

Loop::Loop() {
  ready_.next_ = &ready_;
  ready_.previous_ = &ready_;
}

Loop::~Loop() {
  // Awaiters and timers refer to their loop, so they must be gone before it.
  MUSTER_ASSERT(!has_ready());
  MUSTER_ASSERT(timers_.empty());
  ready_.next_ = nullptr;
}

void Loop::soon(Ready& place, std::coroutine_handle<> coroutine) {
  soon(place, [](void* address) { std::coroutine_handle<>::from_address(address).resume(); }, coroutine.address());
}

void Loop::soon(Ready& place, void (*run)(void* context), void* context) {
  MUSTER_ASSERT(!place.queued());
  place.run_ = run;
  place.context_ = context;
  place.previous_ = ready_.previous_;
  place.next_ = &ready_;
  place.previous_->next_ = &place;
  ready_.previous_ = &place;
}

bool Loop::run_ready() {
  for (int count = 0; count < kReadyBurstMax && has_ready(); ++count) {
    Ready& first = *ready_.next_;
    const auto run = first.run_;
    void* const context = first.context_;
    first.withdraw();
    run(context);  // `first` may be gone after this
  }
  return has_ready();
}

void Loop::run_timers(TimePoint now) {
  // A timer set for a past time by an expiring timer waits for the next turn, or two of them could spin for ever.
  const std::uint64_t newest = timer_order_;
  while (!timers_.empty() && timers_.front()->when_ <= now && timers_.front()->order_ <= newest) {
    Timer& timer = *timers_.front();
    remove(timer);
    // The function is moved out while it runs, for it may destroy the timer, and itself with it.
    std::function<void()> expired = std::exchange(timer.expired_, nullptr);
    expiring_ = &timer;
    expired();
    if (expiring_ == &timer) timer.expired_ = std::move(expired);
    expiring_ = nullptr;
  }
}

std::optional<TimePoint> Loop::next_timer() const {
  if (timers_.empty()) return std::nullopt;
  return timers_.front()->when_;
}

bool Loop::earlier(const Timer* left, const Timer* right) const {
  if (left->when_ != right->when_) return left->when_ < right->when_;
  return left->order_ < right->order_;
}

void Loop::sift_up(std::size_t index) {
  Timer* const moving = timers_[index];
  while (index > 0) {
    const std::size_t parent = (index - 1) / 2;
    if (!earlier(moving, timers_[parent])) break;
    timers_[index] = timers_[parent];
    timers_[index]->index_ = index;
    index = parent;
  }
  timers_[index] = moving;
  moving->index_ = index;
}

void Loop::sift_down(std::size_t index) {
  Timer* const moving = timers_[index];
  for (;;) {
    std::size_t child = 2 * index + 1;
    if (child >= timers_.size()) break;
    if (child + 1 < timers_.size() && earlier(timers_[child + 1], timers_[child])) ++child;
    if (!earlier(timers_[child], moving)) break;
    timers_[index] = timers_[child];
    timers_[index]->index_ = index;
    index = child;
  }
  timers_[index] = moving;
  moving->index_ = index;
}

void Loop::insert(Timer& timer) {
  timer.order_ = ++timer_order_;
  timers_.push_back(&timer);
  sift_up(timers_.size() - 1);
}

void Loop::remove(Timer& timer) {
  const std::size_t index = timer.index_;
  timer.index_ = Timer::kNotQueued;
  Timer* const last = timers_.back();
  timers_.pop_back();
  if (last == &timer) return;
  timers_[index] = last;
  last->index_ = index;
  sift_up(index);
  sift_down(last->index_);
}

}  // namespace muster
