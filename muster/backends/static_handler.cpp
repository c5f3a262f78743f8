#include "muster/backends/static_handler.h"

#include "muster/backends/hosted_store.h"
#include "muster/backends/parts.h"
#include "muster/base/log.h"
#include "muster/rendezvous/endpoint.h"
#include "muster/rendezvous/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::backends {
namespace {

using namespace rendezvous;

// A node that was started anew finds its round among this many.
constexpr std::int64_t kRoundsMax = 1'000'000;
// So many of those who have not come are named.
constexpr std::size_t kMissingNamedMax = 10;

struct StaticOptions {
  std::string backend;
  std::string run_id;
  net::Endpoint endpoint;
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  Duration timeout = std::chrono::seconds(600);
};

class StaticHandler final : public Handler {
 public:
  StaticHandler(Machine& machine, Environment& environment, StaticOptions options)
      : machine_(machine), environment_(environment), options_(std::move(options)) {}

  std::string_view backend() const override { return options_.backend; }
  const std::string& run_id() const override { return options_.run_id; }
  bool use_agent_store() const override { return true; }
  bool hosts_store() const override { return connection_ && connection_->server; }

  Task<Result<Info>> next_rendezvous() override {
    if (joining_) {
      co_return fail(ErrorKind::Invalid, "next_rendezvous is running already on this handler");
    }
    // Reset also when the task is given up.
    struct InUse {
      bool& flag;
      ~InUse() { flag = false; }
    };
    joining_ = true;
    const InUse in_use{joining_};
    co_return co_await join();
  }

  Task<Result<bool>> is_closed() override { co_return false; }
  Task<Result<>> set_closed() override { co_return Result<>(); }
  Task<Result<std::int64_t>> num_nodes_waiting() override { co_return 0; }
  Task<Result<bool>> shutdown() override { co_return true; }
  Task<Result<>> leave() override { co_return Result<>(); }

  // The endpoint is the workers' store in every round, so what they wrote has to go. What is left
  // are the keys of the agents: those of the rounds, and our own.
  Task<Result<>> renew_bootstrap() override {
    if (!connection_ || round_ == 0) co_return Result<>();
    auto keys = co_await connection_->client->list_keys("");
    // A store that PyTorch hosts may not be able to list its keys; its workers bring an attempt
    // number along.
    if (!keys && keys.error().kind == ErrorKind::Unimplemented) co_return Result<>();
    if (!keys) co_return fail(ErrorKind::Unavailable, keys.error().message);
    for (const std::string& name : *keys) {
      if (is_of_agents(name)) continue;
      auto deleted = co_await connection_->client->delete_key(name);
      if (!deleted) co_return fail(ErrorKind::Unavailable, deleted.error().message);
    }
    co_return Result<>();
  }

  Status status() const override {
    Status status;
    status.round = static_cast<std::uint64_t>(round_ < 0 ? 0 : round_);
    status.member = round_ >= 0;
    return status;
  }

  // Nothing ever changes but by our own joins.
  Task<Result<Status>> wait_status(Status seen, TimePoint deadline) override {
    if (status() == seen) co_await sleep_until(environment_.loop, deadline);
    co_return status();
  }

 private:
  struct Connection {
    std::unique_ptr<HostedStore> server;  // outlives the client
    std::unique_ptr<store::TcpStore> client;
  };

  Task<Result<Info>> join() {
    const TimePoint deadline = after(environment_.loop.now(), options_.timeout);
    if (!connection_) {
      auto connected = co_await connect();
      if (!connected) co_return fail(std::move(connected.error()));
      connection_ = std::move(*connected);
    }
    auto here = co_await connection_->client->set(here_key(options_.rank), "");
    if (!here) co_return fail(ErrorKind::Unavailable, here.error().message);
    if (options_.rank == 0 && !all_came_) {
      auto all = co_await wait_for_all(deadline);
      if (!all) co_return fail(std::move(all.error()));
      all_came_ = true;
    }
    auto round = co_await claim_round();
    if (!round) co_return fail(std::move(round.error()));
    round_ = *round;
    Info info;
    info.rank = options_.rank;
    info.world_size = options_.world_size;
    info.round = static_cast<std::uint64_t>(round_);
    info.bootstrap = {options_.endpoint.host, options_.endpoint.port};
    // The first round has the name that PyTorch gives to all of them; later ones must not see its
    // keys.
    const std::string prefix =
        round_ == 0 ? options_.run_id : fmt::format("{}.{}", options_.run_id, round_);
    info.store = view_of(connection_, *connection_->client, prefix);
    co_return info;
  }

  Task<Result<std::shared_ptr<Connection>>> connect() {
    auto connection = std::make_shared<Connection>();
    if (options_.rank == 0) {
      auto server = HostedStore::start(environment_.loop, environment_.random, machine_.transport(),
                                       {"", options_.endpoint.port});
      if (!server) {
        co_return fail(ErrorKind::Unavailable,
                       fmt::format("this node has rank 0, but cannot host the store on port {}: {}",
                                   options_.endpoint.port, server.error().message));
      }
      connection->server = std::move(*server);
      options_.endpoint.port = connection->server->port();
    }
    store::TcpStoreOptions options;
    options.endpoint = options_.endpoint;
    options.connect_timeout = options_.timeout;
    // A PyTorch process that hosts the store waits until all have done so.
    options.count_as_worker = true;
    auto client = co_await store::connect_tcp_store(environment_.loop, machine_.transport(),
                                                    environment_.random, std::move(options));
    if (!client) {
      co_return fail(ErrorKind::Unavailable,
                     fmt::format("cannot reach the store of rank 0 at {}: {}",
                                 net::describe(options_.endpoint), client.error().message));
    }
    connection->client = std::move(*client);
    co_return connection;
  }

  Task<Result<>> wait_for_all(TimePoint deadline) {
    std::vector<std::string> keys;
    for (std::int64_t rank = 0; rank < options_.world_size; ++rank) keys.push_back(here_key(rank));
    auto waited = co_await connection_->client->wait(std::move(keys), deadline);
    if (waited) co_return Result<>();
    if (waited.error().kind != ErrorKind::Timeout) {
      co_return fail(ErrorKind::Unavailable, waited.error().message);
    }
    std::vector<std::int64_t> missing;
    for (std::int64_t rank = 0; rank < options_.world_size; ++rank) {
      auto here = co_await connection_->client->try_get(here_key(rank));
      if (!here) co_return fail(ErrorKind::Unavailable, here.error().message);
      if (!*here) missing.push_back(rank);
    }
    const auto count = options_.world_size - static_cast<std::int64_t>(missing.size());
    const bool too_many = missing.size() > kMissingNamedMax;
    if (too_many) missing.resize(kMissingNamedMax);
    co_return fail(ErrorKind::Timeout,
                   fmt::format("only {} of {} nodes have connected to this one in {}; missing are "
                               "the ranks {}{}",
                               count, options_.world_size, muster::describe(options_.timeout),
                               fmt::join(missing, ", "), too_many ? " and more" : ""));
  }

  // Each rank can be in a round once. One that begins anew, or has fallen behind, joins the latest
  // that anybody is in, or the one after it if it has been in that already: so that nodes that were
  // restarted differently often meet again.
  Task<Result<std::int64_t>> claim_round() {
    store::Store& store = *connection_->client;
    auto latest = co_await latest_round();
    if (!latest) co_return fail(std::move(latest.error()));
    for (std::int64_t round = std::max(round_ + 1, *latest); round < kRoundsMax; ++round) {
      auto count = co_await store.add(key(fmt::format("{}/{}", round, options_.rank)), 1);
      if (!count) co_return fail(ErrorKind::Unavailable, count.error().message);
      if (*count != 1) continue;
      auto announced = co_await announce(round);
      if (!announced) co_return fail(std::move(announced.error()));
      co_return round;
    }
    co_return fail(ErrorKind::Unavailable, "there have been too many rounds");
  }

  // 0 if nobody is in any.
  Task<Result<std::int64_t>> latest_round() {
    auto text = co_await connection_->client->try_get(key("latest"));
    if (!text) co_return fail(ErrorKind::Unavailable, text.error().message);
    co_return round_in(text->value_or(""));
  }

  Task<Result<>> announce(std::int64_t round) {
    store::Store& store = *connection_->client;
    const std::string mine = fmt::to_string(round);
    std::string expected;
    for (;;) {
      auto swapped = co_await store.compare_set(key("latest"), expected, mine);
      if (!swapped) co_return fail(ErrorKind::Unavailable, swapped.error().message);
      if (swapped->stored || round_in(swapped->value) >= round) co_return Result<>();
      // A key that is gone gives back what was expected of it.
      expected = swapped->value == expected ? "" : std::move(swapped->value);
    }
  }

  bool is_of_agents(std::string_view name) const {
    return name.starts_with("muster.static.") || name.starts_with(options_.run_id + "/") ||
           name.starts_with(options_.run_id + ".");
  }

  static std::int64_t round_in(std::string_view text) {
    std::int64_t round = 0;
    std::from_chars(text.data(), text.data() + text.size(), round);
    return round;
  }

  std::string key(std::string_view rest) const {
    return fmt::format("muster.static.{}/{}", options_.run_id, rest);
  }
  std::string here_key(std::int64_t rank) const { return key(fmt::format("here/{}", rank)); }

  Machine& machine_;
  Environment& environment_;
  StaticOptions options_;
  std::shared_ptr<Connection> connection_;  // with the stores of the rounds
  std::int64_t round_ = -1;
  bool all_came_ = false;  // for rank 0, which waits for them once
  bool joining_ = false;
};

}  // namespace

HandlerTask create_static(Machine& machine, const Parameters& parameters,
                          Environment& environment) {
  auto warnings = check_options(parameters.backend, parameters.config);
  if (!warnings) co_return fail(std::move(warnings.error()));
  for (const std::string& warning : *warnings) log::warn("rendezvous", "{}", warning);
  if (parameters.run_id.empty()) co_return fail(ErrorKind::Invalid, "the run id is empty");
  const auto rank = parameters.get_as_int("rank");
  if (!rank) co_return fail(rank.error());
  if (!*rank) {
    co_return fail(
        ErrorKind::Invalid,
        "the static backend needs this node's rank: give --node-rank, or rank=… among the "
        "rendezvous options");
  }
  if (**rank < 0 || **rank >= parameters.max_nodes) {
    co_return fail(ErrorKind::Invalid, fmt::format("rank {} is not among the ranks 0 to {}", **rank,
                                                   parameters.max_nodes - 1));
  }
  if (!has_port(parameters.endpoint)) {
    co_return fail(ErrorKind::Invalid,
                   fmt::format("the static backend needs the host and port of rank 0 as its "
                               "endpoint, not '{}'",
                               parameters.endpoint));
  }
  auto endpoint = parse_endpoint(parameters.endpoint, 0);
  if (!endpoint) co_return fail(std::move(endpoint.error()));
  const auto timeout = duration_option(parameters, "timeout");
  if (!timeout) co_return fail(timeout.error());

  StaticOptions options;
  options.backend = parameters.backend;
  options.run_id = parameters.run_id;
  options.endpoint = {endpoint->host, endpoint->port};
  options.rank = **rank;
  options.world_size = parameters.max_nodes;
  options.timeout = *timeout;
  co_return std::make_unique<StaticHandler>(machine, environment, std::move(options));
}

}  // namespace muster::backends
