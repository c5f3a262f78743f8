#include "muster/rpc/future.h"

#include "muster/net/epoll_loop.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

CallError broken(std::string text) {
  return {CallErrorKind::Unreachable, std::move(text), "", true};
}
TimePoint now() { return SystemClock().now(); }

TEST(Promise, SaysNothingWhenItGoesAndNobodyHasItsFuture) {
  tests::LogCapture log;
  { const Promise<int> never_used; }
  {
    const Promise<int> promise;
    EXPECT_EQ(promise.future().done(), false);
  }
  EXPECT_TRUE(log.warnings().empty());
}

TEST(Future, IsDoneOnceItsPromiseIsKept) {
  const Promise<int> promise;
  const Future<int> future = promise.future();
  EXPECT_FALSE(future.done());
  EXPECT_EQ(future.wait_until(now()), nullptr);
  EXPECT_TRUE(promise.set(5));
  EXPECT_TRUE(future.done());
  EXPECT_EQ(*future.wait(), 5);
  EXPECT_EQ(*future.wait(), 5) << "as often as one likes";
  EXPECT_EQ(future.get(), 5);
  EXPECT_EQ(**future.wait_until(kNever), 5);
}

TEST(Future, SuffersCallbacksThatThrow) {
  const Promise<int> promise;
  int sum = 0;
  const auto add = [&sum](const CallResult<int>& value) { sum += *value; };
  const auto throw_it = [](const CallResult<int>&) { throw std::runtime_error("on purpose"); };
  promise.future().on_done(throw_it);
  promise.future().on_done(add);
  EXPECT_TRUE(promise.set(5));
  EXPECT_EQ(sum, 5) << "the other one was called";
  promise.future().on_done(throw_it);
  {
    Pool pool("test", 1);
    const Promise<int> other;
    other.future().on_done(throw_it);
    other.future().on_done(add);
    std::atomic<bool> after = false;
    other.set_on(pool, 7, [&] { after = true; });
    pool.stop();
    EXPECT_TRUE(after);
  }
  EXPECT_EQ(sum, 12);
}

TEST(Future, KeepsTheFirstOutcome) {
  const Promise<std::string> promise;
  EXPECT_TRUE(promise.set(std::string("first")));
  EXPECT_FALSE(promise.set(std::string("second")));
  EXPECT_FALSE(promise.set(call_failed(broken("late"))));
  EXPECT_EQ(promise.future().get(), "first");
}

TEST(Future, ThrowsItsErrorOnlyFromGet) {
  const Promise<> promise;
  promise.set(call_failed({CallErrorKind::Timeout, "too late", "", true}));
  const auto& outcome = promise.future().wait();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout);
  try {
    promise.future().get();
    FAIL();
  } catch (const CallException& exception) {
    EXPECT_EQ(std::string(exception.what()), "RPCErr:1:too late");
    EXPECT_EQ(exception.error().kind, CallErrorKind::Timeout);
  }
}

TEST(Future, FailsWhenItsPromiseIsForgotten) {
  std::optional<Promise<int>> promise(std::in_place);
  const Future<int> future = promise->future();
  promise.reset();
  ASSERT_TRUE(future.done());
  EXPECT_EQ(future.wait().error().message, "the call was given up");
}

TEST(Future, WakesThreadsThatWait) {
  const Promise<int> promise;
  std::atomic<int> sum = 0;
  std::vector<std::thread> threads;
  for (int index = 0; index < 8; ++index) {
    threads.emplace_back([&, future = promise.future()] { sum += future.get(); });
  }
  promise.set(3);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 24);
}

TEST(Future, CallsBackOnceInTheThreadThatSetsIt) {
  const Promise<int> promise;
  std::thread::id called_by;
  int count = 0;
  promise.future().on_done([&](const CallResult<int>& outcome) {
    called_by = std::this_thread::get_id();
    count += *outcome;
  });
  EXPECT_EQ(count, 0);
  std::thread setter([&] { promise.set(1); });
  const std::thread::id setter_id = setter.get_id();
  setter.join();
  EXPECT_EQ(count, 1);
  EXPECT_EQ(called_by, setter_id);
  promise.future().on_done([&](const CallResult<int>&) { called_by = std::this_thread::get_id(); });
  EXPECT_EQ(called_by, std::this_thread::get_id()) << "at once";
}

TEST(Future, LetsACallbackUseItself) {
  const Promise<int> promise;
  const Future<int> future = promise.future();
  int seen = 0;
  future.on_done([&, future](const CallResult<int>&) {
    seen = future.get();
    future.on_done([&](const CallResult<int>& inner) { seen += *inner; });
  });
  promise.set(2);
  EXPECT_EQ(seen, 4);
}

TEST(Future, MakesAnotherOneOfWhateverThenAnswers) {
  const Promise<int> promise;
  const Future<int> future = promise.future();
  auto value = future.then([](const CallResult<int>& outcome) { return std::to_string(*outcome); });
  auto nothing = future.then([](const CallResult<int>&) {});
  auto result = future.then([](const CallResult<int>& outcome) -> CallResult<long> {
    if (*outcome == 4) return call_failed(broken("four"));
    return 1L;
  });
  const Promise<double> inner;
  auto flattened = future.then([&](const CallResult<int>&) { return inner.future(); });
  promise.set(4);
  EXPECT_EQ(value.get(), "4");
  EXPECT_TRUE(nothing.wait());
  EXPECT_EQ(result.wait().error().message, "four");
  EXPECT_FALSE(flattened.done());
  inner.set(0.5);
  EXPECT_EQ(flattened.get(), 0.5);
}

TEST(Future, ChainsTwentyTimes) {
  const Promise<int> promise;
  Future<int> last = promise.future();
  for (int index = 0; index < 20; ++index) {
    last = last.then([](const CallResult<int>& outcome) { return *outcome + 1; });
  }
  promise.set(0);
  EXPECT_EQ(last.get(), 20);
}

TEST(Future, TakesWhatThenThrowsForItsError) {
  const Promise<int> promise;
  auto thrown = promise.future().then(
      [](const CallResult<int>&) -> int { throw std::out_of_range("far away"); });
  auto passed = promise.future().then([](const CallResult<int>&) -> int {
    throw CallException({CallErrorKind::Injected, "on purpose", "", false});
  });
  promise.set(1);
  EXPECT_EQ(thrown.wait().error().message, "far away");
  EXPECT_EQ(thrown.wait().error().type, "std::out_of_range");
  EXPECT_EQ(passed.wait().error().kind, CallErrorKind::Injected);
}

TEST(Future, CollectsAllOfThem) {
  std::vector<Promise<int>> promises(3);
  std::vector<Future<int>> futures;
  for (const auto& promise : promises) futures.push_back(promise.future());
  const auto all = collect_all(futures);
  promises[2].set(2);
  promises[0].set(0);
  EXPECT_FALSE(all.done());
  promises[1].set(1);
  ASSERT_TRUE(all.done());
  for (std::size_t index = 0; index < 3; ++index) {
    EXPECT_EQ((*all.wait())[index].get(), static_cast<int>(index));
  }
  EXPECT_TRUE(collect_all(std::vector<Future<int>>()).done());
}

TEST(Future, FailsACollectionWithTheFirstError) {
  std::vector<Promise<int>> promises(3);
  std::vector<Future<int>> futures;
  for (const auto& promise : promises) futures.push_back(promise.future());
  const auto all = collect_all(futures);
  promises[1].set(call_failed(broken("gone")));
  ASSERT_TRUE(all.done()) << "without waiting for the rest";
  EXPECT_EQ(all.wait().error().message, "gone");
  promises[0].set(call_failed(broken("late")));
  EXPECT_EQ(all.wait().error().message, "gone");
}

TEST(Future, CanBeAwaitedOnALoop) {
  net::EpollLoop loop;
  Promise<int> promise;
  std::thread setter([&] { promise.set(7); });
  const auto outcome = loop.block_on(outcome_of(loop, promise.future()));
  setter.join();
  EXPECT_EQ(*outcome, 7);
  EXPECT_EQ(*loop.block_on(outcome_of(loop, promise.future())), 7) << "known already";
}

TEST(Future, MayOutliveTheTaskThatAwaitsIt) {
  net::EpollLoop loop;
  Promise<int> promise;
  {
    TaskScope scope;
    scope.start([](Loop& on, Future<int> future) -> Task<void> {
      (void)co_await outcome_of(on, std::move(future));
    }(loop, promise.future()));
  }
  promise.set(1);
  EXPECT_EQ(*loop.block_on(outcome_of(loop, promise.future())), 1);
}

TEST(Future, HasOneOutcomeWhenManyThreadsSetIt) {
  for (int round = 0; round < 200; ++round) {
    const Promise<int> promise;
    std::atomic<int> winners = 0;
    std::atomic<int> calls = 0;
    std::vector<std::thread> threads;
    for (int index = 0; index < 4; ++index) {
      threads.emplace_back([&, index] {
        promise.future().on_done([&](const CallResult<int>&) { ++calls; });
        if (promise.set(index)) ++winners;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(calls, 4);
  }
}

TEST(Future, IsContinuedAsOftenAsOneLikes) {
  constexpr int kLinks = 200'000;
  const Promise<int> promise;
  Future<int> last = promise.future();
  for (int link = 0; link < kLinks; ++link) {
    last = last.then([](const CallResult<int>& outcome) { return *outcome + 1; });
  }
  promise.set(0);
  EXPECT_EQ(last.get(), kLinks) << "all of it has run when `set` returns";
  EXPECT_TRUE(last.done());
}

}  // namespace
}  // namespace muster::rpc
