// Sightings: what one observer has seen of the others, on its own clock.
//
// No clock is ever compared with another machine's. A node is alive as long as its mark keeps
// changing before the observer's eyes (or, where the backend has leases, as long as its sign is
// there), and a last call ends when this observer has seen it last that long. Silence is counted
// from look to look, and no gap between two looks counts for much more than it should have been: an
// observer that was stopped, or whose store was slow, has not seen anybody be silent meanwhile.
//
// To observe everybody would cost N² reads. So the two lowest nodes observe all others, and all
// others observe those two: whoever dies, somebody notices within the window, and if both observers
// die at once, the next two take over one window later.
//
// Pure. Owned by one SharedDriver.
#pragma once

#include "muster/base/clock.h"
#include "muster/rendezvous/backend.h"
#include "muster/rendezvous/node.h"
#include "muster/rendezvous/settings.h"
#include "muster/rendezvous/state.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace muster::rendezvous {

class Sightings {
 public:
  // `look_interval`: how often the observer means to look.
  explicit Sightings(Node self, Duration look_interval = Duration::max())
      : self_(std::move(self)), look_interval_(look_interval) {}

  // Whom to look at now. Those not in it are taken to be alive.
  std::vector<Node> whom_to_watch(const State& state) const;
  // Whether this node is one of the two that observe everybody.
  bool watches_all(const State& state) const;

  // This node has given a sign of life.
  void beat(TimePoint now) { last_beat_ = now; }
  // What the backend says about `nodes`, which are those of `whom_to_watch`.
  void note(const std::vector<Node>& nodes, const std::vector<Sign>& signs, bool has_leases,
            TimePoint now);
  // This is what is stored: whoever is not in it, and comes back, begins anew.
  void forget_absent(const State& state);

  // Fills in the times of a state that came from elsewhere, or brings them up to date.
  void fill(const Settings& settings, TimePoint now, State& state);

 private:
  struct Sight {
    std::string mark;
    Duration silence;  // Duration::max() for one whose lease is over
  };
  const Node self_;
  const Duration look_interval_;
  std::optional<TimePoint> last_beat_;
  std::map<Node, Sight> watched_;
  TimePoint looked_;  // the last time
  // The last call that was seen last, and when it ends.
  std::uint64_t birth_ = 0;
  std::uint64_t last_call_count_ = 0;
  std::optional<TimePoint> deadline_;
};

// The name a node's sign of life goes by.
std::string sign_name(const Node& node);

}  // namespace muster::rendezvous
