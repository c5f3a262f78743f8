// Dwell: how long workers have been in uninterruptible sleep, as on a file system that hangs.
//
// Pure: no I/O, no clock. Owned by an Agent for one crew.
#pragma once

#include "muster/base/clock.h"

#include <map>
#include <optional>

namespace muster::agent {

class Dwell {
 public:
  explicit Dwell(Duration limit) : limit_(limit) {}

  // What was seen of a worker: the letter that the kernel gives its state. Nothing if it could not
  // be seen, which says nothing. True if it has slept so for too long.
  bool saw(int local_rank, std::optional<char> state, TimePoint now);

 private:
  Duration limit_;
  std::map<int, TimePoint> since_;
};

}  // namespace muster::agent
