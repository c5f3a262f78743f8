// Loop runs everything that waits: coroutines that can go on, timers that are due, work posted by
// other threads.
//
// One thread runs a loop, and everything that belongs to the loop is touched only there; `post` is
// the one door for other threads. `net::EpollLoop` adds file descriptors and runs on real time,
// `sim::Loop` runs on virtual time.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/coroutine.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace muster {

class Loop;

// A place in the loop's queue of what can go on: a coroutine, or a function of its owner. Lives in
// an awaiter or in the owner; leaving the queue on destruction is what makes it safe to destroy a
// coroutine that was about to go on.
class Ready {
 public:
  Ready() = default;
  ~Ready() { withdraw(); }
  Ready(const Ready&) = delete;
  Ready& operator=(const Ready&) = delete;

  void withdraw();
  bool queued() const { return next_ != nullptr; }

 private:
  friend class Loop;
  Ready* next_ = nullptr;
  Ready* previous_ = nullptr;
  void (*run_)(void* context) = nullptr;
  void* context_ = nullptr;
};

// Calls its function once when its time has come. Owned by whoever waits; destroying it cancels it.
// The function may set the timer again and may destroy it.
class Timer {
 public:
  // Requires: `loop` outlives the timer.
  Timer(Loop& loop, std::function<void()> expired) : loop_(loop), expired_(std::move(expired)) {}
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Sets or moves the time; kNever is the same as `cancel`. A time that has passed expires in the
  // next turn.
  void set(TimePoint when);
  void cancel();
  bool pending() const { return slot_ != kNoSlot; }

 private:
  friend class Loop;
  static constexpr std::uint32_t kNoSlot = static_cast<std::uint32_t>(-1);
  Loop& loop_;
  std::function<void()> expired_;
  std::uint32_t slot_ = kNoSlot;
};

class Loop : public Clock {
 public:
  Loop();
  ~Loop() override;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // What the wall clock shows at `now`. Only for what may be wrong at no cost but efficiency; on
  // virtual time it is that time.
  virtual Duration wall_time() const { return now().time_since_epoch(); }

  // Runs `work` on the loop, never inside this call. Safe from any thread.
  virtual void post(std::function<void()> work) = 0;

  // Lets `coroutine` go on in this turn, after the caller has returned to the loop. Loop thread
  // only.
  void soon(Ready& place, std::coroutine_handle<> coroutine);
  // Likewise calls `run(context)`: behind everything that can go on already, so that work of one
  // turn can be gathered.
  void soon(Ready& place, void (*run)(void* context), void* context);

 protected:
  // Resumes queued coroutines until none is left; bounded by `kReadyBurstMax` so that input is not
  // starved. Returns true if some are left.
  bool run_ready();
  // Calls the timers that are due at `now`.
  void run_timers(TimePoint now);
  std::optional<TimePoint> next_timer();
  // Not later than the next timer, and cheaper to know: may be the time of one that was cancelled.
  std::optional<TimePoint> next_wake() const;
  bool has_ready() const { return ready_.next_ != &ready_; }

 private:
  friend class Timer;
  // Most timers are deadlines that never pass: they are set and cancelled once an operation. So
  // cancelling only empties the timer's slot; its entry stays in the heap until it comes to the top
  // or the heap is half full of such entries.
  struct Entry {
    TimePoint when;
    std::uint64_t order = 0;  // timers of the same instant expire in the order they were set
    std::uint32_t slot = 0;
  };
  static bool later(const Entry& left, const Entry& right);
  void insert(Timer& timer, TimePoint when);
  void remove(Timer& timer);
  // Removes cancelled entries from the top.
  void trim();
  void pop_entry();

  Ready ready_;                // the ring's anchor
  std::vector<Entry> heap_;    // earliest first
  std::vector<Timer*> slots_;  // whose entry it is; nullptr when that was cancelled
  std::vector<std::uint32_t> free_slots_;
  std::size_t cancelled_count_ = 0;  // entries in the heap
  std::uint64_t timer_order_ = 0;
  Timer* expiring_ =
      nullptr;  // whose function runs now; nothing once that function has destroyed its timer
};

// `co_await sleep_until(loop, when)`.
class SleepUntil {
 public:
  SleepUntil(Loop& loop, TimePoint when)
      : loop_(loop), when_(when), timer_(loop, [this] { resume(); }) {}
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> coroutine) {
    coroutine_ = coroutine;
    timer_.set(when_);
  }
  void await_resume() const {}

 private:
  void resume() { loop_.soon(ready_, coroutine_); }
  Loop& loop_;
  TimePoint when_;
  std::coroutine_handle<> coroutine_;
  Timer timer_;
  Ready ready_;
};
inline SleepUntil sleep_until(Loop& loop, TimePoint when) { return {loop, when}; }

}  // namespace muster
