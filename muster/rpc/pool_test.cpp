#include "muster/rpc/pool.h"

#include "muster/rpc/future.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

// Of this process. One that has been joined may still be there for a moment.
std::size_t threads_there() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

// Until it holds, or for so long that it never will.
bool comes_to(const std::function<bool()>& holds) {
  const TimePoint deadline = SystemClock().now() + 60s;
  while (!holds() && SystemClock().now() < deadline) std::this_thread::yield();
  return holds();
}

TEST(Pool, RunsWhatItIsGiven) {
  std::atomic<int> sum = 0;
  {
    Pool pool("test", 3);
    for (int index = 1; index <= 100; ++index) {
      EXPECT_TRUE(pool.post([&sum, index] { sum += index; }));
    }
  }
  EXPECT_EQ(sum, 5050) << "all of it, before it is gone";
}

TEST(Pool, StartsNoThreadBeforeThereIsWork) {
  const std::size_t before = threads_there();
  Pool pool("test", 4);
  EXPECT_LE(threads_there(), before);
  EXPECT_EQ(pool.idle_count(), 4U);
  const Promise<> promise;
  ASSERT_TRUE(pool.post([&] { promise.set({}); }));
  EXPECT_TRUE(promise.future().wait());
}

TEST(Pool, RunsNoMoreAtOnceThanItHasThreads) {
  constexpr int kThreads = 3;
  std::atomic<int> now = 0;
  std::atomic<int> most = 0;
  std::latch all(kThreads);
  {
    Pool pool("test", kThreads);
    for (int index = 0; index < 60; ++index) {
      pool.post([&, index] {
        const int running = ++now;
        int seen = most;
        while (running > seen && !most.compare_exchange_weak(seen, running)) {
        }
        if (index < kThreads) all.arrive_and_wait();  // and not fewer either
        --now;
      });
    }
  }
  EXPECT_EQ(most, kThreads);
}

// One that sleeps and has been woken cannot take two.
TEST(Pool, RunsTwoAtOnceThoughOneThreadSlept) {
  for (int round = 0; round < 100; ++round) {
    Pool pool("test", 2);
    pool.post([] {});
    while (pool.idle_count() < 2) std::this_thread::yield();  // the one that there is sleeps
    auto first = std::make_shared<std::promise<void>>();
    std::promise<bool> second;
    pool.post([first, &second] {
      second.set_value(first->get_future().wait_for(10s) == std::future_status::ready);
    });
    pool.post([first] { first->set_value(); });
    ASSERT_TRUE(second.get_future().get()) << "in round " << round;
  }
}

TEST(Pool, LetsAFunctionWaitForAnotherEvenWithOneThread) {
  Pool pool("test", 1);
  const Promise<int> outer;
  pool.post([&] {
    auto inner = std::make_shared<Promise<int>>();
    const Future<int> answer = inner->future();
    pool.post([inner] { inner->set(5); });
    outer.set(answer.get());
  });
  EXPECT_EQ(outer.future().get(), 5);
}

// Calls that go round and round, each waiting for the next.
int descend(Pool& pool, int depth) {
  if (depth == 0) return 0;
  auto inner = std::make_shared<Promise<int>>();
  const Future<int> answer = inner->future();
  const bool taken = pool.post([&pool, inner, depth] { inner->set(descend(pool, depth - 1)); });
  return taken ? answer.get() + 1 : 0;  // a pool that stops takes no more
}

TEST(Pool, LetsCallsNestAsDeepAsTheyLike) {
  Pool pool("test", 1);
  EXPECT_EQ(descend(pool, 100), 100);
}

TEST(Pool, GoesBackToItsNumberOfThreads) {
  std::thread([] {}).join();  // a sanitizer may begin one of its own with the first
  const std::size_t before = threads_there();
  Pool pool("test", 2);
  EXPECT_EQ(descend(pool, 20), 20);
  EXPECT_TRUE(comes_to([&] { return threads_there() <= before + 2; })) << threads_there();
  EXPECT_EQ(pool.waiting_count(), 0U);
  // And two of them still run at once.
  std::latch both(2);
  for (int count = 0; count < 2; ++count) {
    ASSERT_TRUE(pool.post([&both] { both.arrive_and_wait(); }));
  }
  pool.stop();
}

// Those that wait count, too.
TEST(Pool, HasAsManyThreadsAsItMayAndNoMore) {
  constexpr std::size_t kThreadsMax = 3;
  Pool pool("test", 1, kThreadsMax);
  const Promise<> awaited;
  std::atomic<bool> has_begun = false;
  std::atomic<int> too_early = 0;
  for (std::size_t index = 0; index < kThreadsMax; ++index) {
    ASSERT_TRUE(pool.post([&] {
      EXPECT_TRUE(awaited.future().wait());
      if (has_begun) ++too_early;
    }));
  }
  // One after the other begins, while those before it wait.
  EXPECT_TRUE(comes_to([&] { return pool.waiting_count() == kThreadsMax; }));
  ASSERT_TRUE(pool.post([&] { has_begun = true; }));
  awaited.set({});
  pool.stop();
  EXPECT_TRUE(has_begun);
  EXPECT_LT(too_early, static_cast<int>(kThreadsMax)) << "it did not wait for any of them";
}

TEST(Pool, TakesNothingOnceItIsStopped) {
  Pool pool("test", 2);
  pool.stop();
  EXPECT_FALSE(pool.post([] { FAIL(); }));
  pool.stop();
}

TEST(Pool, DestroysWorkOutsideItsLock) {
  Pool pool("test", 1);
  const Promise<> gone;
  struct Holder {
    Holder(Pool& pool_of_it, const Promise<>& promise) : of(pool_of_it), told(promise) {}
    Pool& of;
    const Promise<>& told;
    ~Holder() {
      (void)of.idle_count();
      told.set({});
    }
  };
  auto holder = std::make_shared<Holder>(pool, gone);
  pool.post([holder = std::move(holder)] {});
  EXPECT_TRUE(gone.future().wait());
}

TEST(Pool, IsUsedByManyThreadsAtOnce) {
  std::atomic<int> count = 0;
  {
    Pool pool("test", 4);
    std::vector<std::thread> threads;
    for (int index = 0; index < 8; ++index) {
      threads.emplace_back([&] {
        for (int round = 0; round < 200; ++round) {
          pool.post([&] {
            if (count.fetch_add(1) % 7 == 0) (void)descend(pool, 3);
          });
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(count, 1600);
}

}  // namespace
}  // namespace muster::rpc
