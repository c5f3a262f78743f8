#include "muster/sim/loop.h"

#include "muster/base/random.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace muster::sim {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration since_start) { return TimePoint(since_start); }

Task<int> answer_after(muster::Loop& loop, Duration pause) {
  co_await sleep_until(loop, loop.now() + pause);
  co_return 42;
}

Task<void> note_times(muster::Loop& loop, Duration pause, int count,
                      std::vector<TimePoint>& times) {
  for (int index = 0; index < count; ++index) {
    co_await sleep_until(loop, loop.now() + pause);
    times.push_back(loop.now());
  }
}

Task<int> wait_for(Oneshot<int>& value) { co_return co_await value; }

TEST(SimLoop, StartsAtZeroAndMovesOnlyWhenTold) {
  Loop loop;
  EXPECT_EQ(loop.now(), at(0s));
  Timer timer(loop, [] { FAIL(); });
  timer.set(at(1s));
  loop.run_until_idle();
  EXPECT_EQ(loop.now(), at(0s));
}

TEST(SimLoop, MeetsEveryDeadlineAtItsOwnTime) {
  Loop loop;
  std::vector<std::string> log;
  Timer late(loop, [&] { log.push_back("late " + describe(loop.now().time_since_epoch())); });
  Timer early(loop, [&] {
    log.push_back("early " + describe(loop.now().time_since_epoch()));
    late.set(loop.now() + 500ms);
  });
  Timer beyond(loop, [&] { log.emplace_back("beyond"); });
  early.set(at(1s));
  beyond.set(at(3s));
  loop.advance(2s);
  EXPECT_EQ(log, (std::vector<std::string>{"early 1s", "late 1.5s"}));
  EXPECT_EQ(loop.now(), at(2s));
  loop.run_until(at(3s));
  EXPECT_EQ(log.back(), "beyond");
}

TEST(SimLoop, RunsPostedWorkInOrderAndNeverInsideTheCall) {
  Loop loop;
  std::vector<int> order;
  loop.post([&] {
    order.push_back(1);
    loop.post([&] { order.push_back(3); });
  });
  loop.post([&] { order.push_back(2); });
  EXPECT_TRUE(order.empty());
  loop.run_until_idle();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(SimLoop, TakesWorkFromOtherThreads) {
  Loop loop;
  int count = 0;
  std::vector<std::thread> threads;
  for (int index = 0; index < 4; ++index) {
    threads.emplace_back([&] {
      for (int post = 0; post < 100; ++post) loop.post([&] { ++count; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  loop.run_until_idle();
  EXPECT_EQ(count, 400);
}

TEST(SimLoop, StandsStillDuringATurnHoweverMuchRuns) {
  Loop loop;
  std::vector<TimePoint> times;
  TaskScope scope;
  for (int index = 0; index < 100; ++index) scope.start(note_times(loop, 1s, 1, times));
  loop.run_until(at(1s));
  EXPECT_EQ(times, std::vector<TimePoint>(100, at(1s)));
}

TEST(SimLoop, BlocksOnATaskByJumpingThroughTime) {
  Loop loop;
  EXPECT_EQ(loop.block_on(answer_after(loop, 3h)), 42);
  EXPECT_EQ(loop.now(), at(3h));
  std::vector<TimePoint> times;
  loop.block_on(note_times(loop, 1s, 3600, times));
  EXPECT_EQ(times.size(), 3600U);
  EXPECT_EQ(loop.now(), at(4h));
}

TEST(SimLoop, StopsAtAConditionOrAtItsLimitOrWhenNothingIsLeft) {
  Loop loop;
  int count = 0;
  Timer timer(loop, [&] {
    if (++count < 10) timer.set(loop.now() + 1s);
  });
  timer.set(at(1s));
  EXPECT_TRUE(loop.run_until([&] { return count == 3; }));
  EXPECT_EQ(loop.now(), at(3s));
  EXPECT_FALSE(loop.run_until([&] { return count == 9; }, at(5500ms)));
  EXPECT_EQ(loop.now(), at(5500ms));
  EXPECT_FALSE(loop.run_until([&] { return count == 11; }));
  EXPECT_EQ(count, 10);
  EXPECT_EQ(loop.now(), at(10s));
}

TEST(SimLoopDeathTest, AbortsWhenTheWorkNeverEnds) {
  Loop loop;
  loop.set_turns_max(1'000);
  Timer spinning(loop, [&] { spinning.set(loop.now()); });
  spinning.set(loop.now());
  EXPECT_DEATH(loop.run_until_idle(), "not done after 1000 turns, virtual time 0s");
  EXPECT_DEATH(loop.run_until(at(1s)), "not done after 1000 turns");
  spinning.cancel();
  loop.run_until_idle();
}

TEST(SimLoopDeathTest, AbortsWhenATaskCanNeverFinish) {
  Loop loop;
  Oneshot<int> never(loop);
  EXPECT_DEATH(loop.block_on(wait_for(never)), "will never come");
}

TEST(SimLoopDeathTest, RefusesToRunInsideItself) {
  Loop loop;
  loop.post([&] { loop.run_until(at(1s)); });
  loop.post([] {});
  EXPECT_DEATH(loop.run_until_idle(), "assertion failed");
  loop.post([] {});
}

TEST(LocalLoop, RunsWithItsWorldAndOnItsTime) {
  Loop world;
  LocalLoop local(world);
  std::vector<TimePoint> times;
  TaskScope scope;
  scope.start(note_times(local, 1s, 3, times));
  world.run_until(at(10s));
  EXPECT_EQ(times, (std::vector<TimePoint>{at(1s), at(2s), at(3s)}));
}

TEST(LocalLoop, StartsAtTheTimeOfItsWorld) {
  Loop world;
  world.advance(5s);
  LocalLoop local(world);
  EXPECT_EQ(local.now(), at(5s));
}

TEST(LocalLoop, DoesNothingWhileItIsStoppedAndFindsAllTimersDueAfterwards) {
  Loop world;
  LocalLoop local(world);
  std::vector<TimePoint> times;
  TaskScope scope;
  scope.start(note_times(local, 1s, 2, times));
  bool posted = false;
  local.stop();
  local.post([&] { posted = true; });
  world.advance(10s);
  EXPECT_FALSE(posted);
  EXPECT_TRUE(times.empty());
  EXPECT_FALSE(world.next_event());

  local.resume();
  world.advance(5s);
  EXPECT_TRUE(posted);
  EXPECT_EQ(times, (std::vector<TimePoint>{at(10s), at(11s)}));
}

TEST(LocalLoop, MayRunFastOrSlow) {
  Loop world;
  LocalLoop fast(world);
  LocalLoop slow(world);
  fast.set_drift(100'000);
  slow.set_drift(-500'000);
  TimePoint fast_fired_at;
  TimePoint slow_fired_at;
  Timer fast_timer(fast, [&] { fast_fired_at = world.now(); });
  Timer slow_timer(slow, [&] { slow_fired_at = world.now(); });
  fast_timer.set(at(11s));
  slow_timer.set(at(11s));
  world.run_until(at(30s));
  EXPECT_EQ(fast_fired_at, at(10s));
  EXPECT_EQ(slow_fired_at, at(22s));
  EXPECT_EQ(fast.now(), at(33s));
  EXPECT_EQ(slow.now(), at(15s));

  // A change of the drift is no jump.
  fast.set_drift(0);
  EXPECT_EQ(fast.now(), at(33s));
  world.advance(1s);
  EXPECT_EQ(fast.now(), at(34s));
}

TEST(LocalLoop, FiresNoTimerEarlyWhateverTheDrift) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    Loop world;
    LocalLoop local(world);
    world.advance(Duration(static_cast<Duration::rep>(random.below(1'000'000'000))));
    local.set_drift(static_cast<std::int64_t>(random.below(1'900'000)) - 900'000);
    const TimePoint when =
        local.now() + Duration(static_cast<Duration::rep>(random.below(1'000'000'000'000)) + 1);
    bool fired = false;
    Timer timer(local, [&] {
      fired = true;
      EXPECT_GE(local.now(), when);
      EXPECT_LE(local.now(), when + 3ns);
    });
    timer.set(when);
    EXPECT_TRUE(world.run_until([&] { return fired; }));
  }
}

TEST(LocalLoop, NeverReachesADeadlineThatIsTooFarAway) {
  Loop world;
  LocalLoop local(world);
  local.set_drift(-999'999);
  Timer timer(local, [] { FAIL(); });
  timer.set(kNever - 1ns);
  EXPECT_FALSE(world.run_until([] { return false; }));
}

}  // namespace
}  // namespace muster::sim
