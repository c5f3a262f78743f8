#include "muster/base/log.h"
#include "muster/base/suggest.h"
#include "muster/launch/numbers.h"
#include "muster/launch/resolve_parts.h"
#include "muster/rendezvous/endpoint.h"
#include "muster/rendezvous/options.h"
#include "muster/rendezvous/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace muster::launch {
namespace {

using rendezvous::Value;

constexpr std::int64_t kStaticPort = 29500;
constexpr int kC10dPort = 29400;
constexpr int kEtcdPort = 2379;
// What torchrun waits for the nodes of a static rendezvous.
constexpr int kStaticTimeoutSeconds = 900;

// Shorter than the defaults of the rendezvous itself, which are PyTorch's: a host that falls silent
// is noticed in 4 seconds, and a job that has its minimum of nodes starts after one.
constexpr std::pair<std::string_view, std::string_view> kRunDefaults[] = {
    {"keep_alive_interval", "1"}, {"keep_alive_max_attempt", "4"}, {"grace", "0.2"},
    {"last_call_timeout", "1"},   {"regroup_timeout", "0.1"},
};

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorKind::Invalid, std::move(message));
}

struct NodeRange {
  std::int64_t min = 1;
  std::int64_t max = 1;
};

Result<NodeRange> read_nodes(std::string_view text) {
  constexpr std::string_view kForm = "write N, or MIN:MAX for a job that may grow and shrink";
  const std::size_t colon = text.find(':');
  const std::string_view second =
      colon == std::string_view::npos ? text.substr(0, colon) : text.substr(colon + 1);
  if (second.find(':') != std::string_view::npos) {
    return refuse(
        fmt::format("--nnodes is {}, which has too many parts; {}", log::quote(text), kForm));
  }
  const auto min = parse_integer(text.substr(0, colon));
  const auto max = parse_integer(second);
  if (!min || !max) {
    return refuse(
        fmt::format("--nnodes is {}, which is no number of nodes; {}", log::quote(text), kForm));
  }
  if (*min < 1) {
    return refuse(
        fmt::format("--nnodes is {}, but there is at least 1 node; {}", log::quote(text), kForm));
  }
  if (*max < *min) {
    return refuse(fmt::format("--nnodes is {}, but the minimum {} is above the maximum {}",
                              log::quote(text), *min, *max));
  }
  return NodeRange{*min, *max};
}

class RendezvousResolver {
 public:
  RendezvousResolver(const Options& options, const Facts& facts, LaunchConfig& config)
      : options_(options), facts_(facts), config_(config), parameters_(config.rendezvous) {}

  Result<> run() {
    for (const auto step :
         {&RendezvousResolver::take_options, &RendezvousResolver::choose_standalone,
          &RendezvousResolver::check_backend, &RendezvousResolver::check_range,
          &RendezvousResolver::check_run_id, &RendezvousResolver::choose_rank,
          &RendezvousResolver::choose_endpoint, &RendezvousResolver::check_options,
          &RendezvousResolver::check_endpoint}) {
      if (auto done = (this->*step)(); !done) return done;
    }
    set_defaults();
    return {};
  }

 private:
  bool is_static() const { return parameters_.backend == "static"; }
  void warn(std::string message) { config_.warnings.push_back(std::move(message)); }

  Result<> take_options() {
    const auto nodes = read_nodes(options_.nnodes);
    if (!nodes) return fail(nodes.error());
    parameters_.min_nodes = nodes->min;
    parameters_.max_nodes = nodes->max;
    parameters_.backend = options_.rdzv_backend;
    parameters_.endpoint = options_.rdzv_endpoint;
    parameters_.run_id = options_.rdzv_id;
    parameters_.local_addr = options_.local_addr.value_or("");
    auto given = rendezvous::parse_options(options_.rdzv_conf);
    if (!given) return refuse(fmt::format("--rdzv-conf: {}", given.error().message));
    parameters_.config = std::move(*given);
    return {};
  }

  // A plain start on one node is a standalone one, too: two jobs on one host then never fight for a
  // port.
  Result<> choose_standalone() {
    const bool by_default = is_static() && rendezvous::trim(parameters_.endpoint).empty() &&
                            !options_.master_port && parameters_.max_nodes == 1;
    if (!options_.standalone && !by_default) return {};
    if (parameters_.min_nodes > 1) {
      return refuse(
          fmt::format("--standalone is for one node, but --nnodes is {}; leave one of "
                      "them out",
                      log::quote(options_.nnodes)));
    }
    if (options_.standalone) {
      for (const std::string_view name : {"rdzv-backend", "rdzv-endpoint"}) {
        if (options_.was_given(name))
          warn(fmt::format("--{} has no effect with --standalone", name));
      }
    }
    if (options_.was_given("rdzv-id")) {
      warn(fmt::format("--rdzv-id {} is not used: a node on its own gets a run id of its own",
                       log::quote(options_.rdzv_id)));
    }
    config_.standalone = true;
    // Nobody else can find the port, so there is nobody to wait for.
    parameters_.max_nodes = 1;
    parameters_.backend = "c10d";
    parameters_.endpoint = "localhost:0";
    parameters_.run_id = facts_.make_run_id();
    return {};
  }

  Result<> check_backend() {
    if (parameters_.backend.empty()) {
      return refuse(
          fmt::format("--rdzv-backend is empty; it may be {}", fmt::join(facts_.backends, ", ")));
    }
    if (std::ranges::find(facts_.backends, parameters_.backend) != facts_.backends.end()) return {};
    const std::string suggestion = nearest(parameters_.backend, facts_.backends);
    return refuse(fmt::format(
        "there is no rendezvous backend {}; {}", log::quote(parameters_.backend),
        suggestion.empty() ? fmt::format("there are {}", fmt::join(facts_.backends, ", "))
                           : fmt::format("did you mean {}?", suggestion)));
  }

  Result<> check_range() {
    if (!is_static() || parameters_.min_nodes == parameters_.max_nodes) return {};
    return refuse(
        fmt::format("--nnodes={} needs a rendezvous that lets nodes come and go; add "
                    "--rdzv-backend=c10d --rdzv-endpoint=HOST:{}, or ask for one number of nodes",
                    options_.nnodes, kC10dPort));
  }

  Result<> check_run_id() {
    if (!parameters_.run_id.empty()) return {};
    if (parameters_.max_nodes > 1)
      return refuse("--rdzv-id is empty; give the run an id, the same on all nodes");
    parameters_.run_id = facts_.make_run_id();
    warn(fmt::format("--rdzv-id is empty; the run is called {}", parameters_.run_id));
    return {};
  }

  Result<> choose_rank() {
    if (!is_static()) {
      if (options_.was_given("node-rank") && options_.node_rank != 0) {
        warn(
            fmt::format("--node-rank {} has no effect with the rendezvous backend {}: ranks "
                        "follow the order of the nodes",
                        options_.node_rank, parameters_.backend));
      }
      return {};
    }
    std::int64_t rank = options_.node_rank;
    if (!options_.was_given("node-rank") && parameters_.config.contains("rank")) {
      const auto given = parameters_.get_as_int("rank");
      if (!given) return fail(given.error());
      rank = given->value_or(0);
    }
    if (rank < 0 || rank >= parameters_.max_nodes) {
      return refuse(
          fmt::format("--node-rank is {}, but the {} of --nnodes={} have the ranks 0 to "
                      "{}",
                      rank, parameters_.max_nodes == 1 ? "node" : "nodes", options_.nnodes,
                      parameters_.max_nodes - 1));
    }
    config_.node_rank = rank;
    parameters_.config.insert_or_assign("rank", Value(rank));
    return {};
  }

  Result<> choose_endpoint() {
    if (!rendezvous::trim(parameters_.endpoint).empty()) return {};
    if (is_static()) {
      const std::int64_t port = options_.master_port.value_or(kStaticPort);
      if (port < 0 || port > 65535)
        return refuse(fmt::format("--master-port is {}, but ports end at 65535", port));
      const std::string_view host = rendezvous::trim(options_.master_addr);
      if (host.empty())
        return refuse("--master-addr is empty; give the address of the node of rank 0");
      const bool bare = host.find(':') != std::string_view::npos && !host.starts_with('[');
      parameters_.endpoint =
          bare ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
      return {};
    }
    if (options_.was_given("master-addr") || options_.was_given("master-port")) {
      warn(
          fmt::format("--master-addr and --master-port have no effect with the rendezvous backend "
                      "{}; use --rdzv-endpoint",
                      parameters_.backend));
    }
    if (parameters_.max_nodes > 1) {
      warn("without --rdzv-endpoint only nodes on this machine can join");
    }
    return {};
  }

  Result<> check_options() {
    auto warnings = rendezvous::check_options(parameters_.backend, parameters_.config);
    if (!warnings) return refuse(fmt::format("--rdzv-conf: {}", warnings.error().message));
    // Launchers pass it to every backend; one that cannot be read is a mistake all the same.
    const auto timeout = parameters_.config.find("timeout");
    if (timeout != parameters_.config.end() && rendezvous::find_option("timeout") != nullptr &&
        !warnings->empty() && !parameters_.get_as_int("timeout")) {
      return refuse(fmt::format("--rdzv-conf: timeout must be a whole number of seconds, not {}",
                                describe(timeout->second)));
    }
    for (std::string& warning : *warnings)
      config_.warnings.push_back(fmt::format("--rdzv-conf: {}", warning));
    return {};
  }

  Result<> check_endpoint() {
    const std::string& backend = parameters_.backend;
    if (is_static()) {
      if (!rendezvous::has_port(parameters_.endpoint)) {
        return refuse(
            fmt::format("--rdzv-endpoint is {}, which has no port; the static backend "
                        "needs HOST:PORT of the node of rank 0, or --master-addr and "
                        "--master-port",
                        log::quote(parameters_.endpoint)));
      }
      return as_check(rendezvous::parse_endpoint(parameters_.endpoint, 0));
    }
    if (backend == "etcd" || backend == "etcd-v2")
      return as_check(rendezvous::parse_endpoint_list(parameters_.endpoint, kEtcdPort));
    if (backend == "muster" || (backend == "c10d" && !is_file_store()))
      return as_check(rendezvous::parse_endpoint(parameters_.endpoint, kC10dPort));
    return {};
  }

  template <typename T>
  static Result<> as_check(const Result<T>& read) {
    if (!read) return refuse(fmt::format("--rdzv-endpoint: {}", read.error().message));
    return {};
  }

  bool is_file_store() const {
    const auto type = rendezvous::word_option(parameters_, "store_type");
    return type && *type == "file";
  }

  // Where several nodes write one file over a network, heartbeats stay as seldom as they were.
  bool keeps_slow_heartbeats() const { return parameters_.backend == "file"; }

  void set_default(std::string_view name, Value value) {
    const rendezvous::Option* option = rendezvous::find_option(name);
    if (option == nullptr) return;
    const auto& users = option->backends;
    if (std::ranges::find(users, parameters_.backend) == users.end()) return;
    parameters_.config.try_emplace(std::string(name), std::move(value));
  }

  void set_defaults() {
    // Whoever chose a last call wants it in every round.
    const bool chose_last_call = parameters_.config.contains("last_call_timeout");
    for (const auto& [name, value] : kRunDefaults) {
      if (name == "regroup_timeout" && chose_last_call) continue;
      if (name != "last_call_timeout" && keeps_slow_heartbeats()) continue;
      set_default(name, Value(std::string(value)));
    }
    set_default("timeout", Value(kStaticTimeoutSeconds));
    if (config_.standalone) set_default("is_host", Value(true));
  }

  const Options& options_;
  const Facts& facts_;
  LaunchConfig& config_;
  rendezvous::Parameters& parameters_;
};

}  // namespace

Result<> resolve_rendezvous(const Options& options, const Facts& facts, LaunchConfig& config) {
  return RendezvousResolver(options, facts, config).run();
}

}  // namespace muster::launch
