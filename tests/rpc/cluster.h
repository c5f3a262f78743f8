// Workers of one group in one process, each with an agent of its own, and the store through which
// they meet: real sockets, real threads.
#pragma once

#include "muster/rpc/function_server.h"
#include "muster/rpc/functions.h"
#include "muster/rpc/gather.h"
#include "muster/rpc/network_agent.h"
#include "tests/rpc/store_host.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace muster::rpc::testing {

// One worker. Its functions may be added before and while it runs.
class Worker {
 public:
  ~Worker() { stop(); }

  Result<> start(AgentOptions options, const StoreHost& store, Duration patience,
                 std::size_t thread_count = 4) {
    gather = std::make_unique<Gather>(functions);
    gather->begin("test");
    server = std::make_unique<FunctionServer>(functions, thread_count, options.self.id());
    // Others may call before `agent` is there, which functions use.
    server->close();
    auto started = NetworkAgent::start(std::move(options), store.opener(), *server, patience);
    if (!started) return fail(started.error());
    agent = std::move(*started);
    server->open();
    return {};
  }
  void stop() {
    if (agent) agent->shutdown();
    if (server) server->stop();
  }

  template <typename F, typename... Args>
  auto async(std::string_view to, std::optional<double> timeout, std::string_view name,
             Args&&... args) {
    return async_as(static_cast<F*>(nullptr), to, timeout, name, std::forward<Args>(args)...);
  }
  template <typename F, typename... Args>
  auto call(std::string_view to, std::string_view name, Args&&... args) {
    return async<F>(to, std::nullopt, name, std::forward<Args>(args)...).wait();
  }

  Functions functions;
  std::unique_ptr<Gather> gather;
  std::unique_ptr<FunctionServer> server;
  std::shared_ptr<NetworkAgent> agent;

 private:
  template <typename R, typename... P, typename... Args>
  Future<R> async_as(R (*)(P...), std::string_view to, std::optional<double> timeout,
                     std::string_view name, Args&&... args) {
    Promise<R> promise;
    Future<R> future = promise.future();
    const DeviceRoute route = agent->route_to(to);
    auto request = encode_call<R(P...)>({.devices = &route}, name, P(std::forward<Args>(args))...);
    const auto decode = [support = agent->device_support()](CallResult<Message> outcome) {
      return decode_response<R>(std::move(outcome), {.device_support = support.get()});
    };
    auto sink = std::make_unique<PromiseSink<R, decltype(decode)>>(std::move(promise),
                                                                   agent->callbacks(), decode);
    if (request) {
      agent->submit(to, std::move(*request), timeout, std::move(sink));
    } else {
      agent->calls().refuse(std::move(sink),
                            {CallErrorKind::Rejected, request.error().message, "", false});
    }
    return future;
  }
};

inline AgentOptions options_for(std::string name, std::int64_t id,
                                std::optional<std::int64_t> world_size) {
  AgentOptions options(WorkerInfo::create_member(std::move(name), id).value());
  options.world_size = world_size;
  return options;
}

// Starts workers "worker0" … at once and waits until all have come.
inline std::vector<std::unique_ptr<Worker>> start_static_group(
    const StoreHost& store, int count, const std::function<void(AgentOptions&)>& adjust = {},
    const std::function<void(Worker&)>& prepare = {}) {
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::future<Result<>>> starting;
  for (int rank = 0; rank < count; ++rank) {
    workers.push_back(std::make_unique<Worker>());
    Worker* const worker = workers.back().get();
    if (prepare) prepare(*worker);
    AgentOptions options = options_for("worker" + std::to_string(rank), rank, count);
    if (adjust) adjust(options);
    starting.push_back(std::async(std::launch::async, [worker, options, &store] {
      return worker->start(options, store, std::chrono::seconds(60));
    }));
  }
  for (auto& one : starting) {
    const Result<> came = one.get();
    EXPECT_TRUE(came) << (came ? "" : came.error().message);
  }
  return workers;
}

}  // namespace muster::rpc::testing
