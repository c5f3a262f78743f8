// Mistakes that were made once: what a simulation or a reader found, as the shortest story that
// shows it.
#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/shared_driver.h"
#include "muster/rendezvous/state_codec.h"
#include "muster/rendezvous/state_holder.h"
#include "tests/rendezvous/fake_backend.h"
#include "tests/rendezvous_sim/world.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous::testing {
namespace {

using namespace std::chrono_literals;

constexpr Duration kSoon = 500ms;

Settings limits(std::int64_t min_nodes, std::int64_t max_nodes) {
  Settings settings;
  settings.run_id = "run";
  settings.min_nodes = min_nodes;
  settings.max_nodes = max_nodes;
  settings.timeouts.last_call = 1s;
  return settings;
}

class RegressionTest : public ::testing::Test {
 protected:
  World& make_world(Kind kind, const Settings& settings) {
    WorldOptions options;
    options.kind = kind;
    options.settings = settings;
    world_ = std::make_unique<World>(options);
    return *world_;
  }
  World& world() { return *world_; }
  sim::Host& server() { return world().server().host(); }

  std::vector<Process*> make_round(const std::vector<std::string>& names) {
    std::vector<Process*> nodes;
    for (const std::string& name : names) nodes.push_back(&world().add(name));
    for (Process* node : nodes) node->begin_join();
    EXPECT_TRUE(world().run_until_all_are_in(20s));
    return nodes;
  }

  void TearDown() override {
    if (world_ == nullptr) return;
    for (const std::string& fault : world_->ledger().faults()) ADD_FAILURE() << fault;
  }

 private:
  const tests::LogCapture log_;
  std::unique_ptr<World> world_;
};

// -- the hosted driver and its server
// --------------------------------------------------------------

class HostedRun : public RegressionTest {};

// It was told of its round when its connection was back, but not of what had happened since.
TEST_F(HostedRun, TellsAMemberThatWasAwayWhenItsRoundCompletedThatSomebodyWaits) {
  Settings settings = limits(1, 2);
  settings.grace = 5s;
  make_world(Kind::Hosted, settings);
  Process& member = world().add("a");
  member.begin_join();
  ASSERT_TRUE(world().run_until([&] { return world().state().participants.size() == 1; }, kSoon));
  world().network().cut(member.host(), server());
  world().network().reset_all(member.host());
  world().network().reset_all(server());
  ASSERT_TRUE(world().run_until([&] { return world().state().complete; }, 2s));
  Process& late = world().add("b");
  late.begin_join();
  ASSERT_TRUE(world().run_until([&] { return world().state().wait_list.size() == 1; }, kSoon));
  world().run_for(kSoon);
  world().network().heal_all();
  ASSERT_TRUE(world().run_until([&] { return member.is_in(); }, 3s));
  EXPECT_TRUE(world().run_until([&] { return member.status().waiting == 1; }, kSoon));
}

// A node that had been given up, spoke again and so completed the round was never looked after.
TEST_F(HostedRun, NoticesTheSilenceOfAMemberThatHadBeenGivenUpBefore) {
  Settings settings = limits(2, 2);
  settings.timeouts.heartbeat = 60s;  // it keeps the conversation as long as that
  make_world(Kind::Hosted, settings);
  Process& fickle = world().add("a");
  fickle.begin_join();
  ASSERT_TRUE(world().run_until([&] { return world().state().participants.size() == 1; }, kSoon));
  world().network().cut_one_way(fickle.host(), server());
  ASSERT_TRUE(world().run_until([&] { return world().state().participants.empty(); }, 30s));
  Process& other = world().add("b");
  other.begin_join();
  world().run_for(kSoon);
  world().network().heal_all();
  ASSERT_TRUE(world().run_until_all_are_in(10s));
  world().kill(fickle, sim::Crash::Silent);
  EXPECT_TRUE(world().run_until([&] { return other.status().lost; }, 30s));
}

// The answer to a join that was given up was taken for the answer to the next.
TEST_F(HostedRun, DoesNotTakeAnOldAnswerForThatOfTheNextJoin) {
  WorldOptions options;
  options.settings = limits(2, 2);
  options.weather.latency_min = options.weather.latency_max = 50ms;
  World slow(options);
  Process& fickle = slow.add("a");
  Process& other = slow.add("b");
  fickle.begin_join();
  ASSERT_TRUE(slow.run_until([&] { return slow.state().participants.size() == 1; }, 2s));
  other.begin_join();
  ASSERT_TRUE(slow.run_until([&] { return slow.state().complete; }, 2s));
  // Its answer is under way now.
  fickle.cancel();
  fickle.begin_join();
  ASSERT_TRUE(slow.run_until([&] { return fickle.is_in(); }, 2s));
  fickle.begin_join();
  slow.run_for(2s);
  EXPECT_FALSE(fickle.is_in()) << "the other one has not come";
  other.begin_join();
  ASSERT_TRUE(slow.run_until([&] { return fickle.is_in() && other.is_in(); }, 2s));
  EXPECT_EQ(fickle.place().id.round, 1U);
  EXPECT_EQ(slow.ledger().faults(), std::vector<std::string>());
}

// A node that could not say that it leaves came back to the round it had left.
TEST_F(HostedRun, DoesNotBringANodeBackToARoundThatItLeftWithoutBeingHeard) {
  make_world(Kind::Hosted, limits(2, 2));
  const auto nodes = make_round({"a", "b"});
  world().network().cut(nodes[0]->host(), server());
  nodes[0]->begin_leave();
  ASSERT_TRUE(world().run_until([&] { return nodes[0]->done().has_value(); }, 10s));
  EXPECT_FALSE(nodes[0]->done()->has_value());
  world().network().heal_all();
  nodes[0]->begin_join();
  ASSERT_TRUE(world().run_until([&] { return nodes[1]->status().lost; }, 5s));
  nodes[1]->begin_join();
  ASSERT_TRUE(world().run_until_all_are_in(5s));
  EXPECT_EQ(nodes[0]->place().id.round, 1U);
}

// A server that was restarted took a run over from one who had missed its last rounds, and gave
// their numbers out again.
TEST_F(HostedRun, DoesNotRepeatRoundsAfterARestartOfItsServer) {
  make_world(Kind::Hosted, limits(1, 3));
  const auto nodes = make_round({"a", "b", "c"});
  world().network().cut(nodes[2]->host(), server());
  world().network().reset_all(nodes[2]->host());
  ASSERT_TRUE(world().run_until([&] { return nodes[0]->status().lost; }, 20s));
  for (int round = 1; round <= 2; ++round) {
    nodes[0]->begin_join();
    nodes[1]->begin_join();
    ASSERT_TRUE(world().run_until([&] { return nodes[0]->is_in() && nodes[1]->is_in(); }, 20s));
  }
  world().network().cut(nodes[0]->host(), server());
  world().network().cut(nodes[1]->host(), server());
  world().kill_server(sim::Crash::Loud);
  world().restart_server();
  world().network().heal(nodes[2]->host(), server());
  Process& fresh = world().add("d");
  ASSERT_TRUE(world().run_until([&] { return world().state().complete; }, 60s));
  fresh.begin_join();
  ASSERT_TRUE(world().run_until([&] { return nodes[2]->status().waiting == 1; }, 20s));
  nodes[2]->begin_join();
  ASSERT_TRUE(world().run_until([&] { return nodes[2]->is_in() && fresh.is_in(); }, 20s));
  EXPECT_EQ(nodes[2]->place().id, fresh.place().id);
  // Those who are ahead come back, and meet the others in a round of their own.
  world().network().heal_all();
  ASSERT_TRUE(world().run_until([&] { return !nodes[0]->status().member; }, 60s));
  ASSERT_TRUE(world().run_until([&] { return !nodes[1]->status().member; }, 60s));
}

// Only the first node that came back was asked whether the run is closed.
TEST_F(HostedRun, StaysClosedWhenItsServerForgetsAndOnlySomeNodesKnow) {
  make_world(Kind::Hosted, limits(2, 3));
  const auto nodes = make_round({"a", "b"});
  world().network().cut(nodes[0]->host(), server());
  nodes[1]->begin_close();
  ASSERT_TRUE(world().run_until([&] { return nodes[1]->status().closed; }, kSoon));
  world().network().cut(nodes[1]->host(), server());
  world().kill_server(sim::Crash::Loud);
  world().restart_server();
  world().network().heal(nodes[0]->host(), server());
  ASSERT_TRUE(world().run_until([&] { return world().state().complete; }, 60s));
  EXPECT_FALSE(world().state().closed) << "nobody knows yet";
  world().network().heal_all();
  EXPECT_TRUE(world().run_until([&] { return world().state().closed; }, 60s));
  EXPECT_TRUE(nodes[1]->status().closed);
  // The group is not disturbed.
  world().run_for(30s);
  EXPECT_TRUE(nodes[0]->status().member);
  EXPECT_TRUE(nodes[1]->status().member);
}

TEST_F(HostedRun, IsNotDisturbedByARestartOfItsServerEvenIfItIsClosed) {
  make_world(Kind::Hosted, limits(2, 3));
  const auto nodes = make_round({"a", "b"});
  nodes[1]->begin_close();
  ASSERT_TRUE(world().run_until(
      [&] { return nodes[0]->status().closed && nodes[1]->status().closed; }, kSoon));
  world().kill_server(sim::Crash::Loud);
  world().restart_server();
  world().run_for(30s);
  EXPECT_TRUE(world().state().closed);
  EXPECT_TRUE(nodes[0]->status().member);
  EXPECT_TRUE(nodes[1]->status().member);
}

// A join that was given up stayed a participant when its node came back on another connection.
TEST_F(HostedRun, ForgetsAJoinThatItsNodeHasGivenUp) {
  make_world(Kind::Hosted, limits(2, 2));
  Process& fickle = world().add("a");
  fickle.begin_join();
  ASSERT_TRUE(world().run_until([&] { return world().state().participants.size() == 1; }, kSoon));
  fickle.cancel();
  world().network().reset_all(fickle.host());
  EXPECT_TRUE(world().run_until([&] { return world().state().participants.empty(); }, 5s));
}

// Found by a seed: a join that began while the conversation was being opened was never said. The
// hello had been written before.
TEST_F(HostedRun, HearsOfAJoinThatBeganWhileItsNodeWasReconnecting) {
  Settings settings = limits(2, 2);
  settings.grace = 10s;
  make_world(Kind::Hosted, settings);
  const auto nodes = make_round({"a", "b"});
  world().network().cut(nodes[0]->host(), server());
  world().network().reset_all(nodes[0]->host());
  world().run_for(1s);
  nodes[0]->begin_join();
  world().run_for(1s);
  world().network().heal_all();
  EXPECT_TRUE(world().run_until([&] { return nodes[1]->status().lost; }, 5s));
}

TEST_F(HostedRun, HearsOfAClosingThatBeganWhileItsNodeWasReconnecting) {
  Settings settings = limits(2, 2);
  settings.grace = 10s;
  make_world(Kind::Hosted, settings);
  const auto nodes = make_round({"a", "b"});
  world().network().cut(nodes[0]->host(), server());
  world().network().reset_all(nodes[0]->host());
  world().run_for(1s);
  nodes[0]->begin_close();
  world().run_for(1s);
  world().network().heal_all();
  EXPECT_TRUE(world().run_until([&] { return nodes[1]->status().closed; }, 5s));
}

TEST_F(HostedRun, ForgetsAJoinThatWasGivenUpWhileItsNodeWasReconnecting) {
  make_world(Kind::Hosted, limits(2, 2));
  Process& fickle = world().add("a");
  fickle.begin_join();
  ASSERT_TRUE(world().run_until([&] { return world().state().participants.size() == 1; }, kSoon));
  world().network().cut(fickle.host(), server());
  world().network().reset_all(fickle.host());
  world().network().reset_all(server());
  world().run_for(1s);
  fickle.cancel();
  world().network().heal_all();
  world().run_for(5s);
  EXPECT_TRUE(world().state().participants.empty()) << describe(world().state());
}

// -- the shared driver
// -----------------------------------------------------------------------------

class SharedRun : public RegressionTest {};

// What it had seen before it was stopped was taken for what it would see now.
TEST_F(SharedRun, DoesNotLoseTheOthersWhenAnObserverWasStopped) {
  make_world(Kind::Extension, limits(3, 3));
  const auto nodes = make_round({"a", "b", "c"});
  world().run_for(20s);
  world().network().pause(nodes[0]->host());
  world().run_for(60s);
  ASSERT_EQ(world().state().participants.size(), 2U);
  world().network().resume(nodes[0]->host());
  world().run_for(20s);
  EXPECT_EQ(world().state().participants.size(), 2U) << describe(world().state());
  EXPECT_TRUE(nodes[1]->status().member);
  EXPECT_TRUE(nodes[2]->status().member);
  EXPECT_FALSE(nodes[0]->status().member);
}

TEST_F(SharedRun, GoesOnWhenAllWereStopped) {
  make_world(Kind::Extension, limits(3, 3));
  const auto nodes = make_round({"a", "b", "c"});
  world().run_for(20s);
  for (Process* node : nodes) world().network().pause(node->host());
  world().run_for(60s);
  for (Process* node : nodes) {
    world().network().resume(node->host());
    world().run_for(1s);
  }
  world().run_for(20s);
  EXPECT_EQ(world().state().participants.size(), 3U) << describe(world().state());
  EXPECT_FALSE(world().state().lost);
}

// A join that failed forgot which round it had come from.
TEST_F(SharedRun, DoesNotBringANodeBackToTheRoundItCameFrom) {
  make_world(Kind::Extension, limits(2, 2));
  const auto nodes = make_round({"a", "b"});
  world().network().cut(nodes[0]->host(), server());
  nodes[0]->begin_join(1s);
  ASSERT_TRUE(world().run_until([&] { return nodes[0]->joined().has_value(); }, 12s));
  EXPECT_FALSE(nodes[0]->is_in());
  world().network().heal_all();
  nodes[0]->begin_join();
  ASSERT_TRUE(world().run_until([&] { return nodes[1]->status().lost; }, 10s));
  nodes[1]->begin_join();
  ASSERT_TRUE(world().run_until_all_are_in(5s));
  EXPECT_EQ(nodes[0]->place().id.round, 1U);
}

// Found by a seed: of all who waited, the first one that was let in ended the last call, which had
// been over before the write; the others waited on, and so all had to meet again and again.
TEST_F(SharedRun, LetsAllInWhoWaitedBeforeTheLastCallEnds) {
  const Settings settings = limits(1, 3);
  const Node first{"a", 1, 0, 1};
  const Node second{"b", 1, 0, 2};
  const Node third{"c", 1, 0, 3};
  const TimePoint begin(10s);
  State state;
  state.birth = 1;
  state.wait_list = {second, third};
  apply(Action::AddToParticipants, first, settings, begin, state);
  ASSERT_TRUE(state.deadline);
  advance_late(settings, begin + 1min, state);
  EXPECT_TRUE(state.complete);
  EXPECT_EQ(state.world_size, 3) << describe(state);
  EXPECT_TRUE(state.wait_list.empty());
}

// A broken store that lost a write: the node was in the round that it came from, and this round was
// not complete. It left and came back for ever, in one turn.
TEST_F(SharedRun, GoesOnWhenItsStoreGoesBackInTime) {
  const tests::LogCapture log(log::Level::Error);
  sim::Loop loop;
  Random random(1);
  FakeRun run(loop);
  FakeBackend backend(run);
  const Settings settings = limits(1, 1);
  const auto driver = make_shared_driver(loop, random, backend, settings, Node{"a", 1, 0, 1},
                                         SharedDriverOptions());
  const auto place = loop.block_on(driver->join(loop.now() + 1min));
  ASSERT_TRUE(place);
  State before;
  before.birth = place->id.birth;
  before.round = place->id.round;
  run.write(encode(before), true);
  EXPECT_TRUE(loop.block_on(driver->join(loop.now() + 1min)));
}

// A store that lost everything: what was made of an old copy had the names of rounds that others
// had been in.
TEST_F(SharedRun, HasANewNameWhenItsStateIsGone) {
  sim::Loop loop;
  Random random(1);
  FakeRun run(loop);
  FakeBackend backend(run);
  const Settings settings = limits(1, 2);
  const Node node{"a", 1, 0, 1};
  Sightings sightings(node);
  StateHolder holder(loop, random, backend, settings, sightings, StateHolder::Options{0s});
  holder.edit().round = 5;
  ASSERT_TRUE(loop.block_on(holder.sync()));
  const std::uint64_t birth = holder.state().birth;
  run.forget();
  holder.edit().round = 6;
  const auto lost = loop.block_on(holder.sync());
  ASSERT_TRUE(lost);
  EXPECT_EQ(*lost, StateHolder::Outcome::Lost);
  EXPECT_EQ(holder.state().round, 6U) << "our changes are kept";
  EXPECT_EQ(holder.token(), std::nullopt);
  EXPECT_NE(holder.state().birth, birth);
}

}  // namespace
}  // namespace muster::rendezvous::testing
