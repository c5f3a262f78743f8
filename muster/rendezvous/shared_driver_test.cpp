// What a node does with the store: joining, closing, asking, and when the store fails.
#include "muster/rendezvous/shared_driver.h"

#include "muster/rendezvous/state_codec.h"
#include "tests/rendezvous/shared_peers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::keep;
using testing::limits;
using testing::node;
using testing::Peer;
using testing::SharedDriverTest;

// ---- joining

TEST_F(SharedDriverTest, JoinsWithOneReadAndOneWrite) {  // 61
  Peer& a = add("a", limits(2, 2));
  a.join();
  loop.advance(1s);
  EXPECT_FALSE(a.place);
  EXPECT_EQ(a.backend.calls.gets, 1);
  EXPECT_EQ(a.backend.calls.sets, 1);
  EXPECT_EQ(stored().participants, (std::map<Node, std::int64_t>{{a.self, 0}}));
  EXPECT_FALSE(stored().deadline);
  EXPECT_FALSE(stored().complete);
  EXPECT_EQ(a.backend.calls.beats, 1);
}

TEST_F(SharedDriverTest, CompletesAtOnceWhenTheMaximumIsThere) {  // 64, 111
  Peer& b = add("b", limits(2, 2));
  Peer& a = add("a", limits(2, 2));
  join_all({&b, &a});
  EXPECT_EQ(loop.now(), TimePoint());
  EXPECT_EQ((**a.place).rank, 0);
  EXPECT_EQ((**b.place).rank, 1);
  EXPECT_EQ((**a.place).world_size, 2);
  EXPECT_EQ((**b.place).world_size, 2);
  EXPECT_EQ((**a.place).id, (**b.place).id);
  EXPECT_NE((**a.place).id.birth, 0U);
  // Adding oneself and completing the round is one write.
  EXPECT_EQ(a.backend.calls.sets, 1);
  EXPECT_EQ(b.backend.calls.sets, 1);
}

TEST_F(SharedDriverTest, CompletesWhenTheLastCallIsOver) {  // 63, 85, 112
  Peer& a = add("a", limits(1, 3));
  Peer& b = add("b", limits(1, 3));
  a.join();
  loop.advance(10s);
  b.join();
  loop.advance(20s);
  EXPECT_FALSE(a.place);
  loop.advance(1ms);
  ASSERT_TRUE(a.joined() && b.joined());
  EXPECT_EQ((**a.place).world_size, 2);
  EXPECT_EQ((**b.place).rank, 1);
}

TEST_F(SharedDriverTest, LetsALateNodeWaitUntilTheOthersCome) {  // 82, 117
  Peer& a = add("a", limits(1, 2));
  join_all({&a});
  Peer& b = add("b", limits(1, 2));
  b.join();
  loop.run_until_idle();
  EXPECT_EQ(stored().wait_list, std::set<Node>{b.self});
  EXPECT_EQ(a.status().waiting, 1);
  EXPECT_FALSE(b.place);
  join_all({&a, &b});
  EXPECT_EQ((**a.place).id.round, 1U);
  EXPECT_EQ((**a.place).world_size, 2);
  EXPECT_TRUE(stored().wait_list.empty());
  EXPECT_EQ(a.status().waiting, 0);
}

TEST_F(SharedDriverTest, WaitsWithoutWritingAnything) {  // 73
  Peer& a = add("a", limits(2, 2));
  a.join();
  loop.advance(1s);
  const auto version = run.version();
  loop.advance(5min);
  EXPECT_EQ(run.version(), version);
  // It looks for itself as often as it gives a sign of life.
  EXPECT_LE(a.backend.calls.gets, 1 + 60 + 1);
  EXPECT_EQ(a.backend.calls.sets, 1);
}

TEST_F(SharedDriverTest, FinishesAtOnceWhereItIsAMemberAlready) {  // 74, 78
  // A join that was given up, and yet took effect.
  Peer& a = add("a", limits(1, 1));
  a.backend.answers_to_lose = 1;
  a.join();
  loop.run_until_idle();
  a.cancel();
  ASSERT_TRUE(stored().complete);
  a.backend.calls = {};
  join_all({&a});
  EXPECT_EQ((**a.place).id.round, 0U);
  EXPECT_EQ(a.backend.calls.gets, 1);
  EXPECT_EQ(a.backend.calls.sets, 0);
}

TEST_F(SharedDriverTest, IsJitteredAsLongAsItKnowsOnlyTheFirstRound) {  // 93
  std::set<Duration> delays;
  for (std::size_t i = 1; i <= 20; ++i) {
    run.forget();
    Peer& peer = add(std::string(i, 'n'), limits(1, 1), 300ms);
    const TimePoint start = loop.now();
    join_all({&peer});
    EXPECT_LE(loop.now() - start, 300ms);
    delays.insert(loop.now() - start);
    join_all({&peer});  // leaves round 0
    const TimePoint later = loop.now();
    join_all({&peer});
    EXPECT_EQ(loop.now(), later);
    peer.die();
  }
  EXPECT_GT(delays.size(), 10U);
}

TEST_F(SharedDriverTest, TimesOutWhenTheStoreIsTooSlow) {  // 95
  Settings settings = limits(1, 1);
  settings.timeouts.join = 200ms;
  Peer& a = add("a", settings);
  a.backend.delay = 300ms;
  a.join();
  loop.advance(20s);
  EXPECT_EQ(a.failure(), ErrorKind::Timeout);
  EXPECT_TRUE(stored().participants.empty());
}

TEST_F(SharedDriverTest, CountsTheRoundsOfASingleNode) {  // 96
  Peer& a = add("a", limits(1, 1));
  for (std::uint64_t round = 0; round < 4; ++round) {
    const int sets = a.backend.calls.sets;
    join_all({&a});
    EXPECT_EQ((**a.place).id.round, round);
    EXPECT_EQ((**a.place).world_size, 1);
    // Leaving and joining is one write, too.
    EXPECT_EQ(a.backend.calls.sets, sets + 1);
  }
}

TEST_F(SharedDriverTest, MeetsAgainWithAllWhenOneFailsItsWorkers) {  // 118
  Peer& a = add("a", limits(3, 3));
  Peer& b = add("b", limits(3, 3));
  Peer& c = add("c", limits(3, 3));
  join_all({&a, &b, &c});
  b.join();
  loop.run_until_idle();
  EXPECT_EQ(stored().wait_list, std::set<Node>{b.self});
  EXPECT_EQ(a.status().waiting, 1);
  EXPECT_TRUE(a.status().lost);
  c.join();
  loop.run_until_idle();
  EXPECT_EQ(stored().round, 0U);
  join_all({&a, &b, &c});
  EXPECT_EQ((**b.place).id.round, 1U);
  EXPECT_EQ((**b.place).rank, 1);
  EXPECT_FALSE(b.status().lost);
}

// ---- the deadline of a join

TEST_F(SharedDriverTest, TakesItselfOutWhenItsTimeIsUp) {  // 89, 113, D13
  Settings settings = limits(2, 3);
  settings.timeouts.join = 5s;
  Peer& a = add("a", settings);
  a.join();
  loop.advance(5s);
  EXPECT_FALSE(a.place);
  loop.advance(1ms);
  EXPECT_EQ(a.failure(), ErrorKind::Timeout);
  EXPECT_TRUE(stored().participants.empty());
  EXPECT_EQ(run.sign_count(), 0U);
  // After a failed join no heartbeats run.
  const int beats = a.backend.calls.beats;
  loop.advance(1min);
  EXPECT_EQ(a.backend.calls.beats, beats);
}

TEST_F(SharedDriverTest, LeavesTheWaitListWhenItsTimeIsUp) {  // 89, 120
  Peer& a = add("a", limits(1, 3));
  join_all({&a});
  Settings settings = limits(1, 3);
  settings.timeouts.join = 10s;
  Peer& b = add("b", settings);
  b.join();
  loop.advance(10s);
  EXPECT_FALSE(b.place);
  EXPECT_EQ(a.status().waiting, 1);
  loop.advance(1ms);
  EXPECT_EQ(b.failure(), ErrorKind::Timeout);
  EXPECT_TRUE(stored().wait_list.empty());
  EXPECT_EQ(a.status().waiting, 0);
}

TEST_F(SharedDriverTest, GivesUpAtOnceWhenItIsTooLateFromTheStart) {  // 72, 88
  State state;
  state.birth = 1;
  write(state);
  Peer& a = add("a", limits(2, 2));
  loop.advance(1h);
  a.join(loop.now() - 10s);
  loop.run_until_idle();
  EXPECT_EQ(a.failure(), ErrorKind::Timeout);
  EXPECT_EQ(a.backend.calls.sets, 0);
}

// ---- closing

TEST_F(SharedDriverTest, RefusesToJoinAClosedRun) {  // 72, 77
  State state;
  state.birth = 1;
  state.closed = true;
  write(state);
  Peer& a = add("a", limits(1, 2));
  a.join();
  loop.run_until_idle();
  EXPECT_EQ(a.failure(), ErrorKind::Closed);
  EXPECT_EQ(a.backend.calls.sets, 0);
  EXPECT_EQ(run.sign_count(), 0U);
}

TEST_F(SharedDriverTest, TellsThoseWhoWaitThatTheRunIsClosed) {  // 77, 116
  Peer& a = add("a", limits(1, 2));
  Peer& b = add("b", limits(1, 2));
  join_all({&a});
  b.join();
  loop.run_until_idle();
  ASSERT_TRUE(await(a.driver->close(loop.now() + 30s)));
  loop.run_until_idle();
  EXPECT_EQ(b.failure(), ErrorKind::Closed);
  EXPECT_TRUE(a.status().closed);
  // The node that was refused left nothing behind, and the member goes on.
  EXPECT_TRUE(stored().wait_list.empty());
  EXPECT_TRUE(stored().participants.contains(a.self));
  EXPECT_TRUE(a.status().member);
}

TEST_F(SharedDriverTest, ClosesARunOnce) {  // 71, 98
  Peer& a = add("a", limits(1, 2));
  join_all({&a});
  ASSERT_TRUE(await(a.driver->close(loop.now() + 30s)));
  State expected = stored();
  const auto version = run.version();
  ASSERT_TRUE(await(a.driver->close(loop.now() + 30s)));
  EXPECT_EQ(run.version(), version);
  EXPECT_TRUE(expected.closed);
  EXPECT_TRUE(expected.complete);
}

TEST_F(SharedDriverTest, ClosesARunThatNobodyHasJoined) {
  Peer& a = add("a", limits(1, 2));
  ASSERT_TRUE(await(a.driver->close(loop.now() + 30s)));
  EXPECT_TRUE(stored().closed);
}

TEST_F(SharedDriverTest, GivesUpClosingWhenTheStoreIsTooSlow) {  // 99
  Peer& a = add("a", limits(1, 2));
  a.backend.delay = 300ms;
  const auto closed = await(a.driver->close(loop.now() + 200ms));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().kind, ErrorKind::Timeout);
  EXPECT_FALSE(stored().closed);
}

TEST_F(SharedDriverTest, ClosesAlthoughOthersAreFaster) {
  Peer& a = add("a", limits(1, 3));
  join_all({&a});
  int rivals = 5;
  a.backend.calls = {};
  a.backend.delay = 1ms;
  a.backend.before_set = [&] {
    if (rivals-- > 0) run.write(run.stored()->blob, false);
  };
  ASSERT_TRUE(await(a.driver->close(loop.now() + 30s)));
  EXPECT_TRUE(stored().closed);
  EXPECT_EQ(a.backend.calls.sets, 5 + 1);
}

// ---- errors of the store

TEST_F(SharedDriverTest, PassesErrorsOfTheStoreOn) {  // 100
  Peer& a = add("a", limits(1, 2));
  a.backend.failure = Error{ErrorKind::Unavailable, "no store"};
  EXPECT_EQ(await(a.driver->look()).error(), *a.backend.failure);
  EXPECT_EQ(await(a.driver->close(loop.now() + 30s)).error(), *a.backend.failure);
  EXPECT_EQ(await(a.driver->snapshot()).error(), *a.backend.failure);
}

TEST_F(SharedDriverTest, TriesAgainToJoinUntilTheStoreIsThere) {
  Peer& a = add("a", limits(1, 1));
  a.backend.failure = Error{ErrorKind::Unavailable, "no store"};
  a.join();
  loop.advance(5min);
  EXPECT_FALSE(a.place);
  // With growing pauses.
  EXPECT_LT(a.backend.calls.beats, 400);
  a.backend.failure.reset();
  loop.advance(5s);
  EXPECT_TRUE(a.joined());
}

TEST_F(SharedDriverTest, StopsTryingToReachTheStoreAtTheDeadline) {
  Settings settings = limits(1, 1);
  settings.timeouts.join = 1min;
  Peer& a = add("a", settings);
  a.backend.failure = Error{ErrorKind::Unavailable, "no store"};
  a.join();
  loop.advance(59s);
  EXPECT_FALSE(a.place);
  loop.advance(10s);
  EXPECT_EQ(a.failure(), ErrorKind::Unavailable);
}

TEST_F(SharedDriverTest, LetsASpareRideOutALostStoreLikeAnyOther) {
  Settings settings = limits(1, 1);
  settings.timeouts.join = 1min;
  Peer& a = add("a", settings);
  Peer& b = add("b", settings);
  join_all({&a});
  b.join();
  loop.advance(10min);  // long past what was its deadline
  EXPECT_FALSE(b.place);
  b.backend.failure = Error{ErrorKind::Unavailable, "no store"};
  loop.advance(14s);
  b.backend.failure.reset();
  loop.advance(10min);
  EXPECT_FALSE(b.place);
  EXPECT_TRUE(stored().redundancy_list.contains(b.self));
  b.backend.failure = Error{ErrorKind::Unavailable, "no store"};
  loop.advance(70s);
  EXPECT_EQ(b.failure(), ErrorKind::Unavailable);
}

TEST_F(SharedDriverTest, DoesNotTryAgainWhatCannotBeRead) {
  run.write("junk", false);
  Peer& a = add("a", limits(1, 1));
  a.join();
  loop.run_until_idle();
  EXPECT_EQ(a.failure(), ErrorKind::Corrupt);
  EXPECT_EQ(run.stored()->blob, "junk");
}

TEST_F(SharedDriverTest, JoinsOnceWhenTheAnswerToItsWriteIsLost) {
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  a.backend.answers_to_lose = 1;
  b.backend.answers_to_lose = 1;
  join_all({&a, &b});
  EXPECT_EQ((**a.place).id, (**b.place).id);
  EXPECT_EQ((**a.place).world_size, 2);
  EXPECT_EQ(stored().participants.size(), 2U);
}

TEST_F(SharedDriverTest, KnowsTheLastStatusForAWhileWhenTheStoreIsLost) {
  Peer& a = add("a", limits(1, 2));
  join_all({&a});
  ASSERT_TRUE(await(a.driver->look()));
  a.backend.failure = Error{ErrorKind::Unavailable, "no store"};
  loop.advance(14s);
  const auto known = await(a.driver->look());
  ASSERT_TRUE(known);
  EXPECT_TRUE(known->member);
  loop.advance(2s);
  const auto unknown = await(a.driver->look());
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().kind, ErrorKind::Unavailable);
}

TEST_F(SharedDriverTest, BeginsAgainWhenTheStoreHasForgottenEverything) {
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  join_all({&a, &b});
  const RoundId before = (**a.place).id;
  run.forget();
  loop.advance(6s);
  EXPECT_FALSE(a.status().member);
  join_all({&a, &b});
  EXPECT_NE((**a.place).id, before);
  EXPECT_EQ((**a.place).id, (**b.place).id);
  EXPECT_TRUE(stored().complete);
}

TEST_F(SharedDriverTest, FindsNoPlaceInAStateThatWasForgottenUnderItsHands) {  // 59
  Peer& a = add("a", limits(1, 1));
  join_all({&a});
  bool forgotten = false;
  a.backend.before_set = [&] {
    if (!std::exchange(forgotten, true)) run.forget();
  };
  join_all({&a});
  // It says that it is in a round only when that is stored.
  EXPECT_TRUE(stored().complete);
  EXPECT_EQ((RoundId{stored().birth, stored().round}), (**a.place).id);
}

TEST_F(SharedDriverTest, ClosesARunWhoseStateWasForgottenUnderItsHands) {
  Peer& a = add("a", limits(1, 1));
  join_all({&a});
  bool forgotten = false;
  a.backend.before_set = [&] {
    if (!std::exchange(forgotten, true)) run.forget();
  };
  ASSERT_TRUE(await(a.driver->close(loop.now() + 10s)));
  EXPECT_TRUE(stored().closed);
}

// ---- asking

TEST_F(SharedDriverTest, AnswersFromItsCopyWhileThatIsFresh) {  // 97
  Peer& a = add("a", limits(1, 2));
  EXPECT_FALSE(await(a.driver->look())->closed);
  EXPECT_EQ(a.backend.calls.gets, 1);
  State state;
  state.birth = 1;
  state.closed = true;
  write(state);
  loop.advance(1s);
  EXPECT_FALSE(await(a.driver->look())->closed);
  EXPECT_EQ(a.backend.calls.gets, 1);
  loop.advance(1ms);
  EXPECT_TRUE(await(a.driver->look())->closed);
  EXPECT_EQ(a.backend.calls.gets, 2);
}

TEST_F(SharedDriverTest, CountsThoseWhoWaitAndNoSpares) {  // 102
  State state;
  state.birth = 1;
  state.min_nodes = 1;
  state.max_nodes = 3;
  state.complete = true;
  state.world_size = 1;
  state.participants[node("m")] = 0;
  state.wait_list = {node("w1"), node("w2")};
  state.redundancy_list = {node("r")};
  write(state);
  Peer& a = add("a", limits(1, 3));
  EXPECT_EQ(await(a.driver->look())->waiting, 2);
  const auto snapshot = await(a.driver->snapshot());
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(snapshot->members.size(), 1U);
  EXPECT_EQ(snapshot->waiting.size(), 2U);
  EXPECT_EQ(snapshot->spare.size(), 1U);
}

TEST_F(SharedDriverTest, TellsThoseWhoWaitForAnotherStatus) {
  Peer& a = add("a", limits(1, 2));
  join_all({&a});
  std::optional<Result<Status>> changed;
  TaskScope scope;
  scope.start(keep(a.driver->wait_status(a.status(), kNever), changed));
  loop.advance(1min);
  EXPECT_FALSE(changed);
  Peer& b = add("b", limits(1, 2));
  b.join();
  loop.run_until_idle();
  ASSERT_TRUE(changed && *changed);
  EXPECT_EQ((**changed).waiting, 1);
}

}  // namespace
}  // namespace muster::rendezvous
