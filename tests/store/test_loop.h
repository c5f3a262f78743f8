// TestLoop: a loop on virtual time for tests of one store in one process. When nothing can go on,
// time jumps to the next timer, so a wait of an hour takes no time and always ends the same way.
//
// Owned by the test, outlives everything on it. `post` may come from any thread; the rest belongs
// to the test's thread.
#pragma once

#include "muster/base/loop.h"

#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace muster::store::testing {

class TestLoop final : public Loop {
 public:
  TimePoint now() const override { return now_; }

  void post(std::function<void()> work) override {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }

  // Runs what can run without time passing; false if that does not end within kTurnsMax turns.
  bool run_until_idle() {
    for (int turn = 0; turn < kTurnsMax; ++turn) {
      const bool ran_posted = run_posted();
      const bool had_ready = has_ready();
      run_ready();
      const bool timer_due = next_timer() && *next_timer() <= now_;
      if (timer_due) run_timers(now_);
      if (!ran_posted && !had_ready && !timer_due) return true;
    }
    return false;
  }

  // Runs, letting time pass where needed; false if nothing is left that could make `done` true.
  bool run_until(const std::function<bool()>& done) {
    for (int jump = 0; jump < kJumpsMax; ++jump) {
      if (!run_until_idle()) return false;
      if (done()) return true;
      if (!next_timer()) return false;
      now_ = *next_timer();
    }
    return false;
  }

  // Lets `length` pass; timers that are due on the way expire at their own time.
  void advance(Duration length) {
    const TimePoint end = now_ + length;
    while (run_until_idle() && next_timer() && *next_timer() <= end) now_ = *next_timer();
    now_ = end;
    run_until_idle();
  }

 private:
  static constexpr int kTurnsMax = 100'000;
  static constexpr int kJumpsMax = 100'000;

  bool run_posted() {
    std::deque<std::function<void()>> work;
    {
      const std::lock_guard lock(mutex_);
      work.swap(posted_);
    }
    for (const std::function<void()>& one : work) one();
    return !work.empty();
  }

  TimePoint now_ = TimePoint(std::chrono::hours(1));  // so that there is a past
  std::mutex mutex_;
  std::deque<std::function<void()>> posted_;
};

}  // namespace muster::store::testing
