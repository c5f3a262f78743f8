// The end of an agent that several threads ask for.
#include "muster/rpc/network_agent.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::options_for;
using testing::StoreHost;
using testing::Worker;

constexpr Duration kPatience = 60s;

TEST(AgentEnd, OfAGroupIsOverAtOnceWhenTheAgentHasStopped) {
  const StoreHost store;
  Worker worker;
  ASSERT_TRUE(worker.start(options_for("worker0", 0, 1), store, kPatience));
  worker.agent->shutdown();
  worker.agent->end_group();
  worker.agent->wait_for_peers_to_leave();
}

// As a program does that is interrupted while it shuts down.
TEST(AgentEnd, OfAGroupIsOverWhenAnotherThreadStopsTheAgentMeanwhile) {
  for (int round = 0; round < 50; ++round) {
    const StoreHost store;
    Worker worker;
    ASSERT_TRUE(worker.start(options_for("worker0", 0, 1), store, kPatience));
    auto ending = std::async(std::launch::async, [&] {
      worker.agent->end_group();
      worker.agent->wait_for_peers_to_leave();
    });
    worker.agent->shutdown();
    EXPECT_EQ(ending.wait_for(kPatience), std::future_status::ready);
  }
}

// Threads that are started later may have the id that one of the agent's had.
TEST(AgentEnd, MayBeSeenByAnyThreadThatHasTheLastReference) {
  const StoreHost store;
  for (int round = 0; round < 20; ++round) {
    Worker worker;
    ASSERT_TRUE(worker.start(options_for("worker0", 0, 1), store, kPatience));
    worker.agent->shutdown();
    std::promise<void> go;
    const std::shared_future<void> gone = go.get_future().share();
    std::vector<std::thread> threads;
    for (int index = 0; index < 4; ++index) {
      threads.emplace_back([gone, agent = worker.agent]() mutable {
        gone.wait();
        agent->shutdown();
        agent.reset();
      });
    }
    worker.agent.reset();
    go.set_value();
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace muster::rpc
