#include "muster/cli/run_plan.h"

#include "muster/agent/ranks.h"
#include "muster/agent/worker_environment.h"
#include "muster/base/signal_name.h"
#include "muster/launch/command.h"
#include "muster/rendezvous/endpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace muster::cli {
namespace {

using launch::LaunchConfig;

std::string nodes_text(const LaunchConfig& config) {
  const auto& rendezvous = config.rendezvous;
  if (rendezvous.min_nodes == rendezvous.max_nodes) return fmt::format("{}", rendezvous.min_nodes);
  return fmt::format("{} to {}", rendezvous.min_nodes, rendezvous.max_nodes);
}

std::string restarts_text(const LaunchConfig& config) {
  std::string text = fmt::format("at most {}", config.max_restarts);
  if (config.restart_alone) text += " of each worker, alone";
  if (config.restart_window > Duration::zero()) {
    text += fmt::format(" in {}", describe(config.restart_window));
  }
  if (config.restart_delay > Duration::zero()) {
    text += fmt::format(", {} before the first, twice as long before each further one, up to {}",
                        describe(config.restart_delay), describe(config.restart_delay_max));
  }
  return text;
}

std::string logs_text(const LaunchConfig& config) {
  const launch::LogConfig& logs = config.logs;
  return fmt::format("{}; redirects {}, tee {}",
                     logs.folder.empty() ? "a temporary folder" : logs.folder, logs.redirects,
                     logs.tee);
}

agent::RoundFacts assumed_round(const LaunchConfig& config) {
  agent::RoundFacts facts;
  facts.run_id = config.rendezvous.run_id;
  facts.role = config.role;
  facts.node_rank = config.rendezvous.backend == "static" ? config.node_rank : 0;
  facts.node_count = config.rendezvous.max_nodes;
  facts.worker_count = config.workers_per_node;
  const std::vector<agent::Seat> seats(static_cast<std::size_t>(facts.node_count),
                                       {config.role, config.workers_per_node});
  facts.ranks = agent::assign_ranks(seats).at(static_cast<std::size_t>(facts.node_rank));
  const auto endpoint = rendezvous::parse_endpoint(config.rendezvous.endpoint, 0);
  facts.master_addr =
      config.rendezvous.backend == "static" && endpoint ? endpoint->host : "<node rank 0>";
  facts.master_port = config.rendezvous.backend == "static" && endpoint ? endpoint->port : 0;
  facts.use_agent_store = config.switches.share_store;
  facts.restarts_max = config.max_restarts;
  facts.virtual_local_rank = config.virtual_local_rank;
  return facts;
}

}  // namespace

std::string describe_plan(const LaunchConfig& config) {
  std::string text;
  const auto row = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("{:<14}{}\n", name, value);
  };
  row("nodes", nodes_text(config));
  row("workers", fmt::format("{} on this node, role {}", config.workers_per_node, config.role));
  row("rendezvous",
      fmt::format("{} at {}, run id {}", config.rendezvous.backend,
                  config.rendezvous.endpoint.empty() ? "its default" : config.rendezvous.endpoint,
                  config.rendezvous.run_id));
  for (const auto& [name, value] : config.rendezvous.config) {
    row("", fmt::format("{}={}", name, rendezvous::describe(value)));
  }
  row("restarts", restarts_text(config));
  row("stopping",
      config.shutdown_timeout == Duration::zero()
          ? std::string("SIGKILL at once")
          : fmt::format("SIGTERM, after {} SIGKILL", describe(config.shutdown_timeout)));
  std::vector<std::string> signals;
  for (const int signal : config.signals_to_handle) signals.push_back(signal_name(signal));
  row("signals", fmt::format("{}", fmt::join(signals, " ")));
  row("logs", logs_text(config));
  row("events", config.event_log_handler);
  row("http", config.http);

  const agent::RoundFacts round = assumed_round(config);
  text += fmt::format(
      "\nfirst round, as if {} came and this one had node rank {}:\n",
      round.node_count == 1 ? std::string("1 node") : fmt::format("{} nodes", round.node_count),
      round.node_rank);
  for (int local_rank = 0; local_rank < config.workers_per_node; ++local_rank) {
    const auto index = static_cast<std::size_t>(local_rank);
    text += fmt::format("\nworker {}\n  $ {}\n", local_rank,
                        launch::shell_line(launch::arguments_of(config.command, local_rank)));
    agent::WorkerFacts worker;
    worker.local_rank = local_rank;
    worker.error_file = "<log folder>/attempt_0/" + std::to_string(local_rank) + "/error.json";
    if (!config.visible_devices.empty()) worker.visible_device = config.visible_devices.at(index);
    agent::Environment base;
    for (const auto& [name, value] : config.environment) base.emplace(name, value);
    for (const auto& [name, value] : agent::worker_environment(base, round, worker)) {
      const bool unknown = name == "MASTER_PORT" && round.master_port == 0;
      text += fmt::format("  {}={}\n", name, unknown ? "<chosen by the system>" : value);
    }
    if (!config.bindings.empty()) {
      const launch::Binding& binding = config.bindings.at(index);
      text +=
          fmt::format("  cpus {}, memory of nodes {} ({})\n", launch::describe_cpus(binding.cpus),
                      fmt::join(binding.nodes, ","), launch::name_of(config.numa_memory));
    }
  }
  return text;
}

}  // namespace muster::cli
