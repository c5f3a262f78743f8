#include "muster/cli/rendezvous_commands.h"

#include "muster/backends/inspector.h"
#include "muster/backends/machine.h"
#include "muster/base/log.h"
#include "muster/cli/arguments.h"
#include "muster/cli/exit_status.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/rendezvous/options.h"
#include "muster/rendezvous/snapshot.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::cli {
namespace {

namespace json = boost::json;
using rendezvous::Snapshot;

// How often a watch looks again even if nobody says that something changed: heartbeats age.
constexpr Duration kWatchInterval = std::chrono::seconds(5);

struct RendezvousOptions {
  std::string backend = "c10d";
  std::string endpoint;
  std::string run_id;
  std::string config;
  Duration timeout = std::chrono::seconds(10);
  bool json = false;
  std::int64_t count = 0;
};

int report(const RendezvousOptions& options, const Error& error) {
  if (options.json) {
    fmt::print("{}\n", json::serialize(json::object{{"error", name_of(error.kind)},
                                                    {"message", error.message}}));
  }
  fmt::print(stderr, "muster: {}\n", error.message);
  return error.kind == ErrorKind::Invalid ? kExitUsage : exit_status_of(error.kind);
}

std::string plural(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string seconds(Duration length) {
  return fmt::format("{:.1f}s", std::chrono::duration<double>(length).count());
}

// -- for programs ------------------------------------------------------------------------------

json::object entry_json(const Snapshot::Entry& entry, std::string_view role) {
  json::object object{{"role", role},
                      {"address", entry.node.addr},
                      {"pid", entry.node.pid},
                      {"local_id", entry.node.local_id},
                      {"nonce", fmt::format("{:016x}", entry.node.nonce)}};
  object["rank"] = entry.rank ? json::value(*entry.rank) : json::value();
  object["heard_seconds_ago"] =
      entry.last_heard ? json::value(std::chrono::duration<double>(*entry.last_heard).count())
                       : json::value();
  object["connected"] = entry.connected ? json::value(*entry.connected) : json::value();
  return object;
}

std::string json_of(const RendezvousOptions& options, const Snapshot& snapshot) {
  json::array nodes;
  for (const auto& entry : snapshot.members) nodes.push_back(entry_json(entry, "member"));
  for (const auto& entry : snapshot.waiting) nodes.push_back(entry_json(entry, "waiting"));
  for (const auto& entry : snapshot.spare) nodes.push_back(entry_json(entry, "spare"));
  json::object object{{"run_id", options.run_id},          {"exists", snapshot.exists},
                      {"round", snapshot.round},           {"complete", snapshot.complete},
                      {"closed", snapshot.closed},         {"lost_member", snapshot.lost},
                      {"min_nodes", snapshot.min_nodes},   {"max_nodes", snapshot.max_nodes},
                      {"world_size", snapshot.world_size}, {"nodes", std::move(nodes)}};
  object["last_call_seconds_left"] =
      snapshot.last_call_left
          ? json::value(std::chrono::duration<double>(*snapshot.last_call_left).count())
          : json::value();
  return json::serialize(object);
}

// -- for people --------------------------------------------------------------------------------

std::string headline(const RendezvousOptions& options, const Snapshot& snapshot) {
  const auto count = static_cast<std::int64_t>(snapshot.members.size());
  std::string line = fmt::format("run {}: ", options.run_id);
  if (snapshot.closed) line += "closed; ";
  if (snapshot.complete) {
    line += fmt::format("round {} complete with {}", snapshot.round,
                        plural(snapshot.world_size, "node"));
    if (count < snapshot.world_size) {
      line += fmt::format(", {} of them gone", snapshot.world_size - count);
    }
  } else {
    line += fmt::format("round {} forming, {} of ", snapshot.round, count);
    line += snapshot.min_nodes == snapshot.max_nodes
                ? plural(snapshot.max_nodes, "node")
                : fmt::format("{} to {} nodes", snapshot.min_nodes, snapshot.max_nodes);
    if (snapshot.last_call_left) {
      line += fmt::format(", last call ends in {}", seconds(*snapshot.last_call_left));
    }
  }
  if (!snapshot.waiting.empty()) line += fmt::format(", {} waiting", snapshot.waiting.size());
  if (!snapshot.spare.empty()) line += fmt::format(", {} spare", snapshot.spare.size());
  return line;
}

std::string life_of(const Snapshot::Entry& entry) {
  std::string text = entry.last_heard ? seconds(*entry.last_heard) + " ago" : "-";
  if (entry.connected && !*entry.connected) {
    text = entry.last_heard ? text + ", connection lost" : "no sign of life";
  } else if (entry.connected && !entry.last_heard) {
    text = "alive";
  }
  return text;
}

void print_table(const Snapshot& snapshot) {
  struct Row {
    std::string rank;
    std::string role;
    std::string node;
    std::string life;
  };
  std::vector<Row> rows;
  const auto add = [&](const std::vector<Snapshot::Entry>& entries, std::string_view role) {
    for (const Snapshot::Entry& entry : entries) {
      rows.push_back({entry.rank ? fmt::to_string(*entry.rank) : "-", std::string(role),
                      fmt::format("{} pid {}", entry.node.addr, entry.node.pid), life_of(entry)});
    }
  };
  add(snapshot.members, "member");
  std::stable_sort(rows.begin(), rows.end(), [](const Row& left, const Row& right) {
    return left.rank.size() != right.rank.size() ? left.rank.size() < right.rank.size()
                                                 : left.rank < right.rank;
  });
  add(snapshot.waiting, "waiting");
  add(snapshot.spare, "spare");
  if (rows.empty()) return;
  std::size_t width = 4;
  for (const Row& row : rows) width = std::max(width, row.node.size());
  fmt::print("  {:>5}  {:<8} {:<{}}  {}\n", "RANK", "STATE", "NODE", width, "HEARD");
  for (const Row& row : rows) {
    fmt::print("  {:>5}  {:<8} {:<{}}  {}\n", row.rank, row.role, row.node, width, row.life);
  }
}

void print(const RendezvousOptions& options, const Snapshot& snapshot) {
  if (options.json) {
    fmt::print("{}\n", json_of(options, snapshot));
  } else if (!snapshot.exists) {
    fmt::print("run {}: nobody has joined it yet\n", options.run_id);
  } else {
    fmt::print("{}\n", headline(options, snapshot));
    print_table(snapshot);
  }
  std::fflush(stdout);
}

// -- the commands ------------------------------------------------------------------------------

Task<int> show(RendezvousOptions options, backends::Inspector& inspector) {
  auto snapshot = co_await inspector.snapshot();
  if (!snapshot) co_return report(options, snapshot.error());
  print(options, *snapshot);
  co_return snapshot->exists ? kExitOk : kExitNo;
}

Task<int> watch(Loop& loop, RendezvousOptions options, backends::Inspector& inspector) {
  std::int64_t printed = 0;
  for (;;) {
    auto snapshot = co_await inspector.snapshot();
    if (!snapshot) co_return report(options, snapshot.error());
    print(options, *snapshot);
    if (++printed == options.count) co_return kExitOk;
    const TimePoint deadline = loop.now() + kWatchInterval;
    auto waited = co_await inspector.wait_change(deadline);
    if (!waited) co_return report(options, waited.error());
  }
}

Task<int> close(RendezvousOptions options, backends::Inspector& inspector) {
  auto closed = co_await inspector.close();
  if (!closed) co_return report(options, closed.error());
  if (options.json) {
    fmt::print("{}\n", json::serialize(json::object{{"run_id", options.run_id}, {"closed", true}}));
  } else {
    fmt::print("run {} is closed: running groups go on, nobody can join any more\n",
               options.run_id);
  }
  co_return kExitOk;
}

using Command = Task<int> (*)(Loop&, RendezvousOptions, backends::Inspector&);

Task<int> inspect(net::EpollLoop& loop, backends::Machine& machine, Random& random,
                  RendezvousOptions options, Command command) {
  rendezvous::Parameters parameters;
  parameters.backend = options.backend;
  parameters.endpoint = options.endpoint;
  parameters.run_id = options.run_id;
  auto config = rendezvous::parse_options(options.config);
  if (!config) co_return report(options, config.error());
  parameters.config = std::move(*config);
  auto inspector = co_await backends::make_inspector(loop, machine, random, std::move(parameters));
  if (!inspector) co_return report(options, inspector.error());
  co_return co_await command(loop, options, **inspector);
}

int run(RendezvousOptions options, Command command) {
  // People who look do not want to wait as long as nodes that join do.
  const auto connecting = rendezvous::find_option("read_timeout")->backends;
  const bool connects = std::ranges::find(connecting, options.backend) != connecting.end();
  if (connects && options.config.find("read_timeout") == std::string::npos) {
    const auto timeout = std::chrono::ceil<std::chrono::seconds>(options.timeout).count();
    options.config += fmt::format("{}read_timeout={}", options.config.empty() ? "" : ",",
                                  std::max<std::int64_t>(timeout, 1));
  }
  log::set_level(log::Level::Warn);
  net::EpollLoop loop;
  net::TcpTransport transport(loop);
  backends::SystemMachine machine(loop, transport);
  Random random = Random::from_system();
  return loop.block_on(inspect(loop, machine, random, std::move(options), command));
}

CLI::App* add_command(CLI::App& group, const std::string& name, const std::string& description,
                      int& exit_status, const std::shared_ptr<RendezvousOptions>& options,
                      Command command) {
  CLI::App* added = group.add_subcommand(name, description);
  added->add_option("--backend", options->backend, "c10d, muster, file or etcd")
      ->capture_default_str();
  added
      ->add_option("--endpoint", options->endpoint,
                   "Where the run's store is: HOST:PORT, a file, or etcd's HOST:PORT,HOST:PORT…")
      ->required();
  added->add_option("--run-id", options->run_id, "The run, as given to its nodes")->required();
  added->add_option("--conf", options->config, "Options of the backend: KEY=VALUE,KEY=VALUE…");
  add_duration(*added, "--timeout", options->timeout, "How long to try to reach the store")
      ->default_str("10s");
  added->add_flag("--json", options->json, "Print JSON");
  added->callback([options, &exit_status, command] { exit_status = run(*options, command); });
  return added;
}

}  // namespace

void add_rendezvous_commands(CLI::App& program, int& exit_status) {
  CLI::App* group = program.add_subcommand(
      "rendezvous", "Look at a run from outside: who is in it, with which rank; or close it");
  group->require_subcommand(1);
  const auto options = std::make_shared<RendezvousOptions>();
  add_command(*group, "show",
              "Print the run's nodes, ranks and signs of life (status 5: no such run)", exit_status,
              options, [](Loop&, RendezvousOptions chosen, backends::Inspector& inspector) {
                return show(std::move(chosen), inspector);
              });
  add_command(*group, "watch", "Print the run now and after every change", exit_status, options,
              [](Loop& loop, RendezvousOptions chosen, backends::Inspector& inspector) {
                return watch(loop, std::move(chosen), inspector);
              })
      ->add_option("--count", options->count, "End after printing this often; 0: never")
      ->capture_default_str();
  add_command(*group, "close", "Close the run for good: nobody can join it any more", exit_status,
              options, [](Loop&, RendezvousOptions chosen, backends::Inspector& inspector) {
                return close(std::move(chosen), inspector);
              });
}

}  // namespace muster::cli
