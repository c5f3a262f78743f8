// The environment of a worker: the agent's own, with the variables on top that tell the worker who
// it is. docs/torchrun.md lists them.
//
// Pure.
#pragma once

#include "muster/agent/ranks.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace muster::agent {

using Environment = std::map<std::string, std::string, std::less<>>;

// "NAME=value" each, as in `environ`. What has no '=' is left out.
Environment read_environment(const char* const* entries);
std::vector<std::string> entries_of(const Environment& environment);

// What all workers of a node share in one round.
struct RoundFacts {
  std::string run_id;
  std::string role;
  std::uint64_t round = 0;
  std::int64_t node_rank = 0;
  std::int64_t node_count = 1;
  std::int64_t worker_count = 1;  // on this node
  Ranks ranks;
  std::string master_addr;
  int master_port = 0;
  bool use_agent_store = false;
  std::int64_t restart_count = 0;
  std::int64_t restarts_max = 0;
  bool virtual_local_rank = false;
  // How far the wall clock of this node is ahead of that of node rank 0.
  std::int64_t clock_lead_nanoseconds = 0;
  std::string agent_socket;  // Muster's own watchdog; empty: none
  std::string timer_file;    // PyTorch's; empty: none
};

struct WorkerFacts {
  std::int64_t local_rank = 0;
  std::string error_file;  // empty: logs go nowhere
  // With virtual local ranks: the one device that it sees.
  std::string visible_device = {};
  std::int64_t restart_count = 0;  // of this worker alone, in this round
};

Environment worker_environment(const Environment& base, const RoundFacts& round,
                               const WorkerFacts& worker);

}  // namespace muster::agent
