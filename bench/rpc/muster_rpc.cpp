// Muster's RPC in the RPC comparison, with the command line of program.h. Transports: tcp and shm.
//
// Used as programs use it: rpc::init, rpc::call, rpc::async. The no-op is an inline function; the
// case noop-pool calls one that runs in the server's pool. The server hosts the store in which the
// two find each other; the address is that of the store.
#include "bench/rpc/program.h"
#include "muster/net/tcp.h"
#include "muster/rpc.h"
#include "muster/rpc/network_agent.h"
#include "muster/rpc/open_store.h"
#include "tests/rpc/store_host.h"

#include <fmt/format.h>

#include <cstdio>
#include <deque>
#include <fcntl.h>
#include <fstream>
#include <future>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace muster::bench {
namespace {

constexpr Duration kStartPatience = std::chrono::seconds(60);
const rpc::Procedure<void()> kNoop("noop");
const rpc::Procedure<void()> kNoopInPool("noop in pool");
const rpc::Procedure<rpc::Buffer(rpc::Buffer)> kEcho("echo");

template <typename T>
void check(const T& outcome) {
  if (!outcome) throw std::runtime_error(outcome.error().message);
}

using rpc::testing::StoreHost;

std::string address_of(const StoreHost& store) { return fmt::format("127.0.0.1:{}", store.port()); }

// A group of two: the server, and the client of this measurement.
rpc::InitOptions init_options(const RpcOptions& options, std::int64_t rank,
                              const std::string& store) {
  rpc::InitOptions init;
  init.name = rank == 0 ? "server" : "client";
  init.rank = rank;
  init.world_size = 2;
  init.store = store;
  init.shared_memory = options.transport == "shm";
  init.spins = options.kind != "blocking";
  init.thread_count = std::max<std::size_t>(options.threads, 1);
  return init;
}

void serve(const RpcOptions& options) {
  check(rpc::define(kNoop, [] {}, {.run = rpc::Run::Inline}));
  check(rpc::define(kNoopInPool, [] {}));
  check(rpc::define(kEcho, [](rpc::Buffer buffer) { return buffer; }, {.run = rpc::Run::Inline}));
  const StoreHost store;
  // The client of this measurement is the other worker, so first it must know where to come.
  announce(address_of(store));
  check(rpc::init(init_options(options, 0, address_of(store))));
  wait_for_end_of_input();
  check(rpc::shutdown({.graceful = false}));
}

class MusterCaller final : public Caller {
 public:
  explicit MusterCaller(const RpcOptions& options)
      : noop_(options.case_name == "noop-pool" ? kNoopInPool : kNoop) {
    // One agent for all threads.
    static const bool kStarted = [&] {
      check(rpc::init(init_options(options, 1, options.address)));
      return true;
    }();
    (void)kStarted;
    noop();
    const std::string expected = options.transport == "shm" ? "shared memory" : "tcp";
    const auto agent = std::dynamic_pointer_cast<rpc::NetworkAgent>(rpc::current_agent());
    if (agent->kind_of_connection("server") != expected) {
      throw std::runtime_error("the connection is not over " + expected);
    }
  }

  void noop() override { check(rpc::call("server", noop_)); }

  void echo(std::span<const std::byte> payload) override {
    reply_ = {};
    auto reply = rpc::call("server", kEcho, rpc::Buffer::borrow(payload));
    check(reply);
    reply_ = std::move(*reply);
  }

  std::span<const std::byte> reply() const override { return reply_.bytes(); }

  std::uint64_t keep_in_flight(std::size_t count, RpcClock::time_point ends) override {
    std::uint64_t answered = 0;
    std::deque<rpc::Future<void>> calls;
    while (true) {
      const bool goes_on = RpcClock::now() < ends;
      while (goes_on && calls.size() < count) calls.push_back(rpc::async("server", noop_));
      if (calls.empty()) return answered;
      check(calls.front().wait());
      calls.pop_front();
      ++answered;
      // Those that have come as well.
      while (!calls.empty() && calls.front().done()) {
        check(calls.front().wait());
        calls.pop_front();
        ++answered;
      }
    }
  }

 private:
  const rpc::Procedure<void()>& noop_;
  rpc::Buffer reply_;
};

// ---- one process with many peers ----------------------------------------------------------------

rpc::OpenStore opener(const std::string& address) {
  const auto endpoint = net::parse_endpoint(address, 0);
  check(endpoint);
  return [endpoint](net::EpollLoop& loop) {
    return rpc::open_store(loop, *endpoint, "peers", kStartPatience);
  };
}

rpc::AgentOptions agent_options(const RpcOptions& options, std::size_t rank) {
  rpc::AgentOptions agent(
      rpc::WorkerInfo::create_member(fmt::format("worker{}", rank), static_cast<int>(rank))
          .value());
  agent.world_size = static_cast<std::int64_t>(options.count) + 1;
  agent.uses_shared_memory = options.transport == "shm";
  return agent;
}

// The peers, in a process of their own, with the store. Ends when its input does.
[[noreturn]] void be_peers(const RpcOptions& options, int announce_to) {
  net::raise_descriptor_limit();
  const StoreHost store;
  const std::string line = address_of(store) + "\n";
  if (::write(announce_to, line.data(), line.size()) < 0) std::_Exit(1);
  rpc::Functions functions;
  check(functions.add(kNoop.name(), [] {}, {.run = rpc::Run::Inline}));
  rpc::FunctionServer server(functions, 1, 0);
  std::vector<std::shared_ptr<rpc::NetworkAgent>> agents(options.count);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < options.count; ++rank) {
    threads.emplace_back([&, rank] {
      auto started = rpc::NetworkAgent::start(agent_options(options, rank),
                                              opener(address_of(store)), server, kStartPatience);
      if (!started) std::_Exit(1);
      agents[rank] = std::move(*started);
    });
  }
  for (std::thread& thread : threads) thread.join();
  wait_for_end_of_input();
  std::_Exit(0);
}

double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0;
  std::size_t resident = 0;
  file >> all >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

RpcResult measure_peers(const RpcOptions& options) {
  int address_pipe[2] = {-1, -1};
  int life_pipe[2] = {-1, -1};
  if (::pipe2(address_pipe, O_CLOEXEC) != 0 || ::pipe2(life_pipe, O_CLOEXEC) != 0) {
    throw std::runtime_error("no pipes");
  }
  // Nothing runs here yet: what is forked is a process with one thread.
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    ::dup2(life_pipe[0], STDIN_FILENO);
    ::close(life_pipe[1]);
    be_peers(options, address_pipe[1]);
  }
  ::close(life_pipe[0]);
  ::close(address_pipe[1]);
  std::string address;
  for (char byte = 0; ::read(address_pipe[0], &byte, 1) == 1 && byte != '\n';) address += byte;
  net::raise_descriptor_limit();
  RpcResult result;
  {
    rpc::Functions functions;
    rpc::FunctionServer server(functions, 1, 0);
    auto agent = rpc::NetworkAgent::start(agent_options(options, options.count), opener(address),
                                          server, kStartPatience);
    check(agent);
    for (std::size_t rank = 0; rank < options.count; ++rank) {
      const std::string name = fmt::format("worker{}", rank);
      auto request = rpc::encode_call<void()>(kNoop.name());
      check((*agent)->send(name, std::move(*request)).wait());
      if ((*agent)->kind_of_connection(name).empty()) throw std::runtime_error("not connected");
    }
    result.memory_bytes = resident_bytes();
    (*agent)->shutdown();
  }
  ::close(life_pipe[1]);
  ::waitpid(child, nullptr, 0);
  return result;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  using namespace muster::bench;
  RpcProgram program;
  program.serve = serve;
  program.connect = [](const RpcOptions& options) -> std::unique_ptr<Caller> {
    return std::make_unique<MusterCaller>(options);
  };
  program.other = [](const RpcOptions& options) -> std::optional<RpcResult> {
    if (options.case_name != "peers") return std::nullopt;
    return measure_peers(options);
  };
  return run_program(argc, argv, program);
}
