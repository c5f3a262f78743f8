// Workers of one group in one process, with references: each has an agent, functions and a keeper
// of its own. Real sockets or shared memory, real threads.
#pragma once

#include "muster/rpc/function_server.h"
#include "muster/rpc/functions.h"
#include "muster/rpc/network_agent.h"
#include "muster/rref/keeper.h"
#include "muster/rref/rref.h"
#include "tests/rpc/store_host.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rref::testing {

struct Worker {
  ~Worker() { stop(); }

  Result<> start(rpc::AgentOptions options, const rpc::testing::StoreHost& store) {
    keeper = std::make_shared<Keeper>(options.self.id(), ids);
    server = std::make_unique<rpc::FunctionServer>(functions, 4, options.self.id(), keeper);
    // Others may call before all of what follows is done.
    server->close();
    auto started = rpc::NetworkAgent::start(std::move(options), store.opener(), *server,
                                            std::chrono::seconds(60));
    if (!started) return fail(started.error());
    agent = std::move(*started);
    agent->set_references(keeper);
    keeper->attach(agent);
    server->open();
    return {};
  }
  void stop() {
    if (keeper) leaks = keeper->stop();
    if (agent) agent->shutdown();
    if (server) server->stop();
    keeper.reset();
    agent.reset();
  }
  const std::string& name() const { return agent->self().name(); }

  IdSource ids;
  rpc::Functions functions;
  std::shared_ptr<Keeper> keeper;
  std::unique_ptr<rpc::FunctionServer> server;
  std::shared_ptr<rpc::NetworkAgent> agent;
  std::string leaks;
};

using Workers = std::vector<std::unique_ptr<Worker>>;

// Starts workers "worker0" … at once and waits until all have come. `prepare` adds functions.
inline Workers start_group(const rpc::testing::StoreHost& store, int count,
                           const std::function<void(Worker&)>& prepare,
                           const std::function<void(rpc::AgentOptions&)>& adjust) {
  Workers workers;
  std::vector<std::future<Result<>>> starting;
  for (int rank = 0; rank < count; ++rank) {
    workers.push_back(std::make_unique<Worker>());
    Worker* const worker = workers.back().get();
    prepare(*worker);
    rpc::AgentOptions options(
        rpc::WorkerInfo::create_member("worker" + std::to_string(rank), rank).value());
    options.world_size = count;
    adjust(options);
    starting.push_back(std::async(
        std::launch::async, [worker, options, &store] { return worker->start(options, store); }));
  }
  for (auto& one : starting) {
    const Result<> came = one.get();
    EXPECT_TRUE(came) << (came ? "" : came.error().message);
  }
  return workers;
}

}  // namespace muster::rref::testing
