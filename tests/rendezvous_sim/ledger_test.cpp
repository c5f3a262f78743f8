#include "tests/rendezvous_sim/ledger.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::rendezvous::testing {
namespace {

using namespace std::chrono_literals;

const Node kA{"a", 1, 0, 1};
const Node kB{"b", 1, 0, 2};
const Node kC{"c", 1, 0, 3};

Place place(std::uint64_t round, std::int64_t rank, std::int64_t size) {
  return {{7, round}, rank, size};
}

// A complete round of a and b, as a server has it.
State pair() {
  State state;
  state.birth = 7;
  state.complete = true;
  state.min_nodes = 2;
  state.max_nodes = 3;
  state.world_size = 2;
  state.participants = {{kA, 0}, {kB, 1}};
  state.last_heartbeats = {{kA, TimePoint(1s)}, {kB, TimePoint(1s)}};
  return state;
}
State with_spare(State state, const Node& node) {
  state.redundancy_list.insert(node);
  state.last_heartbeats[node] = TimePoint(1s);
  return state;
}

class LedgerTest : public ::testing::Test {
 protected:
  Ledger ledger{2, 3};

  ::testing::AssertionResult noticed(const std::string& what) {
    for (const std::string& fault : ledger.faults()) {
      if (fault.find(what) != std::string::npos) return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << "noticed " << ledger.faults().size() << " faults, and none of them is: " << what;
  }
  bool is_fine() const { return ledger.faults().empty(); }
};

TEST_F(LedgerTest, FindsNothingWrongWithAFineDay) {
  ledger.saw(State(), true);
  State forming = pair();
  forming.complete = false;
  forming.world_size = 0;
  forming.participants = {{kA, 0}};
  forming.last_heartbeats.erase(kB);
  ledger.saw(forming, true);
  ledger.saw(pair(), true);
  ledger.joined(kA, place(0, 0, 2));
  ledger.joined(kB, place(0, 1, 2));
  State left = pair();
  left.lost = true;
  left.participants.erase(kA);
  left.last_heartbeats.erase(kA);
  ledger.saw(left, true);
  ledger.joined(kA, place(1, 0, 3));
  ledger.joined(kB, {{8, 0}, 0, 2});
  EXPECT_TRUE(is_fine()) << ledger.faults().front();
  EXPECT_EQ(ledger.round_count(), 3U);
  EXPECT_EQ(ledger.join_count(), 4U);
}

TEST_F(LedgerTest, NoticesTwoSizesOfOneRound) {
  ledger.joined(kA, place(0, 0, 2));
  EXPECT_TRUE(is_fine());
  ledger.joined(kB, place(0, 1, 3));
  EXPECT_TRUE(noticed("has 2 members and, for b_1_0, 3"));
}

TEST_F(LedgerTest, NoticesARankThatIsGivenTwice) {
  ledger.joined(kA, place(0, 0, 2));
  ledger.joined(kB, place(0, 0, 2));
  EXPECT_TRUE(noticed("rank 0 of round 0 of 7 is a_1_0, and it is b_1_0"));
}

TEST_F(LedgerTest, NoticesANodeWithTwoRanks) {
  ledger.saw(pair(), true);
  ledger.joined(kA, place(0, 1, 2));
  EXPECT_TRUE(noticed("a_1_0 is rank 0 and rank 1"));
}

TEST_F(LedgerTest, NoticesARankOutsideOfTheWorld) {
  ledger.joined(kA, place(0, 2, 2));
  EXPECT_TRUE(noticed("rank 2 of 2"));
}

TEST_F(LedgerTest, NoticesGroupsOutsideOfTheLimits) {
  ledger.joined(kA, place(0, 0, 1));
  EXPECT_TRUE(noticed("has 1 members, and the limits are 2 and 3"));
  ledger.joined(kB, place(5, 0, 4));
  EXPECT_TRUE(noticed("has 4 members, and the limits are 2 and 3"));
}

TEST_F(LedgerTest, NoticesAJoinThatLeadsBack) {
  ledger.joined(kA, place(3, 0, 2));
  ledger.joined(kA, place(3, 0, 2));
  EXPECT_TRUE(noticed("came from round 3 of 7 and has joined round 3"));
  ledger.joined(kA, place(2, 0, 2));
  EXPECT_TRUE(noticed("has joined round 2"));
}

TEST_F(LedgerTest, NoticesAClosedRunThatIsOpenAgain) {
  State closed = pair();
  closed.closed = true;
  ledger.saw(closed, true);
  ledger.saw(pair(), true);
  EXPECT_TRUE(noticed("a closed run is open again"));
}

TEST_F(LedgerTest, NoticesRoundsThatGoBack) {
  State later = pair();
  later.round = 4;
  ledger.saw(later, true);
  ledger.saw(pair(), true);
  EXPECT_TRUE(noticed("round 0 comes after round 4"));
}

TEST_F(LedgerTest, ForgivesAStoreThatForgot) {
  State later = pair();
  later.round = 4;
  later.closed = true;
  ledger.saw(later, true);
  ledger.store_forgot();
  ledger.saw(pair(), true);
  EXPECT_TRUE(is_fine());
}

TEST_F(LedgerTest, NoticesANodeInTwoLists) {
  ledger.saw(with_spare(pair(), kA), true);
  EXPECT_TRUE(noticed("a node is in two lists"));
}

TEST_F(LedgerTest, NoticesNodesWithoutAHeartbeatAndHeartbeatsWithoutANode) {
  State state = with_spare(pair(), kC);
  state.last_heartbeats.erase(kC);
  ledger.saw(state, true);
  EXPECT_TRUE(noticed("c_1_0 has no heartbeat"));
  state = pair();
  state.last_heartbeats[kC] = TimePoint(1s);
  ledger.saw(state, true);
  EXPECT_TRUE(noticed("heartbeats of nodes that are gone"));
}

TEST_F(LedgerTest, NoticesACompleteRoundWithoutMembersOrInLastCall) {
  State state = pair();
  state.participants.clear();
  state.last_heartbeats.clear();
  ledger.saw(state, true);
  EXPECT_TRUE(noticed("complete without members"));
  state = pair();
  state.round = 1;
  state.deadline = TimePoint(9s);
  ledger.saw(state, true);
  EXPECT_TRUE(noticed("complete in last call"));
}

TEST_F(LedgerTest, NoticesALastCallForTooFewAndACrowdThatIsTooLarge) {
  State state = pair();
  state.complete = false;
  state.deadline = TimePoint(9s);
  state.participants.erase(kB);
  state.last_heartbeats.erase(kB);
  ledger.saw(state, true);
  EXPECT_TRUE(noticed("a last call for too few"));
  state = pair();
  state.complete = false;
  for (const char* name : {"c", "d", "e"}) {
    const Node node{name, 1, 0, 9};
    state.participants[node] = 0;
    state.last_heartbeats[node] = TimePoint(1s);
  }
  ledger.saw(state, true);
  EXPECT_TRUE(noticed("too many members"));
}

TEST_F(LedgerTest, NoticesARoundThatCompletesWithGaps) {
  State forming = pair();
  forming.complete = false;
  forming.world_size = 0;
  ledger.saw(forming, true);
  State complete = pair();
  complete.world_size = 3;
  ledger.saw(complete, true);
  EXPECT_TRUE(noticed("completes with gaps"));
}

}  // namespace
}  // namespace muster::rendezvous::testing
