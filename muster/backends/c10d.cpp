#include "muster/backends/c10d.h"

#include "muster/backends/hosted_store.h"
#include "muster/backends/parts.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/rendezvous/endpoint.h"
#include "muster/rendezvous/hosted_driver.h"
#include "muster/rendezvous/options.h"
#include "muster/store/file_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <utility>

namespace muster::backends {
namespace {

using namespace rendezvous;

// The client, and the server it is connected to if that is ours. Shared by the handler and the
// stores of its rounds.
struct Connection {
  std::unique_ptr<HostedStore> server;  // outlives the client
  std::unique_ptr<store::TcpStore> client;
};

Task<Result<std::unique_ptr<store::TcpStore>>> connect(Machine& machine, Environment& environment,
                                                       net::Endpoint endpoint, Duration timeout) {
  store::TcpStoreOptions options;
  options.endpoint = std::move(endpoint);
  options.connect_timeout = timeout;
  options.reply_timeout = timeout;
  return store::connect_tcp_store(environment.loop, machine.transport(), environment.random,
                                  std::move(options));
}

void report_hosting(Environment& environment, const DynamicHandlerParts& parts, int port) {
  log::info("rendezvous", "this node hosts the store of run {} port={}",
            log::quote(parts.settings.run_id), port);
  if (const auto report = reporter(environment, parts)) {
    report(NodeState::Init, fmt::format("this node hosts the store on port {}", port));
  }
}

// Hosts the store, or connects to it, by the rules of the table in docs/rendezvous.md.
Task<Result<std::shared_ptr<Connection>>> host_or_connect(Machine& machine,
                                                          const Parameters& parameters,
                                                          Environment& environment,
                                                          const DynamicHandlerParts& parts) {
  auto parsed = parse_endpoint(parameters.endpoint, kC10dPort);
  if (!parsed) co_return fail(std::move(parsed.error()));
  net::Endpoint endpoint{parsed->host, parsed->port};
  const auto told = parameters.get_as_bool("is_host");
  if (!told) co_return fail(told.error());
  const auto timeout = duration_option(parameters, "read_timeout");
  if (!timeout) co_return fail(timeout.error());

  bool hosts = false;
  if (*told) {
    hosts = **told;
  } else {
    hosts = co_await machine.is_called(endpoint.host);
  }
  const auto connection = std::make_shared<Connection>();
  if (hosts) {
    auto server = HostedStore::start(environment.loop, environment.random, machine.transport(),
                                     net::Endpoint{"", endpoint.port});
    if (server) {
      connection->server = std::move(*server);
      endpoint.port = connection->server->port();
      report_hosting(environment, parts, endpoint.port);
    } else if (*told) {
      co_return fail(ErrorKind::Unavailable,
                     fmt::format("is_host is set, but this node cannot host the store: {}",
                                 server.error().message));
    }
    // Else another agent of this machine has the port, and hosts it.
  } else if (endpoint.port == 0) {
    co_return fail(ErrorKind::Invalid,
                   fmt::format("endpoint '{}': port 0 is for the node that hosts the store; the "
                               "others need to know the port",
                               parameters.endpoint));
  }
  auto client = co_await connect(machine, environment, endpoint, *timeout);
  if (!client) {
    co_return fail(ErrorKind::Unavailable,
                   fmt::format("cannot reach the rendezvous store at {}: {}; is the node of that "
                               "name running?",
                               net::describe(endpoint), client.error().message));
  }
  connection->client = std::move(*client);
  co_return connection;
}

// The address of the store, if it is one that an agent hosts and that ends with it.
Task<std::string> find_node_of(store::TcpStore& store, std::string endpoint) {
  if (store.services() == nullptr) co_return std::string();
  auto lines = co_await store.info();
  const bool hosted = lines && std::any_of(lines->begin(), lines->end(), [](const auto& line) {
                        return line.first == kHostedBy;
                      });
  co_return hosted ? std::move(endpoint) : std::string();
}

// The best driver for what is at the other end.
void drive(Environment& environment, const std::shared_ptr<Connection>& connection,
           DynamicHandlerParts& parts) {
  store::TcpStore& store = *connection->client;
  if (store.services() == nullptr) {
    log::info("rendezvous", "the store of run {} is not Muster's, so its nodes compare and set",
              log::quote(parts.settings.run_id));
    drive_over_store(environment, connection, store, parts);
    return;
  }
  HostedDriverOptions options;
  options.report = reporter(environment, parts);
  parts.foundation = connection;
  parts.driver = make_hosted_driver(environment.loop, environment.random, *store.services(),
                                    parts.settings, parts.node, std::move(options));
  parts.round_store = [connection](std::string prefix) {
    return view_of(connection, *connection->client, std::move(prefix));
  };
}

// A new file that only this user can read.
Result<std::string> make_temporary_file() {
  const char* folder = std::getenv("TMPDIR");
  std::string path = fmt::format("{}/muster-rendezvous-XXXXXX",
                                 folder != nullptr && *folder != '\0' ? folder : "/tmp");
  const Fd fd(::mkostemp(path.data(), O_CLOEXEC));
  if (!fd.is_open()) {
    return fail(ErrorKind::Invalid,
                fmt::format("cannot make a temporary file for the store, {}: {}", path,
                            describe_errno(errno)));
  }
  return path;
}

Result<std::shared_ptr<store::Store>> open_file(Environment& environment, std::string path) {
  store::FileStoreOptions options;
  options.path = path;
  auto store = store::make_file_store(environment.loop, environment.random, std::move(options));
  if (store) return std::shared_ptr<store::Store>(std::move(*store));
  return fail(ErrorKind::Unavailable, fmt::format("cannot use the file {} as a store: {}",
                                                  log::quote(path), store.error().message));
}

}  // namespace

HandlerTask create_c10d(Machine& machine, const Parameters& parameters, Environment& environment) {
  auto parts = co_await begin_parts(machine, parameters, environment);
  if (!parts) co_return fail(std::move(parts.error()));
  const auto type = word_option(parameters, "store_type");
  if (!type) co_return fail(type.error());
  if (*type == "file") {
    std::string path = parameters.endpoint;
    if (path.empty()) {
      auto made = make_temporary_file();
      if (!made) co_return fail(std::move(made.error()));
      path = std::move(*made);
    }
    auto store = open_file(environment, std::move(path));
    if (!store) co_return fail(std::move(store.error()));
    drive_over_store(environment, *store, **store, *parts);
  } else {
    auto connection = co_await host_or_connect(machine, parameters, environment, *parts);
    if (!connection) co_return fail(std::move(connection.error()));
    parts->hosts_store = (*connection)->server != nullptr;
    if (!parts->hosts_store) {
      store::TcpStore& store = *(*connection)->client;
      std::string endpoint = parts->master_endpoint;
      parts->store_on_node = co_await find_node_of(store, std::move(endpoint));
    }
    drive(environment, *connection, *parts);
  }
  co_return make_dynamic_handler(environment, std::move(*parts));
}

HandlerTask create_muster(Machine& machine, const Parameters& parameters,
                          Environment& environment) {
  auto parts = co_await begin_parts(machine, parameters, environment);
  if (!parts) co_return fail(std::move(parts.error()));
  auto endpoint = parse_endpoint(parameters.endpoint, kMusterPort);
  if (!endpoint) co_return fail(std::move(endpoint.error()));
  const auto timeout = duration_option(parameters, "read_timeout");
  if (!timeout) co_return fail(timeout.error());
  const net::Endpoint address{endpoint->host, endpoint->port};
  auto client = co_await connect(machine, environment, address, *timeout);
  if (!client) {
    co_return fail(ErrorKind::Unavailable,
                   fmt::format("cannot reach the store at {}: {}; start it with `muster store "
                               "serve`, or use --rdzv-backend c10d, which starts its own",
                               net::describe(address), client.error().message));
  }
  if ((*client)->services() == nullptr) {
    co_return fail(
        ErrorKind::Invalid,
        fmt::format("the store at {} is not Muster's; use --rdzv-backend c10d for a store "
                    "hosted by PyTorch",
                    net::describe(address)));
  }
  const auto connection = std::make_shared<Connection>();
  connection->client = std::move(*client);
  drive(environment, connection, *parts);
  co_return make_dynamic_handler(environment, std::move(*parts));
}

HandlerTask create_file(Machine& machine, const Parameters& parameters, Environment& environment) {
  auto parts = co_await begin_parts(machine, parameters, environment);
  if (!parts) co_return fail(std::move(parts.error()));
  if (parameters.endpoint.empty()) {
    co_return fail(ErrorKind::Invalid,
                   "the endpoint of the file backend is the path of a file that all nodes share, "
                   "and none was given");
  }
  auto store = open_file(environment, parameters.endpoint);
  if (!store) co_return fail(std::move(store.error()));
  drive_over_store(environment, *store, **store, *parts);
  co_return make_dynamic_handler(environment, std::move(*parts));
}

}  // namespace muster::backends
