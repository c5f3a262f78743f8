#include "muster/base/loop.h"

#include "muster/base/assert.h"

#include <algorithm>

namespace muster {
namespace {
constexpr int kReadyBurstMax = 10'000;
// Fewer cancelled timers than this are not worth cleaning up.
constexpr std::size_t kCancelledMin = 64;
}  // namespace

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
  // Not earlier than now: a timer that always sets itself into the past would stay ahead of all
  // others.
  loop_.insert(*this, std::max(when, loop_.now()));
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
  MUSTER_ASSERT(heap_.size() == cancelled_count_);
  ready_.next_ = nullptr;
}

void Loop::soon(Ready& place, std::coroutine_handle<> coroutine) {
  soon(
      place, [](void* address) { std::coroutine_handle<>::from_address(address).resume(); },
      coroutine.address());
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
  // A timer set for a past time by an expiring timer waits for the next turn, or two of them could
  // spin for ever.
  const std::uint64_t newest = timer_order_;
  while (!heap_.empty() && heap_.front().when <= now && heap_.front().order <= newest) {
    Timer* const due = slots_[heap_.front().slot];
    if (due == nullptr) {
      trim();
      continue;
    }
    Timer& timer = *due;
    timer.slot_ = Timer::kNoSlot;
    pop_entry();
    // The function is moved out while it runs, for it may destroy the timer, and itself with it.
    std::function<void()> expired = std::exchange(timer.expired_, nullptr);
    expiring_ = &timer;
    expired();
    if (expiring_ == &timer) timer.expired_ = std::move(expired);
    expiring_ = nullptr;
  }
}

std::optional<TimePoint> Loop::next_timer() {
  trim();
  return next_wake();
}

std::optional<TimePoint> Loop::next_wake() const {
  if (heap_.empty()) return std::nullopt;
  return heap_.front().when;
}

bool Loop::later(const Entry& left, const Entry& right) {
  if (left.when != right.when) return left.when > right.when;
  return left.order > right.order;
}

void Loop::insert(Timer& timer, TimePoint when) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.push_back(nullptr);
  }
  timer.slot_ = free_slots_.back();
  free_slots_.pop_back();
  slots_[timer.slot_] = &timer;
  heap_.push_back({when, ++timer_order_, timer.slot_});
  std::push_heap(heap_.begin(), heap_.end(), later);
}

void Loop::remove(Timer& timer) {
  slots_[timer.slot_] = nullptr;
  timer.slot_ = Timer::kNoSlot;
  ++cancelled_count_;
  if (cancelled_count_ < kCancelledMin || cancelled_count_ < heap_.size() / 2) return;
  std::erase_if(heap_, [this](const Entry& entry) {
    const bool cancelled = slots_[entry.slot] == nullptr;
    if (cancelled) free_slots_.push_back(entry.slot);
    return cancelled;
  });
  std::make_heap(heap_.begin(), heap_.end(), later);
  cancelled_count_ = 0;
}

void Loop::trim() {
  while (!heap_.empty() && slots_[heap_.front().slot] == nullptr) {
    pop_entry();
    --cancelled_count_;
  }
}

void Loop::pop_entry() {
  free_slots_.push_back(heap_.front().slot);
  std::pop_heap(heap_.begin(), heap_.end(), later);
  heap_.pop_back();
}

}  // namespace muster
