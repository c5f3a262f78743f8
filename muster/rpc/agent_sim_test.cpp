// Agents that call each other at random while connections break, hosts are cut off from each other,
// stop for a while, die and come back; what must hold is in agent_world.h.
#include "tests/rpc/agent_world.h"
#include "tests/seeds.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::CallRecord;
using testing::GroupKind;
using testing::World;

class AgentSimTest : public ::testing::TestWithParam<GroupKind> {};

TEST_P(AgentSimTest, EveryCallEndsOnceAndAsItShouldWhateverHappens) {
  std::size_t call_count = 0;
  std::size_t success_count = 0;
  std::size_t timeout_count = 0;
  std::size_t unreachable_count = 0;
  std::size_t harm_count = 0;
  const auto seeds = tests::seeds_to_run(20, 5);
  for (const std::uint64_t seed : seeds) {
    World world(seed, GetParam());
    world.make_trouble();
    world.settle();
    call_count += world.ledger().count();
    success_count += world.ledger().success_count();
    timeout_count += world.ledger().error_count(CallErrorKind::Timeout);
    unreachable_count += world.ledger().error_count(CallErrorKind::Unreachable);
    harm_count += world.harm_count();
    if (HasFailure()) {
      ADD_FAILURE() << tests::replay_command(seed);
      return;
    }
  }
  fmt::print("{} calls: {} succeeded, {} timed out, {} were unreachable; harm was done {} times\n",
             call_count, success_count, timeout_count, unreachable_count, harm_count);
  if (seeds.size() < 10) return;
  // Otherwise nothing was tried.
  EXPECT_GT(success_count, call_count / 10);
  EXPECT_GT(timeout_count, 0U);
  EXPECT_GT(unreachable_count, 0U);
}

TEST(AgentSim, AWorkerThatWasStoppedForLongerThanItsLeaseIsReachedAgain) {
  World world(1, GroupKind::Dynamic);
  world.stop(1, 20s);
  world.settle();
}

TEST(AgentSim, ANewcomerIsReachedThoughTheStoreHasLostEverything) {
  for (const bool comes_first : {false, true}) {
    World world(1, GroupKind::Dynamic, 3);
    world.be_calm();
    world.crash(2, sim::Crash::Loud);
    world.loop().advance(20s);
    world.empty_store();
    if (!comes_first) world.loop().advance(10s);
    world.start_again(2);
    const auto all_know_all = [&] {
      for (const std::size_t index : {0U, 1U, 2U}) {
        if (world.worker(index).known_names().size() != 3) return false;
      }
      return world.worker(2).has_joined();
    };
    ASSERT_TRUE(world.loop().run_until(all_know_all, world.loop().now() + 60s));
    for (const std::size_t index : {0U, 1U}) {
      EXPECT_TRUE(world.call(2, index));
      EXPECT_TRUE(world.call(index, 2));
    }
  }
}

// S183
TEST(AgentSim, EveryCallToAMemberThatStaysSucceedsHoweverManyComeAndGo) {
  constexpr std::size_t kCrowd = 50;
  for (const std::uint64_t seed : tests::seeds_to_run(1, tests::kIsSlow ? 0 : 1)) {
    SCOPED_TRACE(tests::replay_command(seed));
    World world(seed, GroupKind::Dynamic, kCrowd);
    world.come_and_go(20s, 5);
    const auto present = world.final_members();
    EXPECT_GE(present.size(), 5U) << "they do not agree, or calls have not ended: "
                                  << world.ledger().unfinished();
    // Otherwise nothing was tried.
    EXPECT_GT(world.join_count(), kCrowd + 30);
    EXPECT_GT(world.ledger().success_count(), 500U);
    fmt::print("{} joined; {} of {} calls succeeded; {} are left\n", world.join_count(),
               world.ledger().success_count(), world.ledger().count(), present.size());
    if (::testing::Test::HasFailure()) return;
  }
}

// ---- deaths in a static group -------------------------------------------------------------------

// One that has called it, one that was called by it, and one that has had nothing to do with it.
struct StaticWorld : World {
  StaticWorld() : World(1, GroupKind::Static) {
    be_calm();
    EXPECT_TRUE(call(kCaller, kVictim));
    EXPECT_TRUE(call(kVictim, kCalled));
  }
  static constexpr std::size_t kVictim = 0;
  static constexpr std::size_t kCaller = 1;
  static constexpr std::size_t kCalled = 2;
};

TEST(AgentSim, ADeathInAStaticGroupIsToldToAllWhoHadAConnectionWithinASecond) {
  StaticWorld world;
  world.crash(world.kVictim, sim::Crash::Loud);
  EXPECT_TRUE(world.is_told_of_loss(world.kCaller, world.kVictim, 1s));
  EXPECT_TRUE(world.is_told_of_loss(world.kCalled, world.kVictim, 1s));
  world.loop().advance(1h);
  EXPECT_EQ(world.worker(world.kCaller).lost_count(world.kVictim), 1);
  EXPECT_EQ(world.worker(world.kCalled).lost_count(world.kVictim), 1);
  EXPECT_FALSE(world.call(world.kCaller, world.kVictim));
  EXPECT_TRUE(world.call(world.kCaller, world.kCalled));
  world.start_again(world.kVictim);
}

TEST(AgentSim, ADeathInAStaticGroupIsFoundThoughTheStoreIsGoneAsWell) {
  StaticWorld world;
  world.worker(world.kCaller).lose_store();
  world.crash(world.kVictim, sim::Crash::Loud);
  EXPECT_TRUE(world.is_told_of_loss(world.kCaller, world.kVictim, 30s));
}

TEST(AgentSim, NobodyLooksForAWorkerThatGoesWhenTheGroupIsOver) {
  StaticWorld world;
  for (const std::size_t other : {world.kCaller, world.kCalled}) {
    world.worker(other).core().expect_departures();
  }
  world.crash(world.kVictim, sim::Crash::Loud);
  world.loop().advance(1min);
  EXPECT_EQ(world.worker(world.kCaller).lost_count(world.kVictim), 0);
  EXPECT_EQ(world.worker(world.kCalled).lost_count(world.kVictim), 0);
  world.start_again(world.kVictim);
}

TEST(AgentSim, ConnectionsThatAreCutDoNotMakeADeathHoweverOften) {
  StaticWorld world;
  for (int count = 0; count < 50; ++count) {
    world.network().reset_all(world.host(world.kVictim));
    world.loop().advance(100ms * (count % 7));
  }
  world.loop().advance(1h);
  EXPECT_EQ(world.worker(world.kCaller).lost_count(world.kVictim), 0);
  EXPECT_EQ(world.worker(world.kCalled).lost_count(world.kVictim), 0);
  EXPECT_TRUE(world.call(world.kCaller, world.kVictim));
  // What had no connection left to be seen by has one again.
  world.crash(world.kVictim, sim::Crash::Loud);
  EXPECT_TRUE(world.is_told_of_loss(world.kCaller, world.kVictim, 1s));
  EXPECT_TRUE(world.is_told_of_loss(world.kCalled, world.kVictim, 1s));
  world.start_again(world.kVictim);
}

TEST(AgentSim, AWayThatIsCutAndAWorkerThatIsStoppedAreNoDeaths) {
  for (const bool is_stopped : {false, true}) {
    StaticWorld world;
    for (std::size_t other = 1; other < world.size() && !is_stopped; ++other) {
      world.network().cut(world.host(world.kVictim), world.host(other));
    }
    if (is_stopped) world.network().pause(world.host(world.kVictim));
    world.loop().advance(1h);
    EXPECT_EQ(world.worker(world.kCaller).lost_count(world.kVictim), 0);
    EXPECT_EQ(world.worker(world.kCalled).lost_count(world.kVictim), 0);
    if (is_stopped) world.network().resume(world.host(world.kVictim));
    world.network().heal_all();
    world.loop().advance(2min);
    EXPECT_EQ(world.worker(world.kVictim).lost_count(world.kCaller), 0);
    EXPECT_TRUE(world.call(world.kCaller, world.kVictim));
    EXPECT_TRUE(world.call(world.kVictim, world.kCalled));
  }
}

TEST(AgentSim, AMachineThatFellSilentIsTakenForDeadOnlyWhenItIsBackWithoutTheWorker) {
  StaticWorld world;
  world.crash(world.kVictim, sim::Crash::Silent);
  world.loop().advance(1h);
  EXPECT_EQ(world.worker(world.kCaller).lost_count(world.kVictim), 0);
  world.network().restart(world.host(world.kVictim));
  EXPECT_TRUE(world.is_told_of_loss(world.kCaller, world.kVictim, 2min));
  EXPECT_TRUE(world.is_told_of_loss(world.kCalled, world.kVictim, 2min));
  world.start_again(world.kVictim);
}

// Not so if it had only been cut off: it comes back by itself before anybody believes that.
TEST(AgentSim, AWorkerThatWasTakenForDeadIsNotLetInAgain) {
  StaticWorld world;
  world.worker(world.kVictim).stop_listening();
  world.network().pause(world.host(world.kVictim));
  world.network().reset_all(world.host(world.kVictim));
  EXPECT_TRUE(world.is_told_of_loss(world.kCalled, world.kVictim, 1s));
  world.network().resume(world.host(world.kVictim));
  EXPECT_FALSE(world.call(world.kVictim, world.kCalled));
  EXPECT_FALSE(world.call(world.kCalled, world.kVictim));
  // Both see it alike in the end.
  EXPECT_TRUE(world.is_told_of_loss(world.kVictim, world.kCalled, 10s));
}

TEST(AgentSim, AWorkerThatNobodyCanConnectToIsTrustedAsLongAsItConnectsAgain) {
  StaticWorld world;
  world.worker(world.kVictim).stop_listening();
  for (int count = 0; count < 20; ++count) {
    world.network().reset_all(world.host(world.kCalled));
    world.loop().advance(10s);
  }
  EXPECT_EQ(world.worker(world.kCalled).lost_count(world.kVictim), 0);
  EXPECT_TRUE(world.call(world.kVictim, world.kCalled));
}

TEST(AgentSim, AWorkerThatTakesThePlaceOfADeadOneIsServedAndCalledAtOnce) {
  for (const Duration absence : {Duration(0s), Duration(10s)}) {
    StaticWorld world;
    world.crash(world.kVictim, sim::Crash::Loud);
    world.loop().advance(absence);
    world.start_again(world.kVictim);
    ASSERT_TRUE(world.loop().run_until([&] { return world.worker(world.kVictim).has_joined(); },
                                       world.loop().now() + 60s));
    // By what it says of itself: nobody had looked for it.
    EXPECT_TRUE(world.call(world.kVictim, world.kCalled));
    EXPECT_EQ(world.worker(world.kCalled).lost_count(world.kVictim), 1);
    EXPECT_EQ(world.worker(world.kCalled).joined_count(world.kVictim), 2);
    EXPECT_TRUE(world.call(world.kCalled, world.kVictim));
    EXPECT_TRUE(world.call(world.kCaller, world.kVictim) ||
                world.call(world.kCaller, world.kVictim));
    EXPECT_EQ(world.worker(world.kCaller).lost_count(world.kVictim), 1);
  }
}

// S172: three calls are under way to a worker that goes down.
class Bereavement {
 public:
  explicit Bereavement(GroupKind kind) : world(1, kind) {
    world.be_calm();
    world.worker(kVictim).hold_requests();
    for (std::size_t& tag : tags_) tag = world.worker(kCaller).call(kVictim, std::nullopt, 0);
    const auto all_are_there = [this] {
      return world.worker(kVictim).held_count() == tags_.size();
    };
    EXPECT_TRUE(world.loop().run_until(all_are_there, world.loop().now() + 60s));
  }
  // It falls silent at once, or its connections break.
  void expect_failures(sim::Crash how, Duration within) {
    const std::size_t elsewhere = world.worker(kCaller).call(kOther, std::nullopt, 0);
    world.crash(kVictim, how);
    const auto all_have_ended = [this] {
      return std::all_of(tags_.begin(), tags_.end(),
                         [this](std::size_t tag) { return call(tag).ended_count > 0; });
    };
    EXPECT_TRUE(world.loop().run_until(all_have_ended, world.loop().now() + within));
    for (const std::size_t tag : tags_) {
      ASSERT_TRUE(call(tag).error);
      EXPECT_EQ(call(tag).error->kind, CallErrorKind::Unreachable);
      EXPECT_NE(call(tag).error->message.find("worker0"), std::string::npos);
      EXPECT_TRUE(call(tag).error->sent);
    }
    EXPECT_TRUE(world.loop().run_until([&] { return call(elsewhere).ended_count > 0; },
                                       world.loop().now() + 60s));
    EXPECT_EQ(call(elsewhere).served_count, 1) << "others go on";
  }
  void expect_it_to_be_called_when_it_is_back() {
    world.start_again(kVictim);
    ASSERT_TRUE(world.loop().run_until([&] { return world.worker(kVictim).has_joined(); },
                                       world.loop().now() + 60s));
    EXPECT_TRUE(world.call(kCaller, kVictim) || world.call(kCaller, kVictim));
  }

  World world;

 private:
  static constexpr std::size_t kVictim = 0;
  static constexpr std::size_t kCaller = 1;
  static constexpr std::size_t kOther = 2;
  const CallRecord& call(std::size_t tag) const { return world.ledger().at(tag); }

  std::array<std::size_t, 3> tags_{};
};

TEST_P(AgentSimTest, CallsToAWorkerThatIsKilledFailWithinASecond) {
  Bereavement scene(GetParam());
  scene.expect_failures(sim::Crash::Loud, 1s);
  scene.expect_it_to_be_called_when_it_is_back();
}

TEST_P(AgentSimTest, CallsToAWorkerThatFallsSilentFailWhenItMustHaveSpoken) {
  const CoreOptions defaults(WorkerInfo::create_member("any", 0).value());
  Bereavement scene(GetParam());
  // That the last byte came is noticed at the end of the interval in which it did.
  scene.expect_failures(sim::Crash::Silent, defaults.silence_max + defaults.sign_of_life_interval);
  scene.expect_it_to_be_called_when_it_is_back();
}

TEST_P(AgentSimTest, TheSameSeedGivesTheSameRun) {
  const auto run = [](std::uint64_t seed) {
    World world(seed, GetParam());
    world.make_trouble();
    world.settle();
    return std::pair(world.trace_hash(), world.ledger().success_count());
  };
  for (const std::uint64_t seed : {3U, 4U}) EXPECT_EQ(run(seed), run(seed)) << "seed " << seed;
  EXPECT_NE(run(3), run(4));
}

INSTANTIATE_TEST_SUITE_P(Groups, AgentSimTest,
                         ::testing::Values(GroupKind::Static, GroupKind::Dynamic),
                         [](const auto& test) {
                           return test.param == GroupKind::Static ? "Static" : "Dynamic";
                         });

}  // namespace
}  // namespace muster::rpc
