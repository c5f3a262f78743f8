// PeriodicTimer runs a task again and again, and `delay` waits for a random while.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/base/task.h"

#include <functional>
#include <string>
#include <vector>

namespace muster::rendezvous {

// Waits for one interval, runs the task, and so on: the first tick comes one interval after the
// start, and between two ticks lies the interval plus the time the task takes. A task that fails is
// logged, and the ticking goes on.
//
// Owned by whoever the task belongs to; lives on `loop`, which outlives it. Destroying it cancels
// it together with a tick that is running. A tick must not destroy it.
class PeriodicTimer {
 public:
  PeriodicTimer(Loop& loop, Duration interval, std::function<Task<Result<>>()> task);
  PeriodicTimer(const PeriodicTimer&) = delete;
  PeriodicTimer& operator=(const PeriodicTimer&) = delete;

  // Invalid when it has been started before, even if it was cancelled meanwhile.
  Result<> start();

  // No tick begins any more; one that is running goes on to its end. Does nothing before the start
  // and the second time. A tick may call it.
  void cancel();
  // Likewise, and waits for the end of a tick that is running. Requires: the timer outlives the
  // task; not called by a tick.
  Task<void> stop();

  // Whether a tick may still begin or is running.
  bool running() const { return !scope_.empty(); }

  // For messages. Invalid once it has been started.
  Result<> set_name(std::string name);
  const std::string& name() const { return name_; }

 private:
  Task<void> run();

  Loop& loop_;
  const Duration interval_;
  const std::function<Task<Result<>>()> task_;
  std::string name_ = "PeriodicTimer";
  bool started_ = false;
  bool cancelled_ = false;
  bool in_tick_ = false;
  std::vector<Oneshot<bool>*> stopping_;  // those who wait in `stop`
  TaskScope scope_;
};

// Delays below this are none.
inline constexpr Duration kDelayMin = std::chrono::milliseconds(10);

Task<void> delay(Loop& loop, Duration length);
// A length drawn evenly from `low` to `high`, both included. Requires: low <= high.
Task<void> delay(Loop& loop, Random& random, Duration low, Duration high);

}  // namespace muster::rendezvous
