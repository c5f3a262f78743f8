#include "muster/net/epoll_loop.h"

#include "muster/base/fd.h"
#include "tests/net/no_new_threads.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <signal.h>
#include <string>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::net {
namespace {

using namespace std::chrono_literals;

// Two ends of a local connection, to make descriptors ready with.
struct SocketPair {
  SocketPair() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    near = Fd(ends[0]);
    far = Fd(ends[1]);
  }
  void make_readable() const { EXPECT_EQ(::send(far.get(), "x", 1, 0), 1); }
  void read_all() const {
    char buffer[64];
    while (::recv(near.get(), buffer, sizeof buffer, 0) > 0) {
    }
  }
  Fd near;
  Fd far;
};

Task<int> seven(Loop& loop, Duration pause) {
  const TimePoint when = loop.now() + pause;
  co_await sleep_until(loop, when);
  co_return 7;
}

Task<void> note_when_done(Loop& loop, bool& done) {
  const TimePoint when = loop.now() + 1ms;
  co_await sleep_until(loop, when);
  done = true;
}

TEST(EpollLoop, RunsPostedWorkInOrderAndNeverInsidePost) {
  EpollLoop loop;
  std::vector<int> order;
  for (int index = 0; index < 3; ++index) loop.post([&order, index] { order.push_back(index); });
  EXPECT_TRUE(order.empty());
  loop.post([&] { loop.stop(); });
  loop.run();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(EpollLoop, LeavesWhatPostedWorkPostsToALaterTurn) {
  EpollLoop loop;
  std::vector<std::string> order;
  loop.post([&] {
    loop.post([&] {
      order.emplace_back("inner");
      loop.stop();
    });
    order.emplace_back("outer");
  });
  loop.run();
  EXPECT_EQ(order, (std::vector<std::string>{"outer", "inner"}));
}

TEST(EpollLoop, TakesWorkFromManyThreadsAndLosesNone) {
  constexpr int kThreads = 4;
  constexpr int kPosts = 2'000;
  EpollLoop loop;
  std::array<std::vector<int>, kThreads> seen;  // touched on the loop only
  int left = kThreads * kPosts;
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int index = 0; index < kPosts; ++index) {
        loop.post([&, thread, index] {
          seen[thread].push_back(index);
          if (--left == 0) loop.stop();
        });
      }
    });
  }
  loop.run();
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int>& indices : seen) {
    ASSERT_EQ(indices.size(), static_cast<std::size_t>(kPosts));
    for (int index = 0; index < kPosts; ++index) {
      ASSERT_EQ(indices[static_cast<std::size_t>(index)], index);
    }
  }
}

TEST(EpollLoop, StopsWhenAnotherThreadSaysSo) {
  EpollLoop loop;
  std::thread other([&] { loop.stop(); });
  loop.run();
  other.join();
}

TEST(EpollLoop, ReturnsAtOnceIfItWasStoppedBefore) {
  EpollLoop loop;
  loop.stop();
  loop.run();
}

TEST(EpollLoop, RunsAgainAfterAStop) {
  EpollLoop loop;
  int runs = 0;
  for (int round = 0; round < 3; ++round) {
    loop.post([&] {
      ++runs;
      loop.stop();
    });
    loop.run();
  }
  EXPECT_EQ(runs, 3);
}

EpollLoop* loop_of_handler = nullptr;

TEST(EpollLoop, CanBeStoppedBySignalHandlers) {
  EpollLoop loop;
  loop_of_handler = &loop;
  struct sigaction action {};
  action.sa_handler = [](int) { loop_of_handler->stop(); };
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  loop.post([] { EXPECT_EQ(::raise(SIGUSR1), 0); });
  loop.run();
  ASSERT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
  loop_of_handler = nullptr;
}

TEST(EpollLoop, CallsTimersInTheOrderOfTheirTimesAndNeverEarly) {
  EpollLoop loop;
  std::vector<int> order;
  const TimePoint start = loop.now();
  Timer late(loop, [&] {
    order.push_back(2);
    EXPECT_GE(loop.now(), start + 6ms);
    loop.stop();
  });
  Timer early(loop, [&] {
    order.push_back(1);
    EXPECT_GE(loop.now(), start + 2ms);
  });
  Timer cancelled(loop, [&] { order.push_back(99); });
  late.set(start + 6ms);
  early.set(start + 2ms);
  cancelled.set(start + 3ms);
  cancelled.cancel();
  {
    Timer destroyed(loop, [&] { order.push_back(98); });
    destroyed.set(start + 1ms);
  }
  loop.run();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(EpollLoop, KeepsItsClockStillDuringATurn) {
  EpollLoop loop;
  SystemClock clock;
  loop.post([&] {
    const TimePoint before = loop.now();
    const TimePoint real = clock.now();
    while (clock.now() - real < 1ms) {
    }
    EXPECT_EQ(loop.now(), before);
    loop.stop();
  });
  loop.run();
  EXPECT_LE(loop.now(), clock.now());
}

TEST(EpollLoop, BlocksOnATaskUntilItIsDone) {
  EpollLoop loop;
  EXPECT_EQ(loop.block_on(seven(loop, 1ms)), 7);
  bool done = false;
  loop.block_on(note_when_done(loop, done));
  EXPECT_TRUE(done);
}

// Goes to the end of the queue for ever.
Task<void> spin(Loop& loop) {
  for (;;) {
    Oneshot<bool> turn(loop);
    struct Setter {
      Ready place;
      Oneshot<bool>& turn;
    } setter{{}, turn};
    loop.soon(
        setter.place, [](void* context) { static_cast<Setter*>(context)->turn.set(true); },
        &setter);
    co_await turn;
  }
}

TEST(EpollLoop, ServesOthersWhileACoroutineNeverRests) {
  EpollLoop loop;
  SocketPair pair;
  bool timer_came = false;
  bool readable_came = false;
  bool post_came = false;
  const auto check = [&] {
    if (timer_came && readable_came && post_came) loop.stop();
  };
  Timer timer(loop, [&] {
    timer_came = true;
    check();
  });
  timer.set(loop.now() + 1ms);
  FdWatch watch(loop, pair.near.get(), [&](std::uint32_t) {
    readable_came = true;
    pair.read_all();
    check();
  });
  watch.want(EPOLLIN);
  pair.make_readable();
  loop.post([&] {
    post_came = true;
    check();
  });
  TaskScope scope;
  scope.start(spin(loop));
  loop.run();
  EXPECT_TRUE(timer_came && readable_came && post_came);
}

TEST(FdWatch, RepeatsItsCallWhileTheConditionHoldsAndIsWanted) {
  EpollLoop loop;
  SocketPair pair;
  int calls = 0;
  FdWatch watch(loop, pair.near.get(), [&](std::uint32_t events) {
    EXPECT_NE(events & EPOLLIN, 0U);
    if (++calls == 3) {
      watch.want(0);
      loop.post([&] { loop.stop(); });  // a turn later, in which nothing may come any more
    }
  });
  pair.make_readable();
  watch.want(EPOLLIN);
  loop.run();
  EXPECT_EQ(calls, 3);
}

TEST(FdWatch, CanBeDestroyedByItsOwnCall) {
  EpollLoop loop;
  SocketPair pair;
  std::unique_ptr<FdWatch> watch;
  watch = std::make_unique<FdWatch>(loop, pair.near.get(), [&](std::uint32_t) {
    watch.reset();
    loop.stop();
  });
  pair.make_readable();
  watch->want(EPOLLIN);
  loop.run();
  EXPECT_EQ(watch, nullptr);
}

TEST(FdWatch, IsNotCalledOnceAnotherCallOfTheSameTurnHasDestroyedIt) {
  EpollLoop loop;
  SocketPair first_pair;
  SocketPair second_pair;
  std::unique_ptr<FdWatch> first;
  std::unique_ptr<FdWatch> second;
  int calls = 0;
  const auto destroy_both = [&](std::uint32_t) {
    ++calls;
    // Whichever is called first takes the other with it.
    FdWatch* const keep = calls == 1 ? nullptr : first.get();
    EXPECT_EQ(keep, nullptr);
    const std::unique_ptr<FdWatch> one = std::move(first);
    const std::unique_ptr<FdWatch> two = std::move(second);
    loop.stop();
  };
  first = std::make_unique<FdWatch>(loop, first_pair.near.get(), destroy_both);
  second = std::make_unique<FdWatch>(loop, second_pair.near.get(), destroy_both);
  first_pair.make_readable();
  second_pair.make_readable();
  first->want(EPOLLIN);
  second->want(EPOLLIN);
  loop.run();
  EXPECT_EQ(calls, 1);
}

TEST(FdWatch, TellsThatTheOtherEndIsGone) {
  EpollLoop loop;
  SocketPair pair;
  std::uint32_t seen = 0;
  FdWatch watch(loop, pair.near.get(), [&](std::uint32_t events) {
    seen = events;
    loop.stop();
  });
  watch.want(EPOLLIN);
  pair.far.reset();
  loop.run();
  EXPECT_NE(seen & (EPOLLIN | EPOLLHUP), 0U);
}

TEST(EpollLoop, RunsBlockingWorkOnAnotherThreadAndGoesOnMeanwhile) {
  EpollLoop loop;
  std::atomic<bool> release = false;
  std::thread::id where;
  loop.run_in_background([&] {
    where = std::this_thread::get_id();
    release.wait(false);
    loop.post([&] { loop.stop(); });
  });
  loop.post([&] {
    release = true;
    release.notify_one();
  });
  loop.run();
  EXPECT_NE(where, std::this_thread::get_id());
}

TEST(EpollLoop, DoesBackgroundWorkItselfWhereNoThreadCanBeStarted) {
  EpollLoop loop;
  int done = 0;
  {
    const testing::NoNewThreads none;
    for (int index = 0; index < 4; ++index) loop.run_in_background([&] { ++done; });
  }
  EXPECT_EQ(done, 4);
}

TEST(EpollLoop, WaitsForItsBackgroundWorkBeforeItGoes) {
  std::atomic<int> done = 0;
  {
    EpollLoop loop;
    for (int index = 0; index < 4; ++index) loop.run_in_background([&] { ++done; });
  }
  EXPECT_EQ(done, 4);
}

}  // namespace
}  // namespace muster::net
