#include "muster/rendezvous/rules.h"

#include "tests/rendezvous/states.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::check_invariants;
using testing::node;
using testing::settings;

// The numbers in comments are the rows of the specification. There, clocks of two machines are
// compared; here there is one clock, that of whoever looks.
const Node kThis{.addr = "this_node", .pid = 1, .local_id = 1, .nonce = 7};
const Node kD1 = node("d1");
constexpr TimePoint kNow(1h);

// One of the round, complete or not; d1 is in it.
State state_with_d1() {
  State state;
  state.birth = 1;
  state.min_nodes = 1;
  state.max_nodes = 2;
  state.participants[kD1] = 1;
  state.last_heartbeats[kD1] = kNow;
  return state;
}
State complete_with_d1() {
  State state = state_with_d1();
  state.complete = true;
  state.world_size = 2;
  return state;
}
void put(State& state, const Node& node, std::string_view list, TimePoint heard = kNow) {
  if (list == "P") state.participants[node] = 0;
  if (list == "W") state.wait_list.insert(node);
  if (list == "R") state.redundancy_list.insert(node);
  if (!list.empty()) state.last_heartbeats[node] = heard;
}

Action decide(Action (*table)(const Situation&), const State& state, const Settings& limits,
              TimePoint deadline = kNow) {
  return table({state, limits, kThis, kNow, deadline});
}
void act(Action action, const Settings& limits, State& state, const Node& node = kThis) {
  apply(action, node, limits, kNow, state);
}

// ---- actions

TEST(Rules, WaitForMoreNodesNoLongerThanAskedForInEveryRoundButTheFirst) {
  Settings limits = settings(1, 3);
  limits.timeouts.regroup = 100ms;
  State first;
  act(Action::AddToParticipants, limits, first);
  EXPECT_EQ(first.deadline, kNow + limits.timeouts.last_call);
  State later;
  later.round = 1;
  act(Action::AddToParticipants, limits, later);
  EXPECT_EQ(later.deadline, kNow + 100ms);
  limits.timeouts.regroup.reset();
  State likewise;
  likewise.round = 1;
  act(Action::AddToParticipants, limits, likewise);
  EXPECT_EQ(likewise.deadline, kNow + limits.timeouts.last_call);
}

TEST(Rules, AddTheFirstOfTwoToTheParticipants) {  // 61
  State state;
  act(Action::AddToParticipants, settings(2, 2), state);
  EXPECT_EQ(state.participants, (std::map<Node, std::int64_t>{{kThis, 0}}));
  EXPECT_EQ(state.last_heartbeats.at(kThis), kNow);
  EXPECT_FALSE(state.deadline);
  EXPECT_FALSE(state.complete);
  check_invariants(state, settings(2, 2));
}

TEST(Rules, TakeAParticipantOffTheWaitList) {  // 62
  State state;
  put(state, kThis, "W");
  act(Action::AddToParticipants, settings(2, 2), state);
  EXPECT_TRUE(state.participants.contains(kThis));
  EXPECT_TRUE(state.wait_list.empty());
  EXPECT_FALSE(state.complete);
  check_invariants(state, settings(2, 2));
}

TEST(Rules, BeginALastCallWhenTheMinimumIsReached) {  // 63
  for (std::int64_t others = 0; others <= 2; ++others) {
    const Settings limits = settings(others + 1, others + 2);
    State state;
    for (std::int64_t i = 0; i < others; ++i)
      act(Action::AddToParticipants, limits, state, node("d" + std::to_string(i)));
    EXPECT_FALSE(state.deadline) << others;
    act(Action::AddToParticipants, limits, state);
    EXPECT_EQ(state.deadline, kNow + limits.timeouts.last_call) << others;
    EXPECT_EQ(state.last_call_count, 1U);
    EXPECT_FALSE(state.complete);
    check_invariants(state, limits);
  }
}

TEST(Rules, CompleteTheRoundWhenTheMaximumIsReached) {  // 64
  for (const bool min_is_max : {true, false}) {
    for (std::int64_t others = 0; others <= 2; ++others) {
      const Settings limits = settings(min_is_max ? others + 1 : 1, others + 1);
      State state;
      for (std::int64_t i = others; i > 0; --i)
        act(Action::AddToParticipants, limits, state, node("d" + std::to_string(i)));
      EXPECT_EQ(state.deadline.has_value(), !min_is_max && others > 0);
      act(Action::AddToParticipants, limits, state);
      EXPECT_TRUE(state.complete);
      EXPECT_FALSE(state.deadline);
      EXPECT_EQ(state.world_size, others + 1);
      std::int64_t rank = 0;
      for (const auto& [member, its_rank] : state.participants) EXPECT_EQ(its_rank, rank++);
      EXPECT_EQ(state.participants.at(kThis), others);
      check_invariants(state, limits);
    }
  }
}

TEST(Rules, DoNotExtendALastCallForThoseWhoComeInIt) {
  const Settings limits = settings(1, 4);
  State state;
  apply(Action::AddToParticipants, kD1, limits, kNow, state);
  apply(Action::AddToParticipants, kThis, limits, kNow + 10s, state);
  EXPECT_EQ(state.deadline, kNow + 30s);
  EXPECT_EQ(state.last_call_count, 1U);
}

TEST(Rules, AddToTheWaitList) {  // 65
  State state;
  act(Action::AddToWaitList, settings(1, 2), state);
  EXPECT_EQ(state.wait_list, std::set<Node>{kThis});
  EXPECT_EQ(state.last_heartbeats.at(kThis), kNow);
}

TEST(Rules, MoveASpareToTheWaitList) {  // 66
  State state;
  put(state, kThis, "R");
  act(Action::AddToWaitList, settings(1, 2), state);
  EXPECT_TRUE(state.redundancy_list.empty());
  EXPECT_EQ(state.wait_list, std::set<Node>{kThis});
}

TEST(Rules, KeepTheRestOfARoundWhenAMemberLeaves) {  // 67
  for (const bool complete : {false, true}) {
    State state = state_with_d1();
    state.round = 1;
    state.max_nodes = 4;
    state.complete = complete;
    if (complete) state.world_size = 3;
    if (!complete) state.deadline = kNow;
    put(state, node("d2"), "P");
    put(state, kThis, "P");
    act(Action::RemoveFromParticipants, settings(1, 4), state);
    EXPECT_FALSE(state.participants.contains(kThis));
    EXPECT_FALSE(state.last_heartbeats.contains(kThis));
    EXPECT_EQ(state.participants.size(), 2U);
    EXPECT_EQ(state.deadline.has_value(), !complete);
    EXPECT_EQ(state.complete, complete);
    EXPECT_EQ(state.round, 1U);
    EXPECT_EQ(state.world_size, complete ? 3 : 0);
  }
}

TEST(Rules, BeginANewRoundWhenTheLastMemberLeaves) {  // 68
  State state;
  state.round = 1;
  state.complete = true;
  state.lost = true;
  state.world_size = 2;
  put(state, kThis, "P");
  act(Action::RemoveFromParticipants, settings(1, 2), state);
  EXPECT_FALSE(state.complete);
  EXPECT_FALSE(state.lost);
  EXPECT_EQ(state.round, 2U);
  EXPECT_EQ(state.world_size, 0);
  EXPECT_TRUE(state.participants.empty());
  EXPECT_TRUE(state.last_heartbeats.empty());
}

TEST(Rules, EndTheLastCallWhenTooFewAreLeft) {  // 69
  const Settings limits = settings(3, 4);
  State state;
  for (const char* name : {"d1", "d2"}) act(Action::AddToParticipants, limits, state, node(name));
  act(Action::AddToParticipants, limits, state);
  ASSERT_TRUE(state.deadline);
  act(Action::RemoveFromParticipants, limits, state);
  EXPECT_FALSE(state.deadline);
  // The next one to come begins another, of full length.
  apply(Action::AddToParticipants, kThis, limits, kNow + 5s, state);
  EXPECT_EQ(state.deadline, kNow + 35s);
  EXPECT_EQ(state.last_call_count, 2U);
}

TEST(Rules, TakeNodesOffTheirLists) {  // 70; that the deadline moves is in shared_driver_test
  State state = complete_with_d1();
  put(state, kThis, "W");
  act(Action::RemoveFromWaitList, settings(1, 2), state);
  EXPECT_EQ(state, complete_with_d1());
  put(state, kThis, "R");
  act(Action::RemoveFromRedundancyList, settings(1, 2), state);
  EXPECT_EQ(state, complete_with_d1());
}

TEST(Rules, ChangeNothingElseWhenARunIsClosed) {  // 71
  State state = complete_with_d1();
  put(state, kThis, "W");
  State closed = state;
  act(Action::MarkClosed, settings(1, 2), closed);
  EXPECT_TRUE(closed.closed);
  state.closed = true;
  EXPECT_EQ(closed, state);
}

TEST(Rules, ChangeOnlyTheHeartbeatWhenANodeIsKeptAlive) {
  State state = state_with_d1();
  put(state, kThis, "P", kNow - 30s);
  State kept = state;
  act(Action::KeepAlive, settings(1, 2), kept);
  state.last_heartbeats[kThis] = kNow;
  EXPECT_EQ(kept, state);
}

TEST(Rules, GiveRanksInTheOrderOfTheNodes) {
  const Settings limits = settings(1, 9);
  State state;
  // Addresses as text, then pids and local ids as numbers.
  const std::vector<Node> sorted = {{"10.0.0.10", 1, 0, 0}, {"10.0.0.2", 2, 0, 0},
                                    {"10.0.0.2", 10, 2, 0}, {"10.0.0.2", 10, 10, 0},
                                    {"a", 1, 0, 1},         {"a", 1, 0, 2}};
  for (auto it = sorted.rbegin(); it != sorted.rend(); ++it)
    act(Action::AddToParticipants, limits, state, *it);
  act(Action::MarkComplete, limits, state);
  for (std::size_t rank = 0; rank < sorted.size(); ++rank)
    EXPECT_EQ(state.participants.at(sorted[rank]), static_cast<std::int64_t>(rank));
  EXPECT_EQ(state.world_size, 6);
}

// ---- leaving

TEST(Rules, LetAMemberLeaveUntilTheDeadline) {  // 75
  State state = state_with_d1();
  put(state, kThis, "P");
  EXPECT_EQ(decide(decide_exit, state, settings(1, 2)), Action::RemoveFromParticipants);
  EXPECT_EQ(decide(decide_exit, state, settings(1, 2), kNow - 10s), Action::ErrorTimeout);
}

TEST(Rules, HaveNothingToDoForOneWhoLeavesAndIsNotIn) {  // 76
  for (const char* list : {"", "W", "R"}) {
    State state = complete_with_d1();
    put(state, kThis, list);
    EXPECT_EQ(decide(decide_exit, state, settings(1, 2)), Action::Finish) << list;
    state.closed = true;
    EXPECT_EQ(decide(decide_exit, state, settings(1, 2), kNow - 10s), Action::Finish) << list;
  }
}

// ---- joining

TEST(Rules, RefuseAJoinOnceTheRunIsClosed) {  // 77
  for (const char* list : {"", "P", "W"}) {
    State state = complete_with_d1();
    put(state, kThis, list);
    state.closed = true;
    EXPECT_EQ(decide(decide_join, state, settings(1, 2)), Action::ErrorClosed) << list;
  }
}

TEST(Rules, LetASpareGoInPeaceOnceTheRunIsClosed) {  // 77
  State state = complete_with_d1();
  put(state, kThis, "R");
  state.closed = true;
  for (const std::int64_t max : {1, 2})
    EXPECT_EQ(decide(decide_join, state, settings(1, max)), Action::ErrorGracefulExit);
}

TEST(Rules, FinishAJoinWhenTheRoundIsComplete) {  // 78
  State state = complete_with_d1();
  put(state, kThis, "P");
  EXPECT_EQ(decide(decide_join, state, settings(1, 2)), Action::Finish);
  EXPECT_EQ(decide(decide_join, state, settings(1, 2), kNow - 1h), Action::Finish);
}

TEST(Rules, ParkThoseWhoComeToAFullGroup) {  // 79
  EXPECT_EQ(decide(decide_join, complete_with_d1(), settings(1, 1)), Action::AddToRedundancyList);
}

TEST(Rules, KeepASpareAliveForEver) {  // 80
  for (const TimePoint deadline : {kNow, kNow - 10s}) {
    State state = complete_with_d1();
    put(state, kThis, "R", kNow - 30s);
    EXPECT_EQ(decide(decide_join, state, settings(1, 1), deadline), Action::KeepAlive);
    state.last_heartbeats[kThis] = kNow - 29s;
    EXPECT_EQ(decide(decide_join, state, settings(1, 1), deadline), Action::Sync);
  }
}

TEST(Rules, CallASpareInWhenThereIsRoom) {  // 81
  State state = complete_with_d1();
  put(state, kThis, "R");
  EXPECT_EQ(decide(decide_join, state, settings(1, 2)), Action::RemoveFromRedundancyList);
  EXPECT_EQ(decide(decide_join, state, settings(1, 2), kNow - 1h),
            Action::RemoveFromRedundancyList);
}

TEST(Rules, LetALateNodeWaitForTheNextRound) {  // 82
  EXPECT_EQ(decide(decide_join, complete_with_d1(), settings(1, 2)), Action::AddToWaitList);
}

TEST(Rules, KeepAWaitingNodeAlive) {  // 83
  State state = complete_with_d1();
  put(state, kThis, "W", kNow - 30s);
  EXPECT_EQ(decide(decide_join, state, settings(1, 2)), Action::KeepAlive);
  state.last_heartbeats[kThis] = kNow - 29s;
  EXPECT_EQ(decide(decide_join, state, settings(1, 2)), Action::Sync);
}

TEST(Rules, WaitOutTheLastCallToItsLastInstant) {  // 84
  State state = state_with_d1();
  put(state, kThis, "P", kNow - 30s);
  state.deadline = kNow;
  EXPECT_EQ(decide(decide_join, state, settings(1, 3)), Action::KeepAlive);
  state.last_heartbeats[kThis] = kNow - 29s;
  EXPECT_EQ(decide(decide_join, state, settings(1, 3)), Action::Sync);
}

TEST(Rules, CompleteTheRoundWhenTheLastCallIsOver) {  // 85
  State state = state_with_d1();
  put(state, kThis, "P");
  state.deadline = kNow - 1s;
  EXPECT_EQ(decide(decide_join, state, settings(1, 3)), Action::MarkComplete);
}

TEST(Rules, NeverCompleteARoundThatIsTooSmallOrNotInLastCall) {  // 86
  State state = state_with_d1();
  put(state, kThis, "P");
  EXPECT_EQ(decide(decide_join, state, settings(1, 3)), Action::Sync);
  state.deadline = kNow - 1s;
  EXPECT_EQ(decide(decide_join, state, settings(3, 3)), Action::Sync);
}

TEST(Rules, LetANodeIntoARoundThatForms) {  // 87
  EXPECT_EQ(decide(decide_join, state_with_d1(), settings(1, 2)), Action::AddToParticipants);
  State state = state_with_d1();
  put(state, kThis, "W");
  EXPECT_EQ(decide(decide_join, state, settings(1, 2)), Action::AddToParticipants);
}

TEST(Rules, GiveAJoinUpAfterItsDeadline) {  // 88
  for (const char* list : {"", "P", "W"}) {
    State state = *list == 'W' ? complete_with_d1() : state_with_d1();
    put(state, kThis, list);
    EXPECT_EQ(decide(decide_join, state, settings(1, 3), kNow - 10s), Action::ErrorTimeout) << list;
  }
}

TEST(Rules, TakeALateJoinBackForAFewSeconds) {  // 89
  State state = state_with_d1();
  put(state, kThis, "P");
  EXPECT_EQ(decide(decide_join, state, settings(1, 3), kNow - 5s), Action::RemoveFromParticipants);
  EXPECT_EQ(decide(decide_join, state, settings(1, 3), kNow - 5s - 1ns), Action::ErrorTimeout);
  State waits = complete_with_d1();
  put(waits, kThis, "W");
  EXPECT_EQ(decide(decide_join, waits, settings(1, 3), kNow - 5s), Action::RemoveFromWaitList);
  // At the deadline itself there is still time.
  EXPECT_EQ(decide(decide_join, waits, settings(1, 3), kNow), Action::Sync);
}

TEST(Rules, KnowAJoinThatMayWaitForEver) {
  State state = state_with_d1();
  put(state, kThis, "P");
  EXPECT_EQ(decide(decide_join, state, settings(1, 3), kNever), Action::Sync);
}

// ---- closing and keeping alive

TEST(Rules, CloseARunOnceAndInTime) {  // 90
  State state = state_with_d1();
  EXPECT_EQ(decide(decide_close, state, settings(1, 2)), Action::MarkClosed);
  EXPECT_EQ(decide(decide_close, state, settings(1, 2), kNow - 10s), Action::ErrorTimeout);
  state.closed = true;
  EXPECT_EQ(decide(decide_close, state, settings(1, 2)), Action::Finish);
  EXPECT_EQ(decide(decide_close, state, settings(1, 2), kNow - 10s), Action::Finish);
}

TEST(Rules, AskForASignOfLifeWhenTheLastIsAnIntervalOld) {  // 91
  State state = state_with_d1();
  // One whom the others have dropped has no entry (D5); that it is none of them, its status says.
  EXPECT_EQ(decide(decide_keep_alive, state, settings(1, 2)), Action::Finish);
  put(state, kThis, "P", kNow - 29s);
  EXPECT_EQ(decide(decide_keep_alive, state, settings(1, 2)), Action::Finish);
  for (const Duration age : {30s, 31s}) {
    state.last_heartbeats[kThis] = kNow - age;
    EXPECT_EQ(decide(decide_keep_alive, state, settings(1, 2)), Action::KeepAlive);
  }
}

TEST(Rules, GiveUpASignOfLifeThatComesTooLate) {  // 92
  State state = state_with_d1();
  put(state, kThis, "P", kNow - 30s);
  EXPECT_EQ(decide(decide_keep_alive, state, settings(1, 2), kNow - 10s), Action::ErrorTimeout);
  state.last_heartbeats[kThis] = kNow - 29s;
  EXPECT_EQ(decide(decide_keep_alive, state, settings(1, 2), kNow - 10s), Action::Finish);
}

// ---- silence

TEST(Rules, DropExactlyThoseWhoWereSilentForTooLong) {  // 55
  const Settings limits = settings(1, 20);
  State state;
  state.max_nodes = 20;
  const std::vector<std::pair<Duration, const char*>> nodes = {
      {91s, "P"}, {100s, "P"}, {110s, "P"}, {120s, "W"}, {130s, "W"},
      {90s, "P"}, {50s, "P"},  {0s, "W"},   {89s, "W"},  {1s, "P"}};
  for (std::size_t i = 0; i < nodes.size(); ++i)
    put(state, node("n" + std::to_string(i)), nodes[i].second, kNow - nodes[i].first);
  const auto silent = drop_silent(limits, kNow, state);
  EXPECT_EQ(silent, (std::vector{node("n0"), node("n1"), node("n2"), node("n3"), node("n4")}));
  EXPECT_EQ(state.participants.size(), 3U);
  EXPECT_EQ(state.wait_list, (std::set{node("n7"), node("n8")}));
  EXPECT_EQ(state.last_heartbeats.size(), 5U);
  EXPECT_TRUE(state.participants.contains(node("n5")));  // exactly 90 s
}

TEST(Rules, BeginANewRoundWhenAllMembersAreSilent) {  // 56
  for (const bool closed : {false, true}) {
    State state;
    state.round = 999;
    state.complete = true;
    state.closed = closed;
    state.world_size = 2;
    put(state, kD1, "P", kNow - 100s);
    put(state, node("d2"), "P", kNow - 100s);
    put(state, node("d3"), "W", kNow - 100s);
    EXPECT_EQ(drop_silent(settings(1, 4), kNow, state).size(), 3U);
    EXPECT_TRUE(state.participants.empty());
    EXPECT_TRUE(state.wait_list.empty());
    EXPECT_TRUE(state.last_heartbeats.empty());
    EXPECT_FALSE(state.complete);
    EXPECT_EQ(state.round, 1000U);
    EXPECT_EQ(state.closed, closed);
    EXPECT_FALSE(state.deadline);
  }
}

TEST(Rules, DropASilentSpareWithoutAnyFurtherEffect) {  // 58
  State state = complete_with_d1();
  State expected = state;
  put(state, kThis, "R", kNow - 91s);
  EXPECT_EQ(drop_silent(settings(1, 2), kNow, state), std::vector{kThis});
  EXPECT_EQ(state, expected);
}

TEST(Rules, EndTheLastCallWhenSilenceLeavesTooFew) {
  State state = state_with_d1();
  put(state, kThis, "P", kNow - 91s);
  state.deadline = kNow + 5s;
  drop_silent(settings(2, 3), kNow, state);
  EXPECT_FALSE(state.deadline);
}

TEST(Rules, DropANodeFromWhereverItIs) {
  for (const char* list : {"P", "W", "R"}) {
    State state = complete_with_d1();
    put(state, kThis, list);
    EXPECT_TRUE(drop(kThis, settings(1, 2), state)) << list;
    EXPECT_FALSE(drop(kThis, settings(1, 2), state)) << list;
    EXPECT_EQ(state.lost, *list == 'P');
    state.lost = false;
    EXPECT_EQ(state, complete_with_d1()) << list;
  }
}

// ---- where Muster differs on purpose

TEST(Rules, ParkThoseWhoWaitWhenTheNewGroupIsFull) {  // D1
  const Settings limits = settings(1, 2);
  State state = state_with_d1();
  put(state, node("w1"), "W");
  put(state, node("w2"), "W");
  act(Action::AddToParticipants, limits, state);
  EXPECT_TRUE(state.complete);
  EXPECT_TRUE(state.wait_list.empty());
  EXPECT_EQ(state.redundancy_list, (std::set{node("w1"), node("w2")}));
  EXPECT_EQ(count_waiting(state), 0);
  check_invariants(state, limits);
}

TEST(Rules, DoNotCountThoseWhoWaitAtAFullGroup) {  // D1
  State state = complete_with_d1();
  put(state, node("w"), "W");
  EXPECT_EQ(count_waiting(state), 1);
  put(state, kThis, "P");
  EXPECT_EQ(count_waiting(state), 0);
  put(state, node("r"), "R");
  EXPECT_EQ(count_waiting(state), 0);
}

TEST(Rules, CountThoseWhoWaitAndNotTheSpares) {  // 102
  State state = complete_with_d1();
  state.max_nodes = 3;
  put(state, node("w1"), "W");
  put(state, node("w2"), "W");
  put(state, node("r"), "R");
  EXPECT_EQ(count_waiting(state), 2);
}

TEST(Rules, FreezeRanksAndSizeWhenTheRoundCompletes) {  // D2
  const Settings limits = settings(3, 3);
  State state;
  for (const char* name : {"c", "a", "b"})
    act(Action::AddToParticipants, limits, state, node(name));
  act(Action::RemoveFromParticipants, limits, state, node("a"));
  EXPECT_EQ(state.world_size, 3);
  EXPECT_EQ(state.participants.at(node("b")), 1);
  EXPECT_EQ(state.participants.at(node("c")), 2);
  check_invariants(state, limits);
}

TEST(Rules, SayThatACompleteRoundHasLostAMember) {  // D4
  const Settings limits = settings(2, 2);
  for (const bool dies : {false, true}) {
    State state;
    for (const char* name : {"a", "b"}) act(Action::AddToParticipants, limits, state, node(name));
    EXPECT_FALSE(state.lost);
    if (dies) {
      state.last_heartbeats[node("a")] = kNow - 91s;
      drop_silent(limits, kNow, state);
    } else {
      act(Action::RemoveFromParticipants, limits, state, node("a"));
    }
    EXPECT_TRUE(state.complete);
    EXPECT_TRUE(state.lost);
    // The next round begins without that.
    act(Action::RemoveFromParticipants, limits, state, node("b"));
    EXPECT_FALSE(state.lost);
  }
}

TEST(Rules, TellNodesWithEqualNamesApart) {  // D9
  const Settings limits = settings(2, 2);
  State state;
  act(Action::AddToParticipants, limits, state, {"host", 1, 0, 5});
  act(Action::AddToParticipants, limits, state, {"host", 1, 0, 6});
  EXPECT_TRUE(state.complete);
  EXPECT_EQ(state.participants.size(), 2U);
}

TEST(Rules, KeepTheLimitsOfTheFirstNode) {  // D10
  State state;
  EXPECT_TRUE(check_limits(state, settings(1, 2)));
  act(Action::AddToParticipants, settings(1, 2), state);
  EXPECT_TRUE(check_limits(state, settings(1, 2)));
  for (const Settings& other : {settings(2, 2), settings(1, 3)}) {
    const auto checked = check_limits(state, other);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().kind, ErrorKind::Invalid);
    EXPECT_NE(checked.error().message.find("1 to 2 nodes"), std::string::npos);
  }
}

// ---- who must hear of it

TEST(Rules, GiveNoSignalForMereArrivals) {
  const Settings limits = settings(3, 4);
  State before;
  act(Action::AddToParticipants, limits, before, node("a"));
  State after = before;
  act(Action::AddToParticipants, limits, after, node("b"));
  EXPECT_FALSE(is_worth_a_signal(before, after));
  State complete = complete_with_d1();
  put(complete, node("w"), "W");
  State more = complete;
  put(more, node("w2"), "W");
  put(more, node("r"), "R");
  EXPECT_FALSE(is_worth_a_signal(complete, more));
}

TEST(Rules, GiveASignalForEverythingElse) {
  const State before = complete_with_d1();
  const auto changed = [&](auto change) {
    State after = before;
    change(after);
    return is_worth_a_signal(before, after);
  };
  EXPECT_FALSE(changed([](State&) {}));
  EXPECT_TRUE(changed([](State& state) { state.birth = 9; }));
  EXPECT_TRUE(changed([](State& state) { ++state.round; }));
  EXPECT_TRUE(changed([](State& state) { state.complete = false; }));
  EXPECT_TRUE(changed([](State& state) { state.closed = true; }));
  EXPECT_TRUE(changed([](State& state) { state.lost = true; }));
  EXPECT_TRUE(changed([](State& state) { state.deadline = kNow; }));
  EXPECT_TRUE(changed([](State& state) { ++state.last_call_count; }));
  EXPECT_TRUE(changed([](State& state) { put(state, kThis, "W"); }));
}

TEST(Rules, GiveASignalWhenThereIsRoomForASpare) {
  State before = complete_with_d1();
  before.lost = true;
  put(before, node("d2"), "P");
  put(before, kThis, "R");
  State after = before;
  after.participants.erase(node("d2"));
  EXPECT_TRUE(is_worth_a_signal(before, after));
  before.redundancy_list.clear();
  after.redundancy_list.clear();
  EXPECT_FALSE(is_worth_a_signal(before, after));
}

TEST(Rules, LetEverybodyWhoWaitsIntoTheNextRoundAtOnce) {
  const Settings limits = settings(2, 3);
  State state;
  put(state, node("w1"), "W");
  put(state, node("w2"), "W");
  put(state, node("s1"), "R");
  put(state, node("s2"), "R");
  advance_late(limits, kNow, state);
  EXPECT_TRUE(state.complete);
  EXPECT_EQ(state.participants,
            (std::map<Node, std::int64_t>{{node("s1"), 0}, {node("w1"), 1}, {node("w2"), 2}}));
  EXPECT_TRUE(state.wait_list.empty());
  EXPECT_EQ(state.redundancy_list, std::set<Node>{node("s2")});
}

TEST(Rules, LeaveThoseWhoWaitWhereTheyAreWhileARoundIsComplete) {
  State state = complete_with_d1();
  put(state, node("w"), "W");
  const State before = state;
  const Settings limits = settings(1, 3);
  advance_late(limits, kNow, state);
  EXPECT_EQ(state, before);
  state.closed = true;
  advance_late(limits, kNow, state);
  EXPECT_TRUE(state.wait_list.contains(node("w")));
}

TEST(Action, HasTheNameThatEventsSpell) {
  EXPECT_EQ(name_of(Action::KeepAlive), "KEEP_ALIVE");
  EXPECT_EQ(name_of(Action::AddToParticipants), "ADD_TO_PARTICIPANTS");
  EXPECT_EQ(name_of(Action::AddToWaitList), "ADD_TO_WAIT_LIST");
  EXPECT_EQ(name_of(Action::AddToRedundancyList), "ADD_TO_REDUNDANCY_LIST");
  EXPECT_EQ(name_of(Action::RemoveFromParticipants), "REMOVE_FROM_PARTICIPANTS");
  EXPECT_EQ(name_of(Action::RemoveFromWaitList), "REMOVE_FROM_WAIT_LIST");
  EXPECT_EQ(name_of(Action::RemoveFromRedundancyList), "REMOVE_FROM_REDUNDANCY_LIST");
  EXPECT_EQ(name_of(Action::MarkComplete), "MARK_RENDEZVOUS_COMPLETE");
  EXPECT_EQ(name_of(Action::MarkClosed), "MARK_RENDEZVOUS_CLOSED");
  EXPECT_EQ(name_of(Action::Sync), "SYNC");
  EXPECT_EQ(name_of(Action::ErrorClosed), "ERROR_CLOSED");
  EXPECT_EQ(name_of(Action::ErrorTimeout), "ERROR_TIMEOUT");
  EXPECT_EQ(name_of(Action::ErrorGracefulExit), "ERROR_GRACEFUL_EXIT");
  EXPECT_EQ(name_of(Action::Finish), "FINISH");
}

}  // namespace
}  // namespace muster::rendezvous
