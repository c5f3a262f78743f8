// Twins: tells a signal that reaches the agent twice from a second one.
//
// Pure. What is sent to `muster run` comes to the agent through its guard. Job managers that signal
// every process they find (systemd, Slurm, killall) reach the agent directly as well, and mean it
// once: a second signal would kill the workers without the grace that they have.
#pragma once

#include "muster/base/clock.h"

#include <map>

namespace muster::agent {

class Twins {
 public:
  // Whether `signal` is one of its own, and not the other half of one that came by the other way
  // not long ago.
  bool is_new(int signal, bool through_guard, TimePoint now);

 private:
  struct Arrival {
    bool through_guard = false;
    TimePoint when;
  };
  std::map<int, Arrival> single_;  // by signal: the last one, while its twin has not come
};

}  // namespace muster::agent
