// A process that is not allowed any more threads: calls go on with those that there are, or fail.
#include "muster/rpc/pool.h"
#include "tests/net/no_new_threads.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using muster::testing::NoNewThreads;
using testing::options_for;
using testing::start_static_group;
using testing::StoreHost;
using testing::Worker;

constexpr Duration kPatience = 60s;

// Looks until it holds; false after a time that only a hang takes.
template <typename Holds>
bool comes_to_hold(const Holds& holds) {
  const TimePoint deadline = SystemClock().now() + kPatience;
  while (!holds()) {
    if (SystemClock().now() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(PoolWithoutThreads, LeavesWorkToTheThreadsThatThereAre) {
  Pool pool("test", 4);
  std::latch may_end(1);
  std::latch has_begun(1);
  std::atomic<int> count = 0;
  ASSERT_TRUE(pool.post([&] {
    has_begun.count_down();
    may_end.wait();
  }));
  has_begun.wait();
  {
    const NoNewThreads none;
    for (int index = 0; index < 3; ++index) EXPECT_TRUE(pool.post([&] { ++count; }));
    may_end.count_down();
    EXPECT_TRUE(comes_to_hold([&] { return count == 3; }));
  }
  pool.stop();
}

TEST(PoolWithoutThreads, RefusesWorkThatNobodyWouldEverDo) {
  Pool pool("test", 4);
  const auto held = std::make_shared<int>(5);
  {
    const NoNewThreads none;
    for (int index = 0; index < 3; ++index) EXPECT_FALSE(pool.post([held] { FAIL(); }));
    EXPECT_EQ(held.use_count(), 1) << "the work is kept";
    EXPECT_FALSE(pool.is_stopped());
    EXPECT_EQ(pool.idle_count(), 4U) << "as soon as there may be threads again";
  }
  std::promise<void> ran;
  ASSERT_TRUE(pool.post([&] { ran.set_value(); }));
  EXPECT_EQ(ran.get_future().wait_for(kPatience), std::future_status::ready);
  pool.stop();
}

// The one that waits would have had another in its place.
TEST(PoolWithoutThreads, GoesOnWithItsWorkWhenAThreadHasWaited) {
  Pool pool("test", 1);
  const Promise<> awaited;
  std::latch has_begun(1);
  std::latch may_wait(1);
  std::promise<void> ran;
  ASSERT_TRUE(pool.post([&] {
    has_begun.count_down();
    may_wait.wait();
    EXPECT_TRUE(awaited.future().wait());
  }));
  has_begun.wait();
  const NoNewThreads none;
  EXPECT_TRUE(pool.post([&] { ran.set_value(); }));
  may_wait.count_down();
  EXPECT_TRUE(comes_to_hold([&] { return pool.waiting_count() == 1; }));
  awaited.set({});
  EXPECT_EQ(ran.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST(PoolWithoutThreads, EndsThoughNoneWasEverStarted) {
  const NoNewThreads none;
  Pool pool("test", 1);
  EXPECT_FALSE(pool.post([] {}));
  pool.stop();
}

TEST(AgentWithoutThreads, FailsCallsThatItHasNoThreadFor) {
  StoreHost store;
  auto workers = start_static_group(store, 2, {}, [](Worker& worker) {
    ASSERT_TRUE(worker.functions.add("five", [] { return std::int64_t{5}; }));
    ASSERT_TRUE(worker.functions.add("six", [] { return std::int64_t{6}; }, {.run = Run::Inline}));
  });
  using Number = std::int64_t();
  ASSERT_TRUE(workers[0]->call<Number>("worker1", "six"));
  {
    const NoNewThreads none;
    const auto outcome = workers[0]->call<Number>("worker1", "five");
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, CallErrorKind::Remote);
    EXPECT_EQ(outcome.error().message,
              "Error on Node 1: this worker can start no thread to run it");
    EXPECT_EQ(workers[0]->call<Number>("worker1", "six").value(), 6);
    // Nor has the caller one for its callbacks: whoever knows the outcome runs them.
    std::promise<bool> told;
    workers[0]->async<Number>("worker1", 0.0, "six").on_done([&](const auto& seen) {
      told.set_value(seen.has_value());
    });
    auto answer = told.get_future();
    ASSERT_EQ(answer.wait_for(kPatience), std::future_status::ready);
    EXPECT_TRUE(answer.get());
  }
  EXPECT_EQ(workers[0]->call<Number>("worker1", "five").value(), 5);
}

TEST(AgentWithoutThreads, DoesNotStart) {
  StoreHost store;
  Worker worker;
  {
    const NoNewThreads none;
    const auto started = worker.start(options_for("worker0", 0, 1), store, kPatience);
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().kind, ErrorKind::Unavailable);
    EXPECT_EQ(started.error().message,
              "cannot start the I/O thread of RPC: Resource temporarily unavailable");
  }
  Worker another;
  EXPECT_TRUE(another.start(options_for("worker0", 0, 1), store, kPatience));
}

}  // namespace
}  // namespace muster::rpc
