// Muster's RPC in the RPC comparison, with the command line of program.h. Transports: tcp and shm.
//
// Used as programs use it: rpc::init, rpc::call, rpc::async. The no-op is an inline function; the
// case noop-pool calls one that runs in the server's pool. The server hosts the store in which the
// two find each other; the address is that of the store.
#include "bench/rpc/program.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/rpc/network_agent.h"
#include "muster/rpc/rpc.h"
#include "muster/store/server.h"

#include <fmt/format.h>

#include <cstdio>
#include <deque>
#include <fstream>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace muster::bench {
namespace {

const rpc::Procedure<void()> kNoop("noop");
const rpc::Procedure<void()> kNoopInPool("noop in pool");
const rpc::Procedure<rpc::Buffer(rpc::Buffer)> kEcho("echo");

template <typename T>
void check(const T& outcome) {
  if (!outcome) throw std::runtime_error(outcome.error().message);
}

class StoreHost {
 public:
  StoreHost() {
    std::promise<int> port;
    auto known = port.get_future();
    thread_ = std::thread([this, &port] {
      net::TcpTransport transport(loop_);
      store::Server server(loop_, {});
      const auto listening = server.listen(transport, {"127.0.0.1", 0}, "");
      port.set_value(listening ? *listening : 0);
      loop_.run();
    });
    address_ = fmt::format("127.0.0.1:{}", known.get());
  }
  ~StoreHost() {
    loop_.stop();
    thread_.join();
  }
  const std::string& address() const { return address_; }

 private:
  net::EpollLoop loop_;
  std::thread thread_;
  std::string address_;
};

rpc::InitOptions init_options(const RpcOptions& options, std::string name, std::int64_t rank,
                              const std::string& store) {
  rpc::InitOptions init;
  init.name = std::move(name);
  init.rank = rank;
  init.dynamic = true;
  init.store = store;
  init.shared_memory = options.transport == "shm";
  init.thread_count = std::max<std::size_t>(options.threads, 1);
  return init;
}

void serve(const RpcOptions& options) {
  check(rpc::define(kNoop, [] {}, {.run = rpc::Run::Inline}));
  check(rpc::define(kNoopInPool, [] {}));
  check(rpc::define(kEcho, [](rpc::Buffer buffer) { return buffer; }, {.run = rpc::Run::Inline}));
  const StoreHost store;
  check(rpc::init(init_options(options, "server", 0, store.address())));
  announce(store.address());
  wait_for_end_of_input();
  check(rpc::shutdown({.graceful = false}));
}

class MusterCaller final : public Caller {
 public:
  explicit MusterCaller(const RpcOptions& options)
      : noop_(options.case_name == "noop-pool" ? kNoopInPool : kNoop) {
    // One agent for all threads.
    static const bool kStarted = [&] {
      const auto id = ::getpid() % 30'000 + 1;
      check(rpc::init(init_options(options, fmt::format("client{}", id), id, options.address)));
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

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  using namespace muster::bench;
  RpcProgram program;
  program.serve = serve;
  program.connect = [](const RpcOptions& options) -> std::unique_ptr<Caller> {
    return std::make_unique<MusterCaller>(options);
  };
  return run_program(argc, argv, program);
}
