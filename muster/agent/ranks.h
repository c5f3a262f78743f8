// Ranks: which numbers the workers of each node get.
//
// Pure. Global ranks are contiguous on a node and follow the node ranks, across roles; role ranks
// likewise inside a role.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster::agent {

// What a node brings into a round.
struct Seat {
  std::string role;
  std::int64_t worker_count = 1;

  friend bool operator==(const Seat&, const Seat&) = default;
};

// What the workers of one node are numbered from: worker i has `first_rank` + i of `world_size` and
// `first_role_rank` + i of `role_world_size`.
struct Ranks {
  std::int64_t first_rank = 0;
  std::int64_t world_size = 0;
  std::int64_t first_role_rank = 0;
  std::int64_t role_world_size = 0;

  friend bool operator==(const Ranks&, const Ranks&) = default;
};

// In the order of node ranks. Linear in the number of nodes.
std::vector<Ranks> assign_ranks(const std::vector<Seat>& seats);

}  // namespace muster::agent
