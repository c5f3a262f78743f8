#include "muster/agent/ranks.h"

#include <cstddef>
#include <map>

namespace muster::agent {

std::vector<Ranks> assign_ranks(const std::vector<Seat>& seats) {
  std::vector<Ranks> ranks(seats.size());
  std::map<std::string, std::int64_t> role_sizes;
  std::int64_t world_size = 0;
  for (std::size_t node = 0; node < seats.size(); ++node) {
    ranks[node].first_rank = world_size;
    std::int64_t& role_size = role_sizes[seats[node].role];
    ranks[node].first_role_rank = role_size;
    world_size += seats[node].worker_count;
    role_size += seats[node].worker_count;
  }
  for (std::size_t node = 0; node < seats.size(); ++node) {
    ranks[node].world_size = world_size;
    ranks[node].role_world_size = role_sizes[seats[node].role];
  }
  return ranks;
}

}  // namespace muster::agent
