// Restarts: how often a job may begin again, and how long it waits before it does.
//
// Pure. The history belongs to the whole job: every node carries what it knows into the next round
// and takes what the others know out of it, so that all members of a round count the same, and a
// node that was replaced does not bring a fresh budget.
#pragma once

#include "muster/base/clock.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace muster::agent {

struct RestartPolicy {
  std::int64_t restarts_max = 0;
  // Only failures of the last `window` count; zero: all of them do.
  Duration window = Duration::zero();
  // Before the first restart; twice as long before each further one that counts, up to `delay_max`.
  Duration delay = Duration::zero();
  Duration delay_max = std::chrono::minutes(1);
};

// A round that ended because a worker failed, as it is told to other machines: ages, since clocks
// differ.
struct FailedRound {
  std::uint64_t round = 0;
  Duration age = Duration::zero();

  friend bool operator==(const FailedRound&, const FailedRound&) = default;
};

// How many failed rounds are remembered; with a window, more could not count anyway.
inline constexpr std::size_t kFailedRoundsMax = 4096;

class RestartHistory {
 public:
  // A round counts once, however many of its workers failed on however many nodes.
  void add(std::uint64_t round, TimePoint when);
  // What the members of a round know together: rounds that are not in it do not count any more.
  void agree(const std::vector<FailedRound>& all, TimePoint now);
  std::vector<FailedRound> known(TimePoint now) const;

  // The restarts that were needed so far and still count.
  std::int64_t used(const RestartPolicy& policy, TimePoint now) const;
  // Whether one more failure, now, is one too many.
  bool exhausted(const RestartPolicy& policy, TimePoint now) const {
    return used(policy, now) >= policy.restarts_max;
  }
  // How long to wait before the restart that the last failure calls for.
  Duration delay(const RestartPolicy& policy, TimePoint now) const;

 private:
  std::map<std::uint64_t, TimePoint> failed_;
};

}  // namespace muster::agent
