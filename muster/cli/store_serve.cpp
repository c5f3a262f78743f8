#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/cli/arguments.h"
#include "muster/cli/exit_status.h"
#include "muster/cli/store_commands.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/rendezvous/host.h"
#include "muster/store/server.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <malloc.h>
#include <map>
#include <memory>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace muster::cli {
namespace {

struct ServeOptions {
  std::string host;
  int port = 29500;
  std::string port_file;
  std::vector<std::string> namespaces;
  std::string log_level = "info";
  bool json = false;
  store::ServerOptions server;
};

// Written under another name and renamed, so that whoever waits for the file never reads half of
// it.
Result<> write_port_file(const std::string& path, int port) {
  const std::string draft = fmt::format("{}.{}", path, ::getpid());
  std::FILE* file = std::fopen(draft.c_str(), "we");
  bool written = file != nullptr && std::fputs(fmt::format("{}\n", port).c_str(), file) >= 0;
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  if (written && std::rename(draft.c_str(), path.c_str()) == 0) return {};
  const int error = errno;
  ::unlink(draft.c_str());
  return fail(ErrorKind::Invalid, fmt::format("cannot write the port file {}: {}", log::quote(path),
                                              describe_errno(error)));
}

// "NAME=PORT" of --namespace.
Result<std::pair<std::string, int>> parse_namespace(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0) {
    return fail(ErrorKind::Invalid,
                fmt::format("--namespace {}: write NAME=PORT, with port 0 for any free one", text));
  }
  const auto endpoint = net::parse_endpoint(":" + text.substr(equals + 1), 0);
  if (!endpoint)
    return fail(ErrorKind::Invalid,
                fmt::format("--namespace {}: {}", text, endpoint.error().message));
  return std::make_pair(text.substr(0, equals), endpoint->port);
}

struct Listening {
  std::string namespace_name;
  int port = 0;
};

void announce(const ServeOptions& options, const std::vector<Listening>& ports) {
  if (options.json) {
    boost::json::object namespaces;
    for (const Listening& entry : ports) {
      if (!entry.namespace_name.empty()) namespaces[entry.namespace_name] = entry.port;
    }
    boost::json::object line{{"port", ports.front().port}, {"pid", ::getpid()}};
    if (!namespaces.empty()) line["namespaces"] = namespaces;
    fmt::print("{}\n", boost::json::serialize(line));
  } else {
    fmt::print("muster store {} serving on {} port {} (pid {})\n", MUSTER_VERSION,
               options.host.empty() ? "every address," : options.host, ports.front().port,
               ::getpid());
    for (const Listening& entry : ports) {
      if (!entry.namespace_name.empty())
        fmt::print("  namespace {} on port {}\n", entry.namespace_name, entry.port);
    }
  }
  std::fflush(stdout);
}

// Ends the loop at SIGINT or SIGTERM. The signals must have been blocked before any thread started.
class StopSignals {
 public:
  explicit StopSignals(net::EpollLoop& loop)
      : fd_(make()), watch_(loop, fd_.get(), [this, &loop](std::uint32_t) {
          signalfd_siginfo info{};
          if (::read(fd_.get(), &info, sizeof info) == sizeof info) {
            log::info("store", "stopping signal={}", ::strsignal(static_cast<int>(info.ssi_signo)));
            loop.stop();
          }
        }) {
    watch_.want(EPOLLIN);
  }

 private:
  static Fd make() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    return Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  Fd fd_;
  net::FdWatch watch_;
};

int report(const Error& error) {
  fmt::print(stderr, "muster: {}\n", error.message);
  return exit_status_of(error.kind);
}

int serve(const ServeOptions& options) {
  log::Level level = log::Level::Info;
  log::parse_level(options.log_level, level);
  log::set_level(level);
  net::raise_descriptor_limit();
  // Buffers for large values come and go with every request; without this the C library would
  // return their pages to the kernel each time and fault them in again for the next.
  ::mallopt(M_MMAP_THRESHOLD, 4 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 64 << 20);
  net::EpollLoop loop;
  const StopSignals signals(loop);
  net::TcpTransport transport(loop);
  Random random = Random::from_system();
  rendezvous::Host rendezvous(loop, random);
  store::Server server(loop, options.server);
  server.add_service(store::ServiceId::Rendezvous, rendezvous);
  server.hub().set_description(
      {{"server", "muster"}, {"version", MUSTER_VERSION}, {"pid", fmt::to_string(::getpid())}});

  std::vector<Listening> ports = {{"", options.port}};
  for (const std::string& text : options.namespaces) {
    const auto parsed = parse_namespace(text);
    if (!parsed) {
      report(parsed.error());
      return kExitUsage;
    }
    ports.push_back({parsed->first, parsed->second});
  }
  for (Listening& entry : ports) {
    const auto port =
        server.listen(transport, net::Endpoint{options.host, entry.port}, entry.namespace_name);
    if (!port) {
      fmt::print(stderr, "muster: {}; choose another --port, or 0 for any free one\n",
                 port.error().message);
      return kExitFailed;
    }
    entry.port = *port;
  }
  announce(options, ports);
  if (!options.port_file.empty()) {
    if (const auto written = write_port_file(options.port_file, ports.front().port); !written) {
      return report(written.error());
    }
  }
  loop.run();
  return kExitOk;
}

}  // namespace

void add_store_serve(CLI::App& store, int& exit_status) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command =
      store.add_subcommand("serve", "Serve a store to PyTorch and Muster clients until stopped");
  command->add_option("--host", options->host,
                      "Address or name to listen on (default: every address, IPv4 and IPv6)");
  command->add_option("--port", options->port, "Port; 0 takes any free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  command->add_option("--port-file", options->port_file,
                      "Write the port here once the store is ready");
  command
      ->add_option("--namespace", options->namespaces,
                   "Serve a key space of its own on another port: NAME=PORT")
      ->type_name("NAME=PORT");
  add_size(*command, "--max-memory", options->server.hub.memory_bytes_max,
           "Limit of stored and buffered data")
      ->default_str("4G");
  command
      ->add_option("--max-connections", options->server.connections_max,
                   "More wait until others close")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_size(*command, "--max-key", options->server.hub.limits.key_bytes, "Longest key")
      ->default_str("8K");
  add_size(*command, "--max-value", options->server.hub.limits.value_bytes,
           "Longest value in one request")
      ->default_str("8M");
  command->add_option("--log-level", options->log_level, "What is written to standard error")
      ->capture_default_str()
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}));
  command->add_flag("--json", options->json, "Announce the port as a line of JSON");
  command->callback([options, &exit_status] { exit_status = serve(*options); });
}

}  // namespace muster::cli
