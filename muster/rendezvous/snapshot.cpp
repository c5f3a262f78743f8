#include "muster/rendezvous/snapshot.h"

#include <algorithm>

namespace muster::rendezvous {

Snapshot snapshot_of(const State& state, TimePoint now) {
  Snapshot snapshot;
  snapshot.exists = state.birth != 0;
  snapshot.round = state.round;
  snapshot.complete = state.complete;
  snapshot.closed = state.closed;
  snapshot.lost = state.lost;
  snapshot.min_nodes = state.min_nodes;
  snapshot.max_nodes = state.max_nodes;
  snapshot.world_size = state.world_size;
  if (state.deadline) snapshot.last_call_left = std::max(*state.deadline - now, Duration::zero());
  for (const auto& [node, rank] : state.participants) {
    Snapshot::Entry& entry = snapshot.members.emplace_back();
    entry.node = node;
    if (state.complete) entry.rank = rank;
  }
  for (const Node& node : state.wait_list) snapshot.waiting.emplace_back().node = node;
  for (const Node& node : state.redundancy_list) snapshot.spare.emplace_back().node = node;
  return snapshot;
}

}  // namespace muster::rendezvous
