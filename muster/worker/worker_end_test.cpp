// The end of an agent, while others still use it or have not finished yet.

#include "muster/rpc/call.h"
#include "muster/rpc/network_agent.h"
#include "muster/rpc/outgoing.h"
#include "muster/worker/worker.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::start_static_group;
using testing::StoreHost;
using testing::Worker;

using Add = std::int64_t(std::int64_t, std::int64_t);

void add_functions(Worker& worker) {
  ASSERT_TRUE(worker.functions.add("add", [](std::int64_t a, std::int64_t b) { return a + b; }));
}

// The answer comes when agent and server are long gone.
TEST(AgentEnd, LeavesNothingThatALateAnswerCouldTouch) {
  StoreHost store;
  std::optional<Promise<std::int64_t>> late;
  std::promise<void> asked;
  Future<std::int64_t> outcome = Future<std::int64_t>::ready(0);
  {
    auto workers = start_static_group(store, 2);
    ASSERT_TRUE(workers[1]->functions.add("later", [&] {
      late.emplace();
      Future<std::int64_t> future = late->future();
      asked.set_value();
      return future;
    }));
    outcome = workers[0]->async<std::int64_t()>("worker1", 0.0, "later");
    asked.get_future().wait();
  }
  ASSERT_FALSE(outcome.wait());
  late->set(5);
}

// A worker that has left the group, and somebody who looked it up just before.
TEST(AgentEnd, RefusesCallsToAWorkerThatHasLeft) {
  net::EpollLoop loop;
  Calls calls([] {});
  Surroundings around;
  around.loop = &loop;
  around.calls = &calls;
  around.next_connection = [] { return PeerId{1}; };
  const auto info = WorkerInfo::create_member("worker1", 1).value();
  const auto outgoing =
      std::make_shared<Outgoing>(around, info, 1, Member{info, 2, "127.0.0.1:1", ""});
  outgoing->close({CallErrorKind::Unreachable, "it has left", "", true});
  Pool pool("test", 1);
  Promise<Message> promise;
  const auto future = promise.future();
  const auto as_it_is = [](CallResult<Message> outcome) { return outcome; };
  outgoing->submit({MessageType::ScriptCall, kNoMessageId, "", {}}, Duration::zero(), kNever,
                   std::make_unique<PromiseSink<Message, decltype(as_it_is)>>(std::move(promise),
                                                                              pool, as_it_is));
  ASSERT_TRUE(future.done()) << "it would wait for ever";
  ASSERT_FALSE(future.wait());
  EXPECT_EQ(future.wait().error().message, "it has left");
  EXPECT_FALSE(future.wait().error().sent);
}

TEST(AgentEnd, EndsEveryCallThatOtherThreadsAreMaking) {
  StoreHost store;
  for (const bool shares : {false, true}) {
    const auto choose = [&](AgentOptions& options) { options.uses_shared_memory = shares; };
    auto workers = start_static_group(store, 2, choose, add_functions);
    std::atomic<std::int64_t> done = 0;
    std::vector<std::thread> threads;
    for (int index = 0; index < 4; ++index) {
      threads.emplace_back([&, index] {
        for (std::int64_t number = 0;; ++number) {
          // The deadlines get earlier, so that each call sets the timer anew.
          const double timeout = 1000.0 - static_cast<double>(number) * 0.001 - index;
          const auto sum = workers[0]->async<Add>("worker1", timeout, "add", number, 1).wait();
          if (!sum) {
            EXPECT_TRUE(sum.error().kind == CallErrorKind::Rejected ||
                        sum.error().kind == CallErrorKind::Unreachable)
                << sum.error().message;
            return;
          }
          EXPECT_EQ(*sum, number + 1);
          ++done;
        }
      });
    }
    const TimePoint deadline = SystemClock().now() + 60s;
    while (done < 100 && SystemClock().now() < deadline) std::this_thread::yield();
    EXPECT_GE(done, 100);
    workers[0]->agent->shutdown();
    for (auto& thread : threads) thread.join();
  }
}

// Also those calls are late by which workers find out that there are none.
TEST(GroupEnd, ComesToRestThoughEveryCallIsLate) {
  StoreHost store;
  const auto be_late = [](AgentOptions& options) {
    options.faults = parse_faults("delay:SCRIPT_CALL:for=5ms").value();
  };
  auto workers = start_static_group(store, 3, be_late, add_functions);
  ASSERT_TRUE(workers[0]->async<Add>("worker1", 0.0, "add", 1, 2).wait());
  const std::vector<std::string> names{"worker0", "worker1", "worker2"};
  std::vector<std::future<CallResult<>>> waiting;
  for (const auto& worker : workers) {
    waiting.push_back(std::async(std::launch::async, [&worker, &names] {
      return worker->gather->quiesce(*worker->agent, names, 20.0);
    }));
  }
  for (auto& one : waiting) {
    const auto outcome = one.get();
    EXPECT_TRUE(outcome) << outcome.error().message;
  }
}

// ---- rpc::shutdown ------------------------------------------------------------------------------

const Procedure<bool()> kStop("agent end test, stop");
const Procedure<std::int64_t()> kHold("agent end test, hold");

// What `hold` answers with, later.
Promise<std::int64_t>& gate() {
  static Promise<std::int64_t> promise;
  return promise;
}

void define_all() {
  static const bool kDone = [] {
    EXPECT_TRUE(define(kStop, [] { return shutdown({.timeout = 10s}).has_value(); }));
    EXPECT_TRUE(define(kHold, [] { return gate().future(); }));
    return true;
  }();
  (void)kDone;
  gate() = Promise<std::int64_t>();
}

InitOptions alone(const StoreHost& store) {
  InitOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.store = "127.0.0.1:" + std::to_string(store.port());
  return options;
}

TEST(RpcShutdown, IsRefusedInsideOfWhatItWouldWaitFor) {
  StoreHost store;
  define_all();
  ASSERT_TRUE(init(alone(store)));
  const auto outcome = call("worker0", kStop);
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_FALSE(*outcome);
  std::promise<CallResult<>> in_callback;
  const auto held = async("worker0", kHold);
  held.on_done([&](const auto&) { in_callback.set_value(shutdown({.timeout = 10s})); });
  gate().set(1);
  const auto refused = in_callback.get_future().get();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, CallErrorKind::Rejected);
  EXPECT_TRUE(is_running());
  EXPECT_TRUE(shutdown());
}

// S167
TEST(RpcShutdown, HasEndedRpcHereThoughItsTimeWasOver) {
  StoreHost store;
  define_all();
  ASSERT_TRUE(init(alone(store)));
  const auto held = async(to("worker0").within(Duration::zero()), kHold);
  const auto outcome = shutdown({.timeout = 50ms});
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout);
  EXPECT_NE(outcome.error().message.find("1 calls of this worker are still under way"),
            std::string::npos)
      << outcome.error().message;
  EXPECT_FALSE(is_running());
  EXPECT_FALSE(held.wait());
  const auto after = call("worker0", kStop);
  ASSERT_FALSE(after);
  EXPECT_TRUE(after.error().message.starts_with("RPC has not been initialized"))
      << after.error().message;
  gate().set(1);
}

TEST(RpcShutdown, HappensOnceHoweverManyThreadsWantIt) {
  StoreHost store;
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(init(alone(store)));
    std::atomic<int> succeeded = 0;
    std::vector<std::thread> threads;
    for (int index = 0; index < 4; ++index) {
      threads.emplace_back([&] {
        if (shutdown()) ++succeeded;
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(succeeded, 1);
    EXPECT_FALSE(is_running());
  }
}

}  // namespace
}  // namespace muster::rpc
