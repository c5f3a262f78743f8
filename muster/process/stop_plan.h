// StopPlan decides how a stop goes on: ask, wait, kill, give up.
//
// Pure: told the time and what is left, it answers which phase the stop is in. Owned by the shell
// that carries it out (Host).
//
//   from       when                                        to
//   Asking     no worker and no member of a group is left  Lingering
//   Asking     the grace has passed, or escalate()         Killing
//   Lingering  nothing at all is left                      Done
//   Lingering  the linger time has passed, or escalate()   Killing
//   Killing    nothing at all is left                      Done
//   Killing    kill_wait has passed                        Done, and what is left is stuck
#pragma once

#include "muster/base/clock.h"

#include <chrono>
#include <csignal>
#include <cstddef>

namespace muster::process {

struct StopOptions {
  int signal = SIGTERM;
  // Shared by all: from the signal until SIGKILL. Negative: no end.
  Duration grace = std::chrono::seconds(30);
  // How long daemons of a worker (in a session of their own) may outlive it to tidy up, before they
  // get SIGKILL. Part of no grace: it begins when the workers have ended.
  Duration linger = std::chrono::milliseconds(200);
  // From SIGKILL until what is left counts as stuck. Negative: no end.
  Duration kill_wait = std::chrono::seconds(5);
};

struct SweepOptions {
  Duration linger = Duration::zero();
  Duration kill_wait = std::chrono::seconds(5);
};

// What is left of the workers to be stopped.
struct Left {
  std::size_t group_count = 0;  // workers and members of their process groups
  std::size_t other_count = 0;  // descendants that have left the group

  bool nothing() const { return group_count == 0 && other_count == 0; }
};

class StopPlan {
 public:
  enum class Phase { Asking, Lingering, Killing, Done };

  // A stop of workers begins with asking; a sweep after workers that have ended does not.
  StopPlan(const StopOptions& options, TimePoint now);
  StopPlan(const SweepOptions& options, TimePoint now);

  // To be called after every look at what is left. While it answers Killing, the caller kills what
  // it saw, each time: something may have been forked since.
  Phase update(TimePoint now, const Left& left);

  // No more patience: Killing from now on, unless it is already.
  void escalate(TimePoint now);

  Phase phase() const { return phase_; }
  // When `update` can next change anything by itself.
  TimePoint next_deadline() const { return deadline_; }

 private:
  void enter(Phase phase, TimePoint now);

  Duration linger_;
  Duration kill_wait_;
  Phase phase_;
  TimePoint deadline_ = kNever;
};

}  // namespace muster::process
