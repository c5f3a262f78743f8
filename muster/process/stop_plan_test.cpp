#include "muster/process/stop_plan.h"

#include <gtest/gtest.h>

#include <chrono>

namespace muster::process {
namespace {

using namespace std::chrono_literals;
using Phase = StopPlan::Phase;

TimePoint at(Duration time) { return TimePoint() + 1h + time; }

constexpr Left kNothing{0, 0};
constexpr Left kWorkers{2, 0};
constexpr Left kDaemons{0, 1};

StopOptions options() {
  return {.signal = SIGTERM, .grace = 30s, .linger = 200ms, .kill_wait = 5s};
}

TEST(StopPlan, IsDoneAtOnceWhenNothingIsLeft) {
  StopPlan plan(options(), at(0s));
  EXPECT_EQ(plan.update(at(0s), kNothing), Phase::Done);
  EXPECT_EQ(plan.next_deadline(), kNever);
}

TEST(StopPlan, KillsWhenTheGraceIsOverAndNotBefore) {
  StopPlan plan(options(), at(0s));
  EXPECT_EQ(plan.next_deadline(), at(30s));
  EXPECT_EQ(plan.update(at(29s), kWorkers), Phase::Asking);
  EXPECT_EQ(plan.update(at(30s), kWorkers), Phase::Killing);
  EXPECT_EQ(plan.next_deadline(), at(35s));
  EXPECT_EQ(plan.update(at(31s), kNothing), Phase::Done);
}

TEST(StopPlan, GivesUpOnWhatSurvivesTheLastWait) {
  StopPlan plan(options(), at(0s));
  plan.update(at(30s), kWorkers);
  EXPECT_EQ(plan.update(at(34s), kWorkers), Phase::Killing);
  EXPECT_EQ(plan.update(at(35s), kWorkers), Phase::Done);
}

TEST(StopPlan, LetsDaemonsLingerAfterTheLastWorkerHasEnded) {
  StopPlan plan(options(), at(0s));
  const Left both{1, 1};
  EXPECT_EQ(plan.update(at(1s), both), Phase::Asking);
  EXPECT_EQ(plan.update(at(2s), kDaemons), Phase::Lingering);
  EXPECT_EQ(plan.next_deadline(), at(2200ms));
  EXPECT_EQ(plan.update(at(2100ms), kDaemons), Phase::Lingering);
  EXPECT_EQ(plan.update(at(2200ms), kDaemons), Phase::Killing);
  EXPECT_EQ(plan.update(at(2201ms), kNothing), Phase::Done);
}

TEST(StopPlan, IsDoneWhenDaemonsEndByThemselves) {
  StopPlan plan(options(), at(0s));
  plan.update(at(2s), kDaemons);
  EXPECT_EQ(plan.update(at(2050ms), kNothing), Phase::Done);
}

TEST(StopPlan, KillsAtOnceWhenEscalated) {
  StopPlan plan(options(), at(0s));
  plan.update(at(0s), kWorkers);
  plan.escalate(at(1s));
  EXPECT_EQ(plan.update(at(1s), kWorkers), Phase::Killing);
  EXPECT_EQ(plan.next_deadline(), at(6s));
}

TEST(StopPlan, DoesNotBeginTheLastWaitAgainWhenEscalatedTwice) {
  StopPlan plan(options(), at(0s));
  plan.escalate(at(1s));
  plan.escalate(at(4s));
  EXPECT_EQ(plan.next_deadline(), at(6s));
  EXPECT_EQ(plan.update(at(6s), kWorkers), Phase::Done);
  plan.escalate(at(7s));
  EXPECT_EQ(plan.phase(), Phase::Done);
}

TEST(StopPlan, KillsBeforeItGivesUpHoweverShortTheTimes) {
  StopPlan plan({.signal = SIGTERM, .grace = 0s, .linger = 0s, .kill_wait = 0s}, at(0s));
  EXPECT_EQ(plan.update(at(0s), kWorkers), Phase::Killing);
  EXPECT_EQ(plan.update(at(0s), kWorkers), Phase::Done);
}

TEST(StopPlan, WaitsForEverWithANegativeGrace) {
  StopPlan plan({.signal = SIGTERM, .grace = -1s, .linger = 0s, .kill_wait = 5s}, at(0s));
  EXPECT_EQ(plan.update(at(10000h), kWorkers), Phase::Asking);
  EXPECT_EQ(plan.next_deadline(), kNever);
}

TEST(StopPlan, SweepsWithoutAsking) {
  StopPlan plan(SweepOptions{.linger = 0s, .kill_wait = 5s}, at(0s));
  EXPECT_EQ(plan.update(at(0s), kWorkers), Phase::Killing);
  EXPECT_EQ(plan.update(at(1s), kNothing), Phase::Done);
}

}  // namespace
}  // namespace muster::process
