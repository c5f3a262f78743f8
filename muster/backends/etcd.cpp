#include "muster/backends/etcd.h"

#include "muster/backends/parts.h"
#include "muster/base/log.h"
#include "muster/etcd/backend.h"
#include "muster/etcd/store.h"
#include "muster/rendezvous/endpoint.h"
#include "muster/rendezvous/options.h"
#include "muster/rendezvous/shared_driver.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <utility>

namespace muster::backends {
namespace {

using namespace rendezvous;

// Shared by the handler and the stores of its rounds.
struct Connection {
  std::unique_ptr<etcd::Client> client;
  std::unique_ptr<Backend> backend;
};

Result<std::string> first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (file && std::getline(file, line)) return line;
  return fail(ErrorKind::Invalid, fmt::format("cannot read the password file {}: {}",
                                              log::quote(path), describe_errno(errno)));
}

// The text of an option; empty if it was not given.
Result<std::string> text_of(const Parameters& parameters, std::string_view option) {
  auto text = text_option(parameters, option);
  if (!text) return fail(std::move(text.error()));
  return text->value_or("");
}

}  // namespace

Result<etcd::Options> etcd_options(const Parameters& parameters) {
  auto endpoints = parse_endpoint_list(parameters.endpoint, etcd::kDefaultPort);
  if (!endpoints) return fail(std::move(endpoints.error()));
  etcd::Options options;
  for (Endpoint& endpoint : *endpoints) {
    options.endpoints.push_back({std::move(endpoint.host), endpoint.port});
  }
  const auto protocol = word_option(parameters, "protocol");
  if (!protocol) return fail(protocol.error());
  options.tls = *protocol == "https";
  const auto timeout = duration_option(parameters, "read_timeout");
  if (!timeout) return fail(timeout.error());
  options.retry_timeout = *timeout;

  std::string password_file;
  const std::pair<std::string_view, std::string*> texts[] = {
      {"etcd_prefix", &options.prefix},
      {"ca_cert", &options.tls_files.ca},
      {"ssl_cert", &options.tls_files.certificate},
      {"ssl_cert_key", &options.tls_files.key},
      {"user", &options.user},
      {"password", &options.password},
      {"password_file", &password_file},
  };
  for (const auto& [name, target] : texts) {
    auto text = text_of(parameters, name);
    if (!text) return fail(std::move(text.error()));
    *target = std::move(*text);
  }
  if (!password_file.empty()) {
    auto password = first_line_of(password_file);
    if (!password) return fail(std::move(password.error()));
    options.password = std::move(*password);
  }
  return options;
}

HandlerTask create_etcd(net::EpollLoop& loop, Machine& machine, const Parameters& parameters,
                        Environment& environment) {
  auto parts = co_await begin_parts(machine, parameters, environment);
  if (!parts) co_return fail(std::move(parts.error()));
  auto options = etcd_options(parameters);
  if (!options) co_return fail(std::move(options.error()));
  const auto connection = std::make_shared<Connection>();
  auto client = co_await etcd::connect(loop, environment.random, std::move(*options));
  if (!client) co_return fail(std::move(client.error()));
  connection->client = std::move(*client);
  connection->backend = etcd::make_backend(*connection->client, parts->settings.run_id);

  SharedDriverOptions driver_options;
  driver_options.report = reporter(environment, *parts);
  parts->driver = make_shared_driver(environment.loop, environment.random, *connection->backend,
                                     parts->settings, parts->node, std::move(driver_options));
  parts->foundation = connection;
  parts->round_store = [connection](std::string prefix) -> std::shared_ptr<store::Store> {
    // Shared by the handler and whoever got the store in an Info.
    struct View {
      std::shared_ptr<Connection> connection;
      std::unique_ptr<store::Store> store;
    };
    auto view = std::make_shared<View>();
    view->connection = connection;
    view->store = etcd::make_store(
        *connection->client, fmt::format("{}/store/{}/", connection->client->prefix(), prefix));
    return {view, view->store.get()};
  };
  co_return make_dynamic_handler(environment, std::move(*parts));
}

}  // namespace muster::backends
