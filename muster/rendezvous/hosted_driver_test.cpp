#include "muster/rendezvous/hosted_driver.h"

#include "muster/rendezvous/host.h"
#include "muster/sim/loop.h"
#include "tests/rendezvous/local_services.h"
#include "tests/rendezvous/states.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::LocalClient;
using testing::LocalServer;
using testing::node;

Settings limits(std::int64_t min_nodes, std::int64_t max_nodes) {
  Settings settings;
  settings.run_id = "run";
  settings.min_nodes = min_nodes;
  settings.max_nodes = max_nodes;
  return settings;
}

template <typename T>
Task<void> keep(Task<Result<T>> task, std::optional<Result<T>>& result) {
  auto outcome = co_await task;
  result.emplace(std::move(outcome));
}

class Peer {
 public:
  Peer(LocalServer& server, std::string_view name, Settings settings)
      : self(node(name)),
        client(server),
        loop_(server.loop()),
        random_(static_cast<unsigned char>(name.back())),
        join_timeout_(settings.timeouts.join) {
    HostedDriverOptions options;
    options.report = [this](NodeState state, std::string message) {
      events.emplace_back(state, std::move(message));
    };
    driver = make_hosted_driver(loop_, random_, client, std::move(settings), self, options);
  }

  void join() {
    place.reset();
    calls_.start(keep(driver->join(after(loop_.now(), join_timeout_)), place));
  }
  void cancel() { calls_.cancel_all(); }
  void die() {
    calls_.cancel_all();
    driver.reset();
  }
  bool joined() const { return place && *place; }
  ErrorKind failure() const { return place && !*place ? place->error().kind : ErrorKind::Conflict; }
  Status status() const { return driver->status(); }

  const Node self;
  LocalClient client;
  std::vector<std::pair<NodeState, std::string>> events;

 private:
  Loop& loop_;
  Random random_;
  Duration join_timeout_;

 public:
  std::unique_ptr<Driver> driver;
  std::optional<Result<Place>> place;

 private:
  TaskScope calls_;
};

class HostedDriverTest : public ::testing::Test {
 protected:
  Peer& add(std::string_view name, Settings settings) {
    peers_.push_back(std::make_unique<Peer>(server, name, std::move(settings)));
    return *peers_.back();
  }
  void join_all(std::initializer_list<Peer*> peers) {
    for (Peer* peer : peers) peer->join();
    loop.run_until_idle();
    for (Peer* peer : peers) {
      ASSERT_TRUE(peer->place);
      ASSERT_TRUE(*peer->place) << peer->place->error().message;
    }
  }
  template <typename T>
  T await(Task<T> task) {
    return loop.block_on(std::move(task));
  }
  const State& state() { return server.state(); }

  tests::LogCapture log;
  sim::Loop loop;
  Random random{5};
  LocalServer server{loop, random};
  std::vector<std::unique_ptr<Peer>> peers_;
};

// ---- joining

TEST_F(HostedDriverTest, JoinsWithOneMessageAndOneAnswer) {
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  join_all({&b, &a});
  EXPECT_EQ((**a.place), (Place{(**b.place).id, 0, 2}));
  EXPECT_EQ((**b.place).rank, 1);
  EXPECT_EQ(a.client.said_count(), 1U);
  EXPECT_EQ(b.client.said_count(), 1U);
  EXPECT_EQ(loop.now(), TimePoint());
  EXPECT_EQ(a.status(), (Status{.round = 0, .member = true}));
}

TEST_F(HostedDriverTest, MeetsAgainInTheNextRound) {  // 96
  Peer& a = add("a", limits(1, 1));
  for (std::uint64_t round = 0; round < 4; ++round) {
    join_all({&a});
    EXPECT_EQ((**a.place).id.round, round);
  }
  EXPECT_EQ(a.client.open_count(), 1U);
}

TEST_F(HostedDriverTest, IsToldThatSomebodyWaits) {  // 102, 117
  Peer& a = add("a", limits(1, 2));
  a.join();
  loop.advance(31s);
  ASSERT_TRUE(a.joined());
  std::optional<Result<Status>> changed;
  TaskScope scope;
  scope.start(keep(a.driver->wait_status(a.status(), kNever), changed));
  Peer& b = add("b", limits(1, 2));
  b.join();
  loop.run_until_idle();
  ASSERT_TRUE(changed && *changed);
  EXPECT_EQ((**changed).waiting, 1);
  EXPECT_EQ(await(a.driver->look())->waiting, 1);
  a.join();
  loop.run_until_idle();
  ASSERT_TRUE(a.joined() && b.joined());
  EXPECT_EQ((**b.place).world_size, 2);
  EXPECT_EQ(a.status().waiting, 0);
}

TEST_F(HostedDriverTest, GivesUpWhenItsTimeIsUpAndLeavesNothingBehind) {  // 113, D13
  Settings settings = limits(2, 3);
  settings.timeouts.join = 5s;
  Peer& a = add("a", settings);
  a.join();
  loop.advance(4999ms);
  EXPECT_FALSE(a.place);
  EXPECT_EQ(state().participants.size(), 1U);
  loop.advance(1ms);
  EXPECT_EQ(a.failure(), ErrorKind::Timeout);
  EXPECT_TRUE(state().participants.empty());
  EXPECT_EQ(server.line_count(), 0U);
}

TEST_F(HostedDriverTest, LeavesTheWaitListWhenItsTimeIsUp) {  // 120
  Peer& a = add("a", limits(1, 3));
  a.join();
  loop.advance(31s);
  Settings settings = limits(1, 3);
  settings.timeouts.join = 5s;
  Peer& b = add("b", settings);
  b.join();
  loop.advance(1s);
  EXPECT_EQ(state().wait_list.size(), 1U);
  loop.advance(5s);
  EXPECT_EQ(b.failure(), ErrorKind::Timeout);
  EXPECT_TRUE(state().wait_list.empty());
  EXPECT_EQ(a.status().waiting, 0);
}

TEST_F(HostedDriverTest, WaitsForAServerThatIsNotThereYet) {
  server.set_up(false);
  Peer& a = add("a", limits(1, 1));
  a.join();
  loop.advance(2min);
  EXPECT_FALSE(a.place);
  EXPECT_LT(a.client.open_count(), 300U);  // with growing pauses
  server.set_up(true);
  loop.advance(3s);
  EXPECT_TRUE(a.joined());
}

TEST_F(HostedDriverTest, SaysThatThereWasNoServer) {
  server.set_up(false);
  Settings settings = limits(1, 1);
  settings.timeouts.join = 10s;
  Peer& a = add("a", settings);
  a.join();
  loop.advance(30s);
  EXPECT_EQ(a.failure(), ErrorKind::Unavailable);
  EXPECT_NE(a.place->error().message.find("connection refused"), std::string::npos);
  const auto opened = a.client.open_count();
  loop.advance(1min);
  EXPECT_EQ(a.client.open_count(), opened);
}

TEST_F(HostedDriverTest, IsRefusedWithOtherLimits) {  // D10, 128
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 3));
  a.join();
  b.join();
  loop.run_until_idle();
  EXPECT_EQ(b.failure(), ErrorKind::Invalid);
  EXPECT_NE(b.place->error().message.find("2 to 2 nodes"), std::string::npos);
  // It does not try again and again.
  loop.advance(1min);
  EXPECT_EQ(b.client.open_count(), 1U);
  EXPECT_FALSE(a.place);
}

TEST_F(HostedDriverTest, TakesBackAJoinThatWasCancelled) {
  Peer& a = add("a", limits(2, 2));
  a.join();
  loop.advance(1s);
  a.cancel();
  ASSERT_TRUE(await(a.driver->leave(loop.now() + 5s)));
  EXPECT_TRUE(state().participants.empty());
  Peer& b = add("b", limits(2, 2));
  join_all({&a, &b});
}

// ---- closing

TEST_F(HostedDriverTest, IsToldThatTheRunIsClosed) {  // 77, 98, 116
  Peer& a = add("a", limits(1, 2));
  a.join();
  loop.advance(31s);
  Peer& w = add("w", limits(1, 2));
  w.join();
  loop.run_until_idle();
  ASSERT_TRUE(await(a.driver->close(loop.now() + 30s)));
  loop.run_until_idle();
  EXPECT_EQ(w.failure(), ErrorKind::Closed);
  EXPECT_TRUE(a.status().closed);
  EXPECT_TRUE(a.status().member);
  ASSERT_TRUE(await(a.driver->close(loop.now() + 30s)));
  Peer& late = add("x", limits(1, 2));
  late.join();
  loop.run_until_idle();
  EXPECT_EQ(late.failure(), ErrorKind::Closed);
  EXPECT_TRUE(await(late.driver->look())->closed);
}

TEST_F(HostedDriverTest, ClosesWithoutEverHavingJoined) {
  Peer& a = add("a", limits(1, 2));
  ASSERT_TRUE(await(a.driver->close(loop.now() + 30s)));
  EXPECT_TRUE(state().closed);
}

TEST_F(HostedDriverTest, ClosesWhenTheServerComesBackInTime) {
  Peer& a = add("a", limits(1, 1));
  join_all({&a});
  server.set_up(false);
  std::optional<Result<>> closed;
  TaskScope scope;
  scope.start(keep(a.driver->close(loop.now() + 30s), closed));
  loop.advance(10s);
  EXPECT_FALSE(closed);
  server.set_up(true);
  loop.advance(3s);
  ASSERT_TRUE(closed && *closed);
  EXPECT_TRUE(state().closed);
}

TEST_F(HostedDriverTest, GivesUpClosingWithoutAServer) {  // 99
  server.set_up(false);
  Peer& a = add("a", limits(1, 1));
  const auto closed = await(a.driver->close(loop.now() + 5s));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(loop.now(), TimePoint(5s));
}

// ---- spares

TEST_F(HostedDriverTest, WaitsAsASpareWithoutADeadline) {  // 80, 114, 116
  Settings settings = limits(1, 1);
  settings.timeouts.join = 10s;
  Peer& a = add("a", settings);
  Peer& s = add("s", settings);
  join_all({&a});
  s.join();
  loop.advance(1h);
  EXPECT_FALSE(s.place);
  EXPECT_EQ(a.status().waiting, 0);
  EXPECT_EQ(s.events.front(), std::pair(NodeState::Running, std::string("parked as a spare")));
  ASSERT_TRUE(await(a.driver->close(loop.now() + 30s)));
  loop.run_until_idle();
  EXPECT_EQ(s.failure(), ErrorKind::Finished);
}

TEST_F(HostedDriverTest, HasItsWholeTimeAgainWhenItIsCalled) {  // 70, 115
  Settings settings = limits(2, 2);
  settings.timeouts.join = 1min;
  Peer& a = add("a", settings);
  Peer& b = add("b", settings);
  Peer& s = add("s", settings);
  join_all({&a, &b});
  s.join();
  loop.advance(1h);
  b.die();
  loop.advance(1s);  // the grace is half a second
  EXPECT_EQ(a.status().waiting, 1);
  EXPECT_TRUE(a.status().lost);
  loop.advance(58s);
  EXPECT_FALSE(s.place);
  loop.advance(2s);
  EXPECT_EQ(s.failure(), ErrorKind::Timeout);
}

TEST_F(HostedDriverTest, WaitsAsASpareForTheServerAsLongAsAJoinMayTake) {
  Settings settings = limits(1, 1);
  settings.timeouts.join = 1min;
  Peer& a = add("a", settings);
  Peer& s = add("s", settings);
  join_all({&a});
  s.join();
  loop.advance(1h);
  // A short loss is none.
  s.client.cut_off(true);
  loop.advance(30s);
  s.client.cut_off(false);
  loop.advance(1h);
  EXPECT_FALSE(s.place);
  EXPECT_EQ(state().redundancy_list.size(), 1U);
  s.client.cut_off(true);
  loop.advance(61s);
  EXPECT_EQ(s.failure(), ErrorKind::Unavailable);
}

TEST_F(HostedDriverTest, HasADeadlineAgainWhenItWasCalledWhileItWasAway) {
  Settings settings = limits(2, 2);
  settings.timeouts.join = 1min;
  settings.grace = 10s;
  Peer& a = add("a", settings);
  Peer& b = add("b", settings);
  Peer& s = add("s", settings);
  join_all({&a, &b});
  s.join();
  loop.advance(1h);
  s.client.cut_off(true);
  ASSERT_TRUE(await(b.driver->leave(loop.now() + 1s)));
  loop.advance(1s);
  s.client.cut_off(false);
  loop.advance(3s);
  EXPECT_EQ(state().wait_list.size(), 1U);
  loop.advance(1min);
  EXPECT_EQ(s.failure(), ErrorKind::Timeout);
}

// ---- the line

TEST_F(HostedDriverTest, SpeaksOnceAnIntervalFromTheJoinToTheStop) {  // 103, 105
  Peer& a = add("a", limits(1, 1));
  loop.advance(1min);
  EXPECT_EQ(a.client.said_count(), 0U);
  join_all({&a});
  const auto before = a.client.said_count();
  loop.advance(50s);
  EXPECT_EQ(a.client.said_count(), before + 10);
  a.driver->stop();
  loop.advance(1min);
  EXPECT_EQ(a.client.said_count(), before + 10);
  EXPECT_FALSE(a.client.connected());
  join_all({&a});
  a.die();
  EXPECT_FALSE(a.client.connected());
}

TEST_F(HostedDriverTest, AsksForAnAnswerOnlyWhenTheServerHasBeenSilentForAWindow) {
  Peer& a = add("a", limits(1, 1));  // an interval of 5 s, a window of three
  join_all({&a});
  const auto said = a.client.said_count();
  const auto told = a.client.told_count();
  loop.advance(10min);
  EXPECT_EQ(a.client.said_count(), said + 120);
  EXPECT_GE(a.client.told_count(), told + 29);
  EXPECT_LE(a.client.told_count(), told + 40);
}

TEST_F(HostedDriverTest, LeavesALineOnWhichTheServerIsSilentForTooLong) {
  Peer& a = add("a", limits(1, 1));
  join_all({&a});
  const auto opened = a.client.open_count();
  a.client.fall_silent();
  const Settings settings = limits(1, 1);
  const Duration beat = settings.keep_alive_interval;
  loop.advance(settings.window() + beat + settings.timeouts.heartbeat + beat);
  EXPECT_EQ(a.client.open_count(), opened + 1);
  EXPECT_TRUE(a.status().member);
}

TEST_F(HostedDriverTest, DoesNotSpeakInStepWithTheOthers) {
  for (char name = 'a'; name <= 'j'; ++name) add(std::string(1, name), limits(10, 10)).join();
  loop.run_until_idle();
  std::set<TimePoint> beats;
  std::vector<std::size_t> said;
  for (const auto& peer : peers_) said.push_back(peer->client.said_count());
  for (int tenth = 0; tenth < 50; ++tenth) {
    loop.advance(100ms);
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const std::size_t count = peers_[i]->client.said_count();
      if (std::exchange(said[i], count) != count) beats.insert(loop.now());
    }
  }
  EXPECT_GE(beats.size(), 5U);
}

TEST_F(HostedDriverTest, ComesBackBeforeAnybodyNotices) {
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  join_all({&a, &b});
  for (int i = 0; i < 20; ++i) {
    a.client.cut();
    loop.advance(2s);
    EXPECT_TRUE(a.client.connected());
    EXPECT_TRUE(a.status().member);
    EXPECT_FALSE(b.status().lost);
  }
}

TEST_F(HostedDriverTest, ComesBackToAJoinThatIsPending) {
  Peer& a = add("a", limits(2, 2));
  a.join();
  loop.advance(1s);
  a.client.cut();
  loop.advance(1s);
  Peer& b = add("b", limits(2, 2));
  join_all({&b});
  EXPECT_TRUE(a.joined());
}

TEST_F(HostedDriverTest, HearsOfARoundThatCompletedWhileItWasAway) {
  Settings settings = limits(2, 2);
  settings.grace = 10s;
  Peer& a = add("a", settings);
  Peer& b = add("b", settings);
  a.join();
  loop.advance(1s);
  a.client.cut_off(true);
  join_all({&b});
  EXPECT_FALSE(a.place);
  a.client.cut_off(false);
  loop.advance(3s);
  ASSERT_TRUE(a.joined());
  EXPECT_EQ((**a.place).id, (**b.place).id);
}

TEST_F(HostedDriverTest, OpensAnotherLineWhenWhatItSaysDoesNotArrive) {  // 104
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  join_all({&a, &b});
  a.client.swallow();
  // The next sign of life within 5 s, and not confirmed after 5 s more.
  loop.advance(11s);
  EXPECT_EQ(a.client.open_count(), 2U);
  EXPECT_TRUE(a.status().member);
  EXPECT_FALSE(b.status().lost);
}

TEST_F(HostedDriverTest, KnowsTheLastStatusForAWhileWithoutAServer) {
  Peer& a = add("a", limits(1, 2));
  a.join();
  loop.advance(31s);
  ASSERT_TRUE(a.joined());
  server.set_up(false);
  loop.advance(14s);
  const auto known = await(a.driver->look());
  ASSERT_TRUE(known);
  EXPECT_TRUE(known->member);
  loop.advance(2s);
  const auto unknown = await(a.driver->look());
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().kind, ErrorKind::Unavailable);
}

TEST_F(HostedDriverTest, AsksTheServerWhenItKnowsNothing) {  // 97
  Peer& a = add("a", limits(1, 1));
  Peer& b = add("b", limits(1, 1));
  ASSERT_TRUE(await(b.driver->close(loop.now() + 5s)));
  const auto status = await(a.driver->look());
  ASSERT_TRUE(status);
  EXPECT_TRUE(status->closed);
  EXPECT_FALSE(status->member);
}

TEST_F(HostedDriverTest, GivesUpAskingAServerThatIsNotThere) {  // 100
  server.set_up(false);
  Peer& a = add("a", limits(1, 1));
  const auto status = await(a.driver->look());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::Unavailable);
  EXPECT_LE(loop.now(), TimePoint(5s));
  EXPECT_EQ(await(a.driver->snapshot()).has_value(), false);
}

TEST_F(HostedDriverTest, ShowsTheRun) {
  Peer& a = add("a", limits(1, 1));
  Peer& s = add("s", limits(1, 1));
  join_all({&a});
  s.join();
  loop.advance(2s);
  const auto snapshot = await(a.driver->snapshot());
  ASSERT_TRUE(snapshot);
  ASSERT_EQ(snapshot->members.size(), 1U);
  EXPECT_EQ(snapshot->members[0].node, a.self);
  EXPECT_EQ(snapshot->members[0].connected, true);
  EXPECT_EQ(snapshot->spare.size(), 1U);
  // And while the line is broken, when it is there again.
  a.client.cut();
  EXPECT_TRUE(await(a.driver->snapshot()));
}

TEST_F(HostedDriverTest, IsToldThatTheOthersHaveGivenItUp) {  // D5
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  join_all({&a, &b});
  a.client.cut_off(true);
  loop.advance(1s);
  EXPECT_TRUE(b.status().lost);  // D4
  a.client.cut_off(false);
  loop.advance(3s);
  EXPECT_FALSE(a.status().member);
  a.join();
  loop.run_until_idle();
  b.join();
  loop.run_until_idle();
  ASSERT_TRUE(a.joined() && b.joined());
  EXPECT_EQ((**a.place).id.round, 1U);
}

// ---- leaving

TEST_F(HostedDriverTest, LeavesWithoutClosing) {
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  join_all({&a, &b});
  ASSERT_TRUE(await(a.driver->leave(loop.now() + 5s)));
  EXPECT_FALSE(a.status().member);
  loop.run_until_idle();
  EXPECT_TRUE(b.status().lost);
  EXPECT_FALSE(b.status().closed);
  a.driver->stop();
}

TEST_F(HostedDriverTest, CannotLeaveWithoutALine) {
  Peer& a = add("a", limits(1, 1));
  join_all({&a});
  server.set_up(false);
  loop.advance(1s);
  const auto left = await(a.driver->leave(loop.now() + 5s));
  ASSERT_FALSE(left);
  EXPECT_EQ(left.error().kind, ErrorKind::Unavailable);
  // Nor does it come back to what it has given up.
  server.set_up(true);
  loop.advance(1min);
  EXPECT_EQ(state().round, 1U);
  EXPECT_TRUE(state().participants.empty());
}

TEST_F(HostedDriverTest, GivesUpLeavingWhenNobodyAnswers) {
  Peer& a = add("a", limits(1, 1));
  join_all({&a});
  a.client.swallow();
  const auto left = await(a.driver->leave(loop.now() + 2s));
  ASSERT_FALSE(left);
  EXPECT_EQ(left.error().kind, ErrorKind::Timeout);
}

// ---- a server that was restarted

TEST_F(HostedDriverTest, TellsARestartedServerWhereItWas) {
  Peer& a = add("a", limits(3, 3));
  Peer& b = add("b", limits(3, 3));
  Peer& c = add("c", limits(3, 3));
  join_all({&a, &b, &c});
  const RoundId round = (**a.place).id;
  server.restart();
  loop.advance(1min);
  for (const auto& peer : peers_) {
    EXPECT_TRUE(peer->status().member);
    EXPECT_FALSE(peer->status().lost);
  }
  EXPECT_EQ((RoundId{state().birth, state().round}), round);
  EXPECT_EQ(state().participants.at(b.self), 1);
  join_all({&a, &b, &c});
  EXPECT_EQ((**a.place).id.round, 1U);
}

TEST_F(HostedDriverTest, JoinsAgainAtARestartedServer) {
  Peer& a = add("a", limits(2, 2));
  a.join();
  loop.advance(1s);
  server.restart();
  loop.advance(1s);
  Peer& b = add("b", limits(2, 2));
  b.join();
  loop.advance(3s);
  ASSERT_TRUE(a.joined() && b.joined());
  EXPECT_EQ((**a.place).id, (**b.place).id);
}

TEST_F(HostedDriverTest, KeepsAClosedRunClosedAtARestartedServer) {
  Peer& a = add("a", limits(1, 1));
  join_all({&a});
  ASSERT_TRUE(await(a.driver->close(loop.now() + 5s)));
  server.restart();
  loop.advance(3s);
  EXPECT_TRUE(state().closed);
  EXPECT_TRUE(a.status().member);
  Peer& b = add("b", limits(1, 1));
  b.join();
  loop.run_until_idle();
  EXPECT_EQ(b.failure(), ErrorKind::Closed);
}

TEST_F(HostedDriverTest, SurvivesDestructionAnywhere) {
  for (Duration when = 0s; when < 5s; when += 250ms) {
    Peer& a = add("a", limits(2, 2));
    a.join();
    loop.advance(when);
    if (when > 2s) a.client.cut();
    loop.advance(1ms);
    a.die();
    loop.advance(1s);
    EXPECT_EQ(server.line_count(), 0U);
  }
}

}  // namespace
}  // namespace muster::rendezvous
