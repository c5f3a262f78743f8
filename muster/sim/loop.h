// sim::Loop runs on virtual time: everything that can run now runs, then time jumps to the next
// deadline.
//
// An hour of heartbeats takes milliseconds, and always the same way: posted work, timers and
// coroutines run in a fixed order, and nothing depends on the machine. Time starts at zero and
// stands still during a turn.
//
// A LocalLoop is the loop of one simulated host. It takes part in the turns of its sim::Loop, but
// has a clock of its own, which may run fast or slow, and can be stopped and continued like a
// process.
//
// What can never end fails loudly: a run that takes more than `turns_max` turns prints why and
// aborts.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/loop.h"
#include "muster/base/task.h"

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::sim {

class LocalLoop;

namespace internal {

// Work that was posted, in the order it came. The lock is for threads of a test that post from
// outside.
class PostQueue {
 public:
  void push(std::function<void()> work);
  // Runs what is there now; what that work posts waits for the next turn.
  void run();
  bool empty() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::function<void()>> work_;  // guarded by mutex_
};

template <typename T>
Task<void> keep_result(Task<T> task, std::optional<T>& result) {
  result.emplace(co_await task);
}
inline Task<void> keep_result(Task<void> task, bool& done) {
  co_await task;
  done = true;
}

}  // namespace internal

// Owned by the test. One thread runs it.
class Loop final : public muster::Loop {
 public:
  static constexpr std::uint64_t kTurnsMax = 10'000'000;

  Loop() = default;

  TimePoint now() const override { return now_; }
  void post(std::function<void()> work) override { posted_.push(std::move(work)); }

  // How many turns one run may take before it counts as endless.
  void set_turns_max(std::uint64_t turns_max) { turns_max_ = turns_max; }

  // Runs what can run now, including timers that are due. Time does not move.
  void run_until_idle();

  // Lets time pass: every deadline on the way is met at its own time.
  void advance(Duration length) { run_until(now_ + length); }
  void run_until(TimePoint when);

  // Runs until `reached` says so (asked after every turn), jumping from deadline to deadline but
  // not past `limit`. False when the limit came first, or when nothing is left that could ever
  // happen.
  bool run_until(const std::function<bool()>& reached, TimePoint limit = kNever);

  // Drives time until `task` has finished. Aborts if the task waits for something that will never
  // come.
  template <typename T>
  T block_on(Task<T> task) {
    std::optional<T> result;
    TaskScope scope;
    scope.start(internal::keep_result(std::move(task), result));
    if (!run_until([&] { return result.has_value(); })) fail_blocked();
    return std::move(*result);
  }
  void block_on(Task<void> task) {
    bool done = false;
    TaskScope scope;
    scope.start(internal::keep_result(std::move(task), done));
    if (!run_until([&] { return done; })) fail_blocked();
  }

  // The next instant at which something happens; nothing if all is quiet. Stopped local loops do
  // not count.
  std::optional<TimePoint> next_event();

 private:
  friend class LocalLoop;

  bool busy();
  void turn();
  [[noreturn]] void fail_endless() const;
  [[noreturn]] void fail_blocked() const;

  TimePoint now_;
  std::uint64_t turns_max_ = kTurnsMax;
  bool running_ = false;
  internal::PostQueue posted_;
  std::vector<LocalLoop*> locals_;  // in the order they were made, which is the order they run in
};

// The loop of one simulated host. Owned by the host (or a test); Requires: `world` outlives it.
class LocalLoop final : public muster::Loop {
 public:
  explicit LocalLoop(sim::Loop& world);
  ~LocalLoop() override;

  // The host's own clock.
  TimePoint now() const override { return to_local(world_.now()); }
  // Hosts whose clocks drift apart still have the same wall clock, as if it were set all the time.
  Duration wall_time() const override { return world_.wall_time(); }
  void post(std::function<void()> work) override { posted_.push(std::move(work)); }

  // Stopped, nothing on this loop runs: no timer, no coroutine, no posted work, no event of a
  // stream. Continued, it finds that time has passed meanwhile, as a process does after SIGCONT.
  void stop() { stopped_ = true; }
  void resume() { stopped_ = false; }
  bool stopped() const { return stopped_; }

  // From now on the clock runs `parts_per_million` too fast, or too slow if negative. Does not
  // jump. Requires: more than -1'000'000.
  void set_drift(std::int64_t parts_per_million);

 private:
  friend class sim::Loop;

  TimePoint to_local(TimePoint world_time) const;
  // The first instant of world time at which the local clock shows `local_time`.
  TimePoint to_world(TimePoint local_time) const;
  bool busy();
  void turn();
  std::optional<TimePoint> next_event();

  sim::Loop& world_;
  internal::PostQueue posted_;
  bool stopped_ = false;
  std::int64_t drift_ = 0;  // parts per million
  TimePoint drift_since_world_;
  TimePoint drift_since_local_;
};

}  // namespace muster::sim
