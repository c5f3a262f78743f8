// Crowd: many threads make calls at the same time and wait for their answers, here or at the other
// end; probably more than there are processors.
//
// Whoever waits then lets the others run (`give_way`) a few times before it sleeps. Among them is
// the thread that brings about what it waits for: the processor is handed from one to the next,
// which takes far less than to wake a thread on another one. It pays only where all of them do so,
// those that call and the loop that reads for them.
//
// Where other programs need the processor, they take it for a whole slice, and a thread that slept
// would have been woken sooner. So nobody gives way for a while after threads have come back late
// again and again.
//
// One for each agent; any thread.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/spin.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

namespace muster::rpc {

class Crowd {
 public:
  // For so long after it was last noticed it is there.
  static constexpr Duration kStays = std::chrono::milliseconds(1);
  // Threads that make calls give the processor back sooner than this, also when dozens share it.
  static constexpr Duration kLate = std::chrono::microseconds(500);
  // It happens now and then on every machine. So soon again it does where others run.
  static constexpr Duration kSoon = std::chrono::milliseconds(20);

  explicit Crowd(std::shared_ptr<const Clock> clock = std::make_shared<SystemClock>())
      : clock_(std::move(clock)) {}

  // Somebody was in it just now.
  void notice(TimePoint now) { noticed_.store(now, std::memory_order_relaxed); }
  // Whether to give way.
  bool is_there(TimePoint now) const {
    return now - noticed_.load(std::memory_order_relaxed) < kStays &&
           now >= rests_until_.load(std::memory_order_relaxed);
  }
  // Lets others run. False, at once, when it is not there.
  bool give_way();

  // For `give_way`: a thread came back, after so long.
  void came_back(TimePoint now, Duration after);

 private:
  const std::shared_ptr<const Clock> clock_;
  std::atomic<TimePoint> noticed_ = TimePoint() - std::chrono::hours(1);
  std::atomic<TimePoint> rests_until_ = TimePoint() - std::chrono::hours(1);
  std::mutex mutex_;  // guards what follows
  TimePoint late_ = TimePoint() - std::chrono::hours(1);
  Rest rest_;
};

}  // namespace muster::rpc
