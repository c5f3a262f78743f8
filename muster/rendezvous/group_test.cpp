// What the stories under tests/rendezvous/scenarios do not show.
#include "muster/rendezvous/group.h"

#include "tests/rendezvous/fake_line.h"
#include "tests/rendezvous/states.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::check_invariants;
using testing::FakeLine;
using testing::node;
using testing::settings;
using Texts = std::vector<std::string>;

constexpr TimePoint at(Duration since_start) { return TimePoint(since_start); }

class GroupTest : public ::testing::Test {
 protected:
  struct Player {
    FakeLine line;
    Group::Seat* seat = nullptr;
  };

  Hello hello(std::string_view name, bool joins) {
    Hello hello;
    hello.run_id = "run";
    hello.joins = joins;
    hello.node = node(name);
    hello.settings = limits;
    return hello;
  }
  Player& sit(const std::string& name, bool joins, TimePoint now) {
    Player& player = players[name];
    const auto seated = group.sit(player.line, hello(name, joins), now);
    EXPECT_TRUE(seated) << seated.error().message;
    if (seated) player.seat = seated->seat;
    settle(now);
    return player;
  }
  Player& join(const std::string& name, TimePoint now) { return sit(name, true, now); }
  void hear(Player& player, Said::Kind kind, TimePoint now, RoundId after = {}) {
    EXPECT_TRUE(group.hear(*player.seat, {kind, after}, now));
    settle(now);
  }
  void tick(TimePoint now) {
    group.tick(now);
    settle(now);
  }
  void settle(TimePoint now) {
    if (group.needs_flush(now)) group.flush(now);
    check_invariants(group.state(), limits);
  }

  Settings limits = settings(1, 2);
  std::map<std::string, Player> players;
  Group group{"run", 77};
};

TEST_F(GroupTest, HasNoBirthUntilSomebodyJoins) {
  Player& a = sit("a", false, at(0s));
  EXPECT_EQ(group.state().birth, 0U);
  EXPECT_FALSE(group.snapshot(at(0s)).exists);
  hear(a, Said::Kind::Join, at(1s));
  EXPECT_EQ(group.state().birth, 77U);
}

TEST_F(GroupTest, KnowsWhenTimeMatters) {
  EXPECT_EQ(group.next_deadline(), kNever);
  Player& a = join("a", at(0s));
  EXPECT_EQ(group.next_deadline(), at(30s) + 1ns);  // the last call
  tick(group.next_deadline());
  EXPECT_EQ(a.line.take_texts(), Texts{"joined round=0 rank=0 of 1"});
  EXPECT_EQ(group.next_deadline(), at(90s) + 1ns);  // its silence
  group.lose(*a.seat, at(40s));
  EXPECT_EQ(group.next_deadline(), at(40s) + limits.grace);
  tick(group.next_deadline());
  EXPECT_EQ(group.seat_count(), 0U);
  // Old entries may be left, but they mean nothing.
  tick(at(10h));
  EXPECT_EQ(group.next_deadline(), kNever);
}

TEST_F(GroupTest, LooksAtManyNodesInOneGo) {
  constexpr int kCount = 1000;
  limits = settings(kCount, kCount);
  const Duration window = limits.window();
  const Duration step = window / (2 * kCount);
  std::vector<Player*> all;
  for (int index = 0; index < kCount; ++index) {
    all.push_back(&join(std::to_string(index), at(0s) + index * step));
  }
  for (int index = 0; index < kCount; ++index) {
    hear(*all[static_cast<std::size_t>(index)], Said::Kind::Beat,
         at(0s) + window / 2 + index * step);
  }
  // In the second half of the window each of the entries would come up, and nobody is late.
  int looks = 0;
  while (group.next_deadline() <= at(0s) + window + window / 2 - step && looks < kCount) {
    tick(group.next_deadline());
    ++looks;
  }
  EXPECT_LE(looks, 1 + window / kLookAhead);
  EXPECT_EQ(group.state().participants.size(), static_cast<std::size_t>(kCount));
  // Those who are silent are late to the nanosecond, in whichever go they were looked at.
  tick(at(0s) + window + window / 2);
  EXPECT_EQ(group.state().participants.size(), static_cast<std::size_t>(kCount));
  tick(at(0s) + window + window / 2 + 1ns);
  EXPECT_EQ(group.state().participants.size(), static_cast<std::size_t>(kCount - 1));
}

TEST_F(GroupTest, LooksAgainAtANodeThatSpokeMeanwhile) {
  Player& a = join("a", at(0s));
  tick(at(31s));
  hear(a, Said::Kind::Alive, at(60s));
  tick(at(91s));
  EXPECT_TRUE(group.state().complete);
  EXPECT_EQ(group.next_deadline(), at(150s) + 1ns);
  tick(at(150s));
  EXPECT_TRUE(group.state().complete);
  tick(at(150s) + 1ns);
  EXPECT_FALSE(group.state().complete);
  EXPECT_EQ(group.state().round, 1U);
}

TEST_F(GroupTest, TellsOfTheFirstWhoWaitsAtOnceAndOfTheirNumberNowAndThen) {
  limits = settings(1, 100);
  Player& a = join("a", at(0s));
  tick(at(31s));
  a.line.take();
  join("w1", at(40s));
  EXPECT_EQ(a.line.take_texts(), Texts{"status round=0 waiting=1"});
  for (int i = 2; i <= 50; ++i) join("w" + std::to_string(i), at(40s + i * 1ms));
  EXPECT_EQ(a.line.take_texts(), Texts{});
  EXPECT_EQ(group.next_deadline(), at(40s) + kCountPushInterval);
  tick(group.next_deadline());
  EXPECT_EQ(a.line.take_texts(), Texts{"status round=0 waiting=50"});
  // That nobody waits any more is worth being told at once.
  for (int i = 1; i <= 50; ++i)
    hear(players["w" + std::to_string(i)], Said::Kind::Leave, at(40s + 101ms));
  EXPECT_EQ(a.line.take_texts(), Texts{"status round=0"});
}

TEST_F(GroupTest, EndsAnOlderLineOfTheSameNode) {
  Player& a = join("a", at(0s));
  FakeLine newer;
  const auto seated = group.sit(newer, hello("a", true), at(1s));
  ASSERT_TRUE(seated);
  EXPECT_EQ(seated->replaced, &a.line);
  EXPECT_EQ(seated->seat, a.seat);
  tick(at(31s));
  EXPECT_EQ(newer.take_texts(), Texts{"joined round=0 rank=0 of 1"});
  EXPECT_EQ(a.line.take_texts(), Texts{});
}

TEST_F(GroupTest, FindsOtherLimitsAlsoWhenTheJoinComesLater) {  // D10
  Player& a = sit("a", false, at(0s));
  limits = settings(1, 3);
  Player& b = sit("b", false, at(0s));
  hear(b, Said::Kind::Join, at(1s));
  const auto heard = group.hear(*a.seat, {Said::Kind::Join, {}}, at(2s));
  ASSERT_FALSE(heard);
  EXPECT_EQ(heard.error().kind, ErrorKind::Invalid);
}

TEST_F(GroupTest, AnswersAJoinThatIsSaidTwiceOnce) {
  limits = settings(2, 2);
  Player& a = join("a", at(0s));
  hear(a, Said::Kind::Join, at(1s));
  join("b", at(2s));
  EXPECT_EQ(a.line.take_texts(), Texts{"joined round=0 rank=0 of 2"});
  EXPECT_EQ(group.state().participants.size(), 2U);
}

TEST_F(GroupTest, KnowsAJoinThatWasAnsweredFromOneThatIsNew) {
  limits = settings(1, 1);
  Player& a = join("a", at(0s));
  // The answer was lost, so the node asks again, and has left nothing behind: same place.
  hear(a, Said::Kind::Join, at(1s));
  EXPECT_EQ(a.line.take_texts(),
            (Texts{"joined round=0 rank=0 of 1", "joined round=0 rank=0 of 1"}));
  hear(a, Said::Kind::Join, at(2s), {77, 0});
  EXPECT_EQ(a.line.take_texts(), Texts{"joined round=1 rank=0 of 1"});
}

TEST_F(GroupTest, ShowsObserversWhatHappens) {
  FakeLine observer;
  group.add_observer(observer);
  join("a", at(0s));
  EXPECT_EQ(observer.take_texts(), Texts{"status round=0 no-member"});
  // Every change, but no more often than that.
  join("b", at(10ms));
  EXPECT_EQ(observer.take_texts(), Texts{});
  EXPECT_EQ(group.next_deadline(), at(kObserverPushInterval));
  tick(at(kObserverPushInterval));
  EXPECT_EQ(observer.take_texts(), Texts{"status round=0 no-member"});
  group.close(at(5s));
  settle(at(5s));
  EXPECT_EQ(observer.take_texts(), Texts{"status round=0 closed no-member"});
  group.remove_observer(observer);
  hear(players["a"], Said::Kind::Leave, at(10s));
  tick(at(20s));
  EXPECT_EQ(observer.take_texts(), Texts{});
}

TEST_F(GroupTest, ShowsWhoIsConnectedAndWhenTheyWereHeard) {
  limits = settings(1, 2);
  Player& a = join("a", at(0s));
  join("b", at(0s));
  join("spare", at(2s));
  group.lose(*a.seat, at(3s));
  const Snapshot snapshot = group.snapshot(at(3100ms));
  ASSERT_EQ(snapshot.members.size(), 2U);
  EXPECT_EQ(snapshot.members[0].connected, false);
  EXPECT_EQ(snapshot.members[1].connected, true);
  EXPECT_EQ(snapshot.members[1].last_heard, 3100ms);
  ASSERT_EQ(snapshot.spare.size(), 1U);
  EXPECT_EQ(snapshot.spare[0].last_heard, 1100ms);
  hear(players["b"], Said::Kind::Show, at(3100ms));
  EXPECT_EQ(players["b"].line.take_texts().back(), "snapshot members=2 waiting=0 spares=1");
}

TEST_F(GroupTest, ForgetsNodesThatAreGone) {
  Player& looker = sit("looker", false, at(0s));
  EXPECT_EQ(group.seat_count(), 1U);
  group.lose(*looker.seat, at(1s));
  EXPECT_EQ(group.seat_count(), 0U);
  Player& a = join("a", at(2s));
  hear(a, Said::Kind::Leave, at(3s));
  EXPECT_EQ(group.seat_count(), 1U);
  group.lose(*a.seat, at(4s));
  EXPECT_EQ(group.seat_count(), 0U);
}

TEST_F(GroupTest, ClosesARunThatNobodyHasJoined) {
  group.close(at(0s));
  EXPECT_TRUE(group.state().closed);
  EXPECT_NE(group.state().birth, 0U);
  Player& a = join("a", at(1s));
  EXPECT_EQ(a.line.take_texts().front(), "failed closed");
}

TEST_F(GroupTest, GivesRanksInTheOrderOfNamesForAnyOrderOfArrival) {
  limits = settings(5, 5);
  for (const char* name : {"c", "e", "a", "d", "b"}) join(name, at(0s));
  std::int64_t rank = 0;
  for (const char* name : {"a", "b", "c", "d", "e"}) {
    const auto told = players[name].line.take();
    ASSERT_EQ(told.size(), 1U);
    EXPECT_EQ(told[0].place, (Place{{77, 0}, rank++, 5}));
  }
}

TEST_F(GroupTest, SpeaksToEachNodeOnceForEachOfItsJoins) {  // 129
  constexpr int kCount = 1000;
  limits = settings(kCount, kCount);
  for (int i = 0; i < kCount; ++i) {
    const std::string name = "n" + std::to_string(i);
    const auto seated = group.sit(players[name].line, hello(name, true), at(i * 300us));
    ASSERT_TRUE(seated);
    players[name].seat = seated->seat;
    if (group.needs_flush(at(i * 300us))) group.flush(at(i * 300us));
  }
  ASSERT_TRUE(group.state().complete);
  check_invariants(group.state(), limits);
  for (auto& [name, player] : players) {
    const auto told = player.line.take();
    ASSERT_EQ(told.size(), 1U) << name;
    EXPECT_EQ(told[0].kind, Told::Kind::Joined);
    EXPECT_LE(player.line.byte_count(), 50U);
  }
  // All meet again: each is told that somebody waits, at most a few times how many do, and its
  // place in the new round.
  int turn = 0;
  for (auto& [name, player] : players) {
    const TimePoint now = at(1min + turn++ * 300us);
    ASSERT_TRUE(group.hear(*player.seat, {Said::Kind::Join, {77, 0}}, now));
    if (group.needs_flush(now)) group.flush(now);
  }
  ASSERT_TRUE(group.state().complete);
  EXPECT_EQ(group.state().round, 1U);
  for (auto& [name, player] : players) {
    const auto told = player.line.take();
    EXPECT_LE(told.size(), 1U + 1U + 3U + 1U) << name;
    EXPECT_EQ(told.back().kind, Told::Kind::Joined);
    EXPECT_EQ(told.back().place.id.round, 1U);
  }
}

// Members that all meet again for the same reason need not be told of one another.
TEST_F(GroupTest, DoesNotTellMembersOfThoseWhoMeetAgainBeforeThemUnlessTheyStayAway) {
  limits = settings(4, 4);
  for (const char* name : {"a", "b", "c", "d"}) join(name, at(0s));
  ASSERT_TRUE(group.state().complete);
  for (auto& [name, player] : players) player.line.take_texts();
  const RoundId first{77, 0};
  for (const char* name : {"a", "b", "c"}) {
    hear(players[name], Said::Kind::Join, at(1s), first);
    EXPECT_EQ(players["d"].line.take_texts(), Texts());
  }
  EXPECT_EQ(group.next_deadline(), at(1s + kRegroupPause));
  tick(at(1s + kRegroupPause));
  EXPECT_EQ(players["d"].line.take_texts().size(), 1U);
  EXPECT_EQ(players["a"].line.take_texts(), Texts());
  hear(players["d"], Said::Kind::Join, at(2s), first);
  EXPECT_EQ(group.state().round, 1U);
  for (auto& [name, player] : players) EXPECT_EQ(player.line.take_texts().size(), 1U) << name;
}

TEST_F(GroupTest, TellsMembersOfThoseWhoMeetAgainOneByOneAfterAWhile) {
  constexpr int kCount = 100;
  limits = settings(kCount, kCount);
  for (int i = 0; i < kCount; ++i) join(fmt::format("n{:03}", i), at(0s));
  ASSERT_TRUE(group.state().complete);
  Player& last = players[fmt::format("n{:03}", kCount - 1)];
  last.line.take_texts();
  TimePoint now = at(1s);
  int come = 0;
  while (last.line.take_texts().empty() && come < kCount - 1) {
    hear(players[fmt::format("n{:03}", come++)], Said::Kind::Join, now, {77, 0});
    now += kRegroupPause - 1ms;
  }
  EXPECT_LT(come, kCount - 1);
  EXPECT_GE(now, at(1s) + kRegroupMax);
  EXPECT_LE(now, at(1s) + kRegroupMax + 2 * kRegroupPause);
}

TEST_F(GroupTest, TellsAtOnceThatTheRunIsClosedWhileMembersMeetAgain) {
  limits = settings(3, 3);
  for (const char* name : {"a", "b", "c"}) join(name, at(0s));
  players["c"].line.take_texts();
  hear(players["a"], Said::Kind::Join, at(1s), {77, 0});
  EXPECT_EQ(players["c"].line.take_texts(), Texts());
  hear(players["b"], Said::Kind::Close, at(1s));
  EXPECT_EQ(players["c"].line.take_texts().size(), 1U);
}

TEST_F(GroupTest, SurvivesANodeThatSaysEverythingAtTheWrongTime) {
  limits = settings(1, 1);
  Player& a = join("a", at(0s));
  Player& b = join("b", at(0s));
  for (const Said::Kind kind :
       {Said::Kind::Leave, Said::Kind::Leave, Said::Kind::Join, Said::Kind::Alive, Said::Kind::Show,
        Said::Kind::Join, Said::Kind::Close, Said::Kind::Join, Said::Kind::Close}) {
    hear(a, kind, at(1s));
    hear(b, kind, at(1s));
  }
  EXPECT_TRUE(group.state().closed);
}

}  // namespace
}  // namespace muster::rendezvous
