#include "muster/backends/static_handler.h"

#include "muster/backends/hosted_store.h"
#include "muster/backends/parts.h"
#include "muster/base/log.h"
#include "muster/rendezvous/endpoint.h"
#include "muster/rendezvous/options.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace muster::backends {
namespace {

using namespace rendezvous;

// Where PyTorch's clients and ours count themselves in, so that a host knows that all have come.
constexpr std::string_view kWorkerCountKey = "init/";
// A node that was started anew finds its round among this many.
constexpr std::int64_t kRoundsMax = 1'000'000;

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
      auto connected = co_await connect(deadline);
      if (!connected) co_return fail(std::move(connected.error()));
      connection_ = std::move(*connected);
    }
    auto round = co_await agree_on_round();
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

  Task<Result<std::shared_ptr<Connection>>> connect(TimePoint deadline) {
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
    options.count_as_worker = true;
    auto client = co_await store::connect_tcp_store(environment_.loop, machine_.transport(),
                                                    environment_.random, std::move(options));
    if (!client) {
      co_return fail(ErrorKind::Unavailable,
                     fmt::format("cannot reach the store of rank 0 at {}: {}",
                                 net::describe(options_.endpoint), client.error().message));
    }
    connection->client = std::move(*client);
    if (options_.rank == 0) {
      auto all = co_await wait_for_all(*connection->client, deadline);
      if (!all) co_return fail(std::move(all.error()));
    }
    co_return connection;
  }

  Task<Result<>> wait_for_all(store::Store& store, TimePoint deadline) {
    const std::string key(kWorkerCountKey);
    auto watch = co_await store.watch(key, store::Store::WatchScope::Key);
    if (!watch) co_return fail(ErrorKind::Unavailable, watch.error().message);
    std::int64_t count = 0;
    while (count < options_.world_size) {
      auto change = co_await (*watch)->next(deadline);
      if (!change && change.error().kind == ErrorKind::Timeout) {
        co_return fail(ErrorKind::Timeout,
                       fmt::format("only {} of {} nodes have connected to this one in {}", count,
                                   options_.world_size, muster::describe(options_.timeout)));
      }
      if (!change) co_return fail(ErrorKind::Unavailable, change.error().message);
      std::from_chars(change->value.data(), change->value.data() + change->value.size(), count);
    }
    co_return Result<>();
  }

  // Each round is joined by as many as there are nodes. One that was started anew finds the earlier
  // ones full.
  Task<Result<std::int64_t>> agree_on_round() {
    store::Store& store = *connection_->client;
    for (std::int64_t round = round_ + 1; round < kRoundsMax; ++round) {
      auto count =
          co_await store.add(fmt::format("muster.static.{}/{}", options_.run_id, round), 1);
      if (!count) co_return fail(ErrorKind::Unavailable, count.error().message);
      if (*count <= options_.world_size) co_return round;
    }
    co_return fail(ErrorKind::Unavailable, "there have been too many rounds");
  }

  Machine& machine_;
  Environment& environment_;
  StaticOptions options_;
  std::shared_ptr<Connection> connection_;  // with the stores of the rounds
  std::int64_t round_ = -1;
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
