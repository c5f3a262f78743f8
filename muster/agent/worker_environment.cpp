#include "muster/agent/worker_environment.h"

#include <cstddef>
#include <string_view>
#include <utility>

namespace muster::agent {
Environment read_environment(const char* const* entries) {
  Environment environment;
  for (; entries != nullptr && *entries != nullptr; ++entries) {
    const std::string_view entry = *entries;
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    environment.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return environment;
}

std::vector<std::string> entries_of(const Environment& environment) {
  std::vector<std::string> entries;
  entries.reserve(environment.size());
  for (const auto& [name, value] : environment) entries.push_back(name + '=' + value);
  return entries;
}

Environment worker_environment(const Environment& base, const RoundFacts& round,
                               const WorkerFacts& worker) {
  Environment made = base;
  const auto set = [&made](std::string name, std::string value) {
    made.insert_or_assign(std::move(name), std::move(value));
  };
  const auto number = [&set](std::string name, std::int64_t value) {
    set(std::move(name), std::to_string(value));
  };
  const std::int64_t local_rank = worker.local_rank;
  number("LOCAL_RANK", round.virtual_local_rank ? 0 : local_rank);
  number("RANK", round.ranks.first_rank + local_rank);
  number("GROUP_RANK", round.node_rank);
  number("ROLE_RANK", round.ranks.first_role_rank + local_rank);
  set("ROLE_NAME", round.role);
  number("LOCAL_WORLD_SIZE", round.worker_count);
  number("WORLD_SIZE", round.ranks.world_size);
  number("GROUP_WORLD_SIZE", round.node_count);
  number("ROLE_WORLD_SIZE", round.ranks.role_world_size);
  set("MASTER_ADDR", round.master_addr);
  number("MASTER_PORT", round.master_port);
  number("TORCHELASTIC_RESTART_COUNT", round.restart_count + worker.restart_count);
  number("TORCHELASTIC_MAX_RESTARTS", round.restarts_max);
  set("TORCHELASTIC_RUN_ID", round.run_id);
  set("TORCHELASTIC_USE_AGENT_STORE", round.use_agent_store ? "True" : "False");
  made.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  made.emplace("NCCL_ASYNC_ERROR_HANDLING", "1");  // the name that PyTorch 1.13 looks for
  set("TORCHELASTIC_ERROR_FILE", worker.error_file);
  set("MUSTER_ROUND", std::to_string(round.round));
  if (!round.agent_socket.empty()) set("MUSTER_AGENT_SOCKET", round.agent_socket);
  if (!round.timer_file.empty()) set("TORCHELASTIC_TIMER_FILE", round.timer_file);
  if (round.virtual_local_rank) set("CUDA_VISIBLE_DEVICES", worker.visible_device);
  return made;
}

}  // namespace muster::agent
