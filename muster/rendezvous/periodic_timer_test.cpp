#include "muster/rendezvous/periodic_timer.h"

#include "muster/base/log.h"
#include "muster/sim/loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration since_start) { return TimePoint(since_start); }

// What a tick does in these tests: notes when it begins, takes its time, ends as told.
struct Script {
  Loop& loop;
  Duration takes{};
  std::vector<TimePoint> begun = {};
  std::vector<TimePoint> ended = {};
  bool fails = false;
  PeriodicTimer* cancels = nullptr;
};

Task<Result<>> tick(Script& script) {
  script.begun.push_back(script.loop.now());
  if (script.takes > 0s) co_await sleep_until(script.loop, script.loop.now() + script.takes);
  script.ended.push_back(script.loop.now());
  if (script.cancels != nullptr) script.cancels->cancel();
  if (script.fails) co_return fail(ErrorKind::Unavailable, "the store is away");
  co_return Result<>();
}

class PeriodicTimerTest : public testing::Test {
 protected:
  sim::Loop loop_;
  Script script_{.loop = loop_};
  PeriodicTimer timer_{loop_, 200ms, [this] { return tick(script_); }};
};

// Row 21
TEST_F(PeriodicTimerTest, CannotBeStartedTwice) {
  EXPECT_TRUE(timer_.start());
  EXPECT_EQ(timer_.start().error().kind, ErrorKind::Invalid);
  timer_.cancel();
  EXPECT_EQ(timer_.start().error().kind, ErrorKind::Invalid);
}

// Row 21
TEST_F(PeriodicTimerTest, KeepsItsNameOnceStarted) {
  EXPECT_EQ(timer_.name(), "PeriodicTimer");
  EXPECT_TRUE(timer_.set_name("KeepAlive"));
  EXPECT_EQ(timer_.name(), "KeepAlive");
  ASSERT_TRUE(timer_.start());
  EXPECT_EQ(timer_.set_name("Other").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(timer_.name(), "KeepAlive");
}

// Row 22
TEST_F(PeriodicTimerTest, IsGoneAfterTheFirstCancelAndTheSecondDoesNothing) {
  ASSERT_TRUE(timer_.start());
  EXPECT_TRUE(timer_.running());
  loop_.advance(250ms);
  timer_.cancel();
  EXPECT_FALSE(timer_.running());
  timer_.cancel();
  loop_.advance(10s);
  EXPECT_EQ(script_.begun.size(), 1U);
  EXPECT_EQ(loop_.next_event(), std::nullopt);
}

// Row 22
TEST_F(PeriodicTimerTest, IsGoneWhenItIsDestroyed) {
  auto timer = std::make_unique<PeriodicTimer>(loop_, 200ms, [this] { return tick(script_); });
  ASSERT_TRUE(timer->start());
  loop_.advance(250ms);
  timer.reset();
  EXPECT_EQ(loop_.next_event(), std::nullopt);
  EXPECT_EQ(script_.begun.size(), 1U);
}

TEST_F(PeriodicTimerTest, TakesARunningTickAlongWhenItIsDestroyed) {
  script_.takes = 1s;
  auto timer = std::make_unique<PeriodicTimer>(loop_, 200ms, [this] { return tick(script_); });
  ASSERT_TRUE(timer->start());
  loop_.advance(500ms);
  timer.reset();
  loop_.advance(10s);
  EXPECT_EQ(script_.begun.size(), 1U);
  EXPECT_TRUE(script_.ended.empty());
}

TEST_F(PeriodicTimerTest, IsNotAffectedByACancelBeforeItsStart) {
  timer_.cancel();
  ASSERT_TRUE(timer_.start());
  loop_.advance(200ms);
  EXPECT_EQ(script_.begun.size(), 1U);
}

// Row 23
TEST_F(PeriodicTimerTest, TicksOneIntervalAfterItsStartAndThenOneAfterEachTick) {
  ASSERT_TRUE(timer_.start());
  loop_.advance(199ms);
  EXPECT_TRUE(script_.begun.empty());
  loop_.advance(601ms);
  EXPECT_EQ(script_.begun, (std::vector<TimePoint>{at(200ms), at(400ms), at(600ms), at(800ms)}));
}

// Row 23
TEST_F(PeriodicTimerTest, LeavesTheIntervalAndTheTimeOfTheTaskBetweenTicks) {
  script_.takes = 300ms;
  ASSERT_TRUE(timer_.start());
  loop_.advance(1500ms);
  EXPECT_EQ(script_.begun, (std::vector<TimePoint>{at(200ms), at(700ms), at(1200ms)}));
}

TEST_F(PeriodicTimerTest, LogsAFailureAndGoesOn) {
  std::vector<std::string> lines;
  log::set_sink([&](log::Level level, std::string_view, std::string_view message) {
    if (level == log::Level::Warn) lines.emplace_back(message);
  });
  script_.fails = true;
  ASSERT_TRUE(timer_.set_name("KeepAlive"));
  ASSERT_TRUE(timer_.start());
  loop_.advance(600ms);
  log::set_sink({});
  EXPECT_EQ(script_.begun.size(), 3U);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_NE(lines[0].find("KeepAlive failed"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("the store is away"), std::string::npos) << lines[0];
}

TEST_F(PeriodicTimerTest, MayBeCancelledByItsOwnTick) {
  script_.cancels = &timer_;
  ASSERT_TRUE(timer_.start());
  loop_.advance(10s);
  EXPECT_EQ(script_.begun.size(), 1U);
  EXPECT_FALSE(timer_.running());
}

TEST_F(PeriodicTimerTest, MayBeCancelledByItsOwnTickAfterItHasWaited) {
  script_.cancels = &timer_;
  script_.takes = 300ms;
  ASSERT_TRUE(timer_.start());
  loop_.advance(10s);
  EXPECT_EQ(script_.begun.size(), 1U);
  EXPECT_EQ(script_.ended.size(), 1U);
  EXPECT_FALSE(timer_.running());
}

TEST_F(PeriodicTimerTest, LetsARunningTickEndWhenItIsCancelled) {
  script_.takes = 300ms;
  ASSERT_TRUE(timer_.start());
  loop_.advance(300ms);
  timer_.cancel();
  EXPECT_TRUE(timer_.running());
  loop_.advance(10s);
  EXPECT_EQ(script_.begun.size(), 1U);
  EXPECT_EQ(script_.ended, std::vector<TimePoint>{at(500ms)});
  EXPECT_FALSE(timer_.running());
}

TEST_F(PeriodicTimerTest, CanBeWaitedForUntilARunningTickHasEnded) {
  script_.takes = 300ms;
  ASSERT_TRUE(timer_.start());
  loop_.advance(300ms);
  loop_.block_on(timer_.stop());
  EXPECT_EQ(loop_.now(), at(500ms));
  EXPECT_EQ(script_.ended.size(), 1U);
  loop_.block_on(timer_.stop());
  EXPECT_EQ(loop_.now(), at(500ms));
}

TEST_F(PeriodicTimerTest, ForgetsAWaiterThatIsCancelled) {
  script_.takes = 300ms;
  ASSERT_TRUE(timer_.start());
  loop_.advance(300ms);
  {
    TaskScope scope;
    scope.start(timer_.stop());
    loop_.advance(50ms);
  }
  loop_.block_on(timer_.stop());
  EXPECT_EQ(loop_.now(), at(500ms));
}

// Row 20
TEST(Delay, LastsAsLongAsItIsTold) {
  sim::Loop loop;
  loop.block_on(delay(loop, 200ms));
  EXPECT_EQ(loop.now(), at(200ms));
}

// Row 20
TEST(Delay, IsDrawnFromARange) {
  sim::Loop loop;
  Random random(1);
  Duration shortest = 1s;
  Duration longest = 0s;
  for (int count = 0; count < 200; ++count) {
    const TimePoint start = loop.now();
    loop.block_on(delay(loop, random, 200ms, 400ms));
    shortest = std::min(shortest, loop.now() - start);
    longest = std::max(longest, loop.now() - start);
  }
  EXPECT_GE(shortest, 200ms);
  EXPECT_LT(shortest, 220ms);
  EXPECT_LE(longest, 400ms);
  EXPECT_GT(longest, 380ms);
}

// Row 20
TEST(Delay, BelowTenMillisecondsIsNone) {
  sim::Loop loop;
  Random random(1);
  loop.block_on(delay(loop, 9ms));
  loop.block_on(delay(loop, random, 9ms, 9ms));
  loop.block_on(delay(loop, -1s));
  EXPECT_EQ(loop.now(), at(0s));
  loop.block_on(delay(loop, 10ms));
  EXPECT_EQ(loop.now(), at(10ms));
}

}  // namespace
}  // namespace muster::rendezvous
