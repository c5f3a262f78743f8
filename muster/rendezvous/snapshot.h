// Snapshot: a run as people want to see it.
#pragma once

#include "muster/base/clock.h"
#include "muster/rendezvous/node.h"
#include "muster/rendezvous/state.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace muster::rendezvous {

struct Snapshot {
  struct Entry {
    Node node;
    std::optional<std::int64_t> rank;    // of a member of a complete round
    std::optional<Duration> last_heard;  // how long ago; nothing where it is not known yet
    std::optional<bool> connected;       // nothing where connections are not known
  };
  bool exists = false;  // whether there is such a run at all
  std::uint64_t round = 0;
  bool complete = false;
  bool closed = false;
  bool lost = false;
  std::int64_t min_nodes = 0;
  std::int64_t max_nodes = 0;
  std::int64_t world_size = 0;
  std::optional<Duration> last_call_left;
  std::vector<Entry> members;
  std::vector<Entry> waiting;
  std::vector<Entry> spare;
};

// Without `last_heard` and `connected`, which only the driver knows.
Snapshot snapshot_of(const State& state, TimePoint now);

}  // namespace muster::rendezvous
