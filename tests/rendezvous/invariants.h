// What must hold of a State after every action: the invariants of muster/rendezvous/state.h.
#pragma once

#include "muster/rendezvous/node.h"
#include "muster/rendezvous/state.h"

#include <cstdint>
#include <set>
#include <string>

namespace muster::rendezvous::testing {

// Which invariant does not hold; empty if all do.
inline std::string what_is_wrong_with(const State& state, std::int64_t min_nodes,
                                      std::int64_t max_nodes) {
  const auto size = static_cast<std::int64_t>(state.participants.size());
  std::set<Node> known;
  for (const auto& [node, rank] : state.participants) known.insert(node);
  for (const auto* list : {&state.wait_list, &state.redundancy_list}) {
    for (const Node& node : *list) {
      if (!known.insert(node).second) return describe(node) + " is in two lists";
    }
  }
  if (state.last_heartbeats.size() != known.size()) return "as many heartbeats as nodes";
  for (const Node& node : known) {
    if (!state.last_heartbeats.contains(node)) return describe(node) + " has no heartbeat";
  }
  if (state.complete && size == 0) return "a complete round has members";
  if (state.complete && state.deadline) return "a complete round is not in last call";
  if (state.deadline && size < min_nodes) return "a last call has the minimum present";
  if (size > max_nodes) return "there are no more members than the maximum";
  if (!known.empty() && (state.min_nodes != min_nodes || state.max_nodes != max_nodes))
    return "the limits are those of the nodes";
  if (!state.complete && state.lost) return "only a complete round has lost somebody";
  if (!state.complete && state.world_size != 0) return "only a complete round has a size";
  if (state.complete) {
    if (state.world_size < min_nodes || state.world_size > max_nodes)
      return "the size is within the limits";
    std::set<std::int64_t> ranks;
    for (const auto& [node, rank] : state.participants) {
      if (rank < 0 || rank >= state.world_size) return "ranks are within the size";
      if (!ranks.insert(rank).second) return "no two members have one rank";
    }
    // Nobody waits at a full group: all who come are parked.
    if (size == max_nodes && !state.wait_list.empty()) return "nobody waits at a full group";
  }
  return "";
}

}  // namespace muster::rendezvous::testing
