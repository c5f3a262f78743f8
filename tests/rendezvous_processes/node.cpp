// One node of a rendezvous as a process, for tests that start, stop and kill real ones.
//
//   rendezvous_node --backend B --endpoint E --run-id R --min N --max N [--conf K=V,…]
//                   [--local-addr A] [--elastic]
//
// Prints one line of JSON for everything that happens: joined, status, error, events. Reads
// commands from standard input, one a line: join, leave, close, shutdown, waiting, closed, set KEY
// VALUE, get KEY, exit. With --elastic it joins by itself, and again whenever its status says so,
// as an agent would.
#include "muster/backends/builtin.h"
#include "muster/base/log.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/rendezvous/options.h"
#include "muster/rendezvous/registry.h"

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <deque>
#include <fcntl.h>
#include <string>
#include <sys/epoll.h>
#include <unistd.h>
#include <utility>

namespace muster::tests {
namespace {

namespace json = boost::json;
using namespace rendezvous;
using namespace std::chrono_literals;

void print(json::object line) {
  fmt::print("{}\n", json::serialize(line));
  std::fflush(stdout);
}

void print_error(std::string_view what, const Error& error) {
  print({{"event", "error"},
         {"of", what},
         {"kind", name_of(error.kind)},
         {"message", error.message}});
}

// Lines of standard input, without blocking the loop.
class Input {
 public:
  explicit Input(net::EpollLoop& loop)
      : loop_(loop), watch_(loop, STDIN_FILENO, [this](std::uint32_t) { read(); }) {
    ::fcntl(STDIN_FILENO, F_SETFL, ::fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    watch_.want(EPOLLIN);
  }

  // "exit" at the end of the input.
  Task<std::string> next() {
    if (lines_.empty()) {
      Oneshot<bool> arrived(loop_);
      arrived_ = &arrived;
      co_await arrived;
      arrived_ = nullptr;
    }
    std::string line = std::move(lines_.front());
    lines_.pop_front();
    co_return line;
  }

 private:
  void read() {
    char buffer[4096];
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (count > 0) text_.append(buffer, static_cast<std::size_t>(count));
    if (count == 0) {
      watch_.want(0);
      lines_.push_back("exit");
    }
    for (std::size_t end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      lines_.push_back(text_.substr(0, end));
      text_.erase(0, end + 1);
    }
    if (!lines_.empty() && arrived_ != nullptr) arrived_->set(true);
  }

  net::EpollLoop& loop_;
  net::FdWatch watch_;
  std::string text_;
  std::deque<std::string> lines_;
  Oneshot<bool>* arrived_ = nullptr;
};

class PrintingSink final : public EventSink {
 public:
  void record(const Event& event) override {
    print({{"event", "record"},
           {"name", event.name},
           {"state", name_of(event.node_state)},
           {"message", event.message}});
  }
};

class Node {
 public:
  Node(Loop& loop, Handler& handler, Input& input, bool elastic)
      : loop_(loop), handler_(handler), input_(input), elastic_(elastic) {}

  Task<int> run() {
    if (elastic_) scope_.start(live());
    for (;;) {
      const std::string line = co_await input_.next();
      const std::size_t space = line.find(' ');
      const std::string command = line.substr(0, space);
      const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
      if (command == "exit") co_return 0;
      co_await obey(command, rest);
    }
  }

 private:
  Task<void> obey(std::string command, std::string rest) {
    if (command == "join") {
      scope_.start(join_once());
    } else if (command == "leave") {
      auto left = co_await handler_.leave();
      left ? print({{"event", "left"}}) : print_error("leave", left.error());
    } else if (command == "close") {
      auto closed = co_await handler_.set_closed();
      closed ? print({{"event", "closed"}}) : print_error("close", closed.error());
    } else if (command == "shutdown") {
      auto down = co_await handler_.shutdown();
      down ? print({{"event", "shutdown"}, {"ok", *down}}) : print_error("shutdown", down.error());
    } else if (command == "waiting") {
      auto count = co_await handler_.num_nodes_waiting();
      count ? print({{"event", "waiting"}, {"count", *count}})
            : print_error("waiting", count.error());
    } else if (command == "closed") {
      auto closed = co_await handler_.is_closed();
      closed ? print({{"event", "is_closed"}, {"closed", *closed}})
             : print_error("closed", closed.error());
    } else if (command == "set") {
      const std::size_t space = rest.find(' ');
      auto done = co_await info_.store->set(rest.substr(0, space), rest.substr(space + 1));
      done ? print({{"event", "set"}}) : print_error("set", done.error());
    } else if (command == "get") {
      const TimePoint deadline = loop_.now() + 30s;
      auto value = co_await info_.store->get(rest, deadline);
      value ? print({{"event", "value"}, {"value", *value}}) : print_error("get", value.error());
    } else {
      print({{"event", "unknown"}, {"command", command}});
    }
  }

  Task<void> join_once() { (void)co_await join(); }

  Task<bool> join() {
    print({{"event", "joining"}});
    auto info = co_await handler_.next_rendezvous();
    if (!info) {
      print_error("join", info.error());
      co_return false;
    }
    info_ = *info;
    print({{"event", "joined"},
           {"round", info->round},
           {"rank", info->rank},
           {"world_size", info->world_size},
           {"master_addr", info->bootstrap.master_addr},
           {"master_port", info->bootstrap.master_port},
           {"use_agent_store", handler_.use_agent_store()}});
    co_return true;
  }

  // As an agent does.
  Task<void> live() {
    for (;;) {
      const bool joined = co_await join();
      if (!joined) co_return;
      Status status = handler_.status();
      while (status.waiting == 0 && !status.lost && status.member) {
        auto changed = co_await handler_.wait_status(status, kNever);
        if (!changed) co_return;
        status = *changed;
      }
      print({{"event", "status"},
             {"waiting", status.waiting},
             {"lost", status.lost},
             {"closed", status.closed},
             {"member", status.member}});
    }
  }

  Loop& loop_;
  Handler& handler_;
  Input& input_;
  const bool elastic_;
  Info info_;
  TaskScope scope_;
};

struct Options {
  Parameters parameters;
  std::string config;
  bool elastic = false;
};

Task<int> run(net::EpollLoop& loop, Random& random, backends::Machine& machine, Options options) {
  Registry registry;
  backends::add_builtin_backends(registry, loop, machine);
  auto config = parse_options(options.config);
  if (!config) {
    print_error("options", config.error());
    co_return 1;
  }
  options.parameters.config = std::move(*config);
  auto parameters = Parameters::create(options.parameters);
  if (!parameters) {
    print_error("parameters", parameters.error());
    co_return 1;
  }
  PrintingSink sink;
  Environment environment{loop, random, &sink};
  auto handler = co_await registry.create(*parameters, environment);
  if (!handler) {
    print_error("create", handler.error());
    co_return 1;
  }
  print({{"event", "ready"}, {"pid", ::getpid()}});
  Input input(loop);
  Node node(loop, **handler, input, options.elastic);
  co_return co_await node.run();
}

int start(int count, char** words) {
  CLI::App program("One node of a rendezvous, for tests");
  Options options;
  std::string log_level = "warn";
  program.add_option("--backend", options.parameters.backend)->required();
  program.add_option("--endpoint", options.parameters.endpoint);
  program.add_option("--run-id", options.parameters.run_id)->required();
  program.add_option("--min", options.parameters.min_nodes);
  program.add_option("--max", options.parameters.max_nodes);
  program.add_option("--local-addr", options.parameters.local_addr);
  program.add_option("--conf", options.config);
  program.add_option("--log-level", log_level);
  program.add_flag("--elastic", options.elastic);
  CLI11_PARSE(program, count, words);
  log::Level level = log::Level::Warn;
  log::parse_level(log_level, level);
  log::set_level(level);
  net::EpollLoop loop;
  net::TcpTransport transport(loop);
  backends::SystemMachine machine(loop, transport);
  Random random = Random::from_system();
  return loop.block_on(run(loop, random, machine, std::move(options)));
}

}  // namespace
}  // namespace muster::tests

int main(int count, char** words) { return muster::tests::start(count, words); }
