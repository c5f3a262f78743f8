#include "muster/rendezvous/snapshot.h"

#include "muster/rendezvous/rules.h"
#include "tests/rendezvous/states.h"

#include <gtest/gtest.h>

#include <chrono>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::node;
using testing::settings;

TEST(Snapshot, KnowsARunThatNeverBegan) {
  const Snapshot snapshot = snapshot_of(State(), TimePoint());
  EXPECT_FALSE(snapshot.exists);
  EXPECT_TRUE(snapshot.members.empty());
}

TEST(Snapshot, ShowsRanksOnceTheRoundIsComplete) {
  const Settings limits = settings(1, 2);
  State state;
  state.birth = 1;
  apply(Action::AddToParticipants, node("b"), limits, TimePoint(), state);
  const Snapshot forming = snapshot_of(state, TimePoint(10s));
  EXPECT_TRUE(forming.exists);
  EXPECT_FALSE(forming.complete);
  ASSERT_EQ(forming.members.size(), 1U);
  EXPECT_FALSE(forming.members[0].rank);
  EXPECT_EQ(forming.last_call_left, 20s);
  EXPECT_EQ(snapshot_of(state, TimePoint(1h)).last_call_left, 0s);

  apply(Action::AddToParticipants, node("a"), limits, TimePoint(), state);
  const Snapshot complete = snapshot_of(state, TimePoint(10s));
  EXPECT_TRUE(complete.complete);
  EXPECT_EQ(complete.world_size, 2);
  EXPECT_FALSE(complete.last_call_left);
  ASSERT_EQ(complete.members.size(), 2U);
  EXPECT_EQ(complete.members[0].node, node("a"));
  EXPECT_EQ(complete.members[0].rank, 0);
  EXPECT_EQ(complete.members[1].rank, 1);
  // Only a driver knows these.
  EXPECT_FALSE(complete.members[0].last_heard);
  EXPECT_FALSE(complete.members[0].connected);
}

TEST(Snapshot, ShowsEverythingElse) {
  State state;
  state.birth = 1;
  state.round = 4;
  state.complete = true;
  state.closed = true;
  state.lost = true;
  state.min_nodes = 1;
  state.max_nodes = 5;
  state.world_size = 2;
  state.participants[node("a")] = 1;
  state.wait_list.insert(node("w"));
  state.redundancy_list.insert(node("r"));
  const Snapshot snapshot = snapshot_of(state, TimePoint());
  EXPECT_EQ(snapshot.round, 4U);
  EXPECT_TRUE(snapshot.complete && snapshot.closed && snapshot.lost);
  EXPECT_EQ(snapshot.min_nodes, 1);
  EXPECT_EQ(snapshot.max_nodes, 5);
  ASSERT_EQ(snapshot.waiting.size(), 1U);
  EXPECT_EQ(snapshot.waiting[0].node, node("w"));
  ASSERT_EQ(snapshot.spare.size(), 1U);
  EXPECT_EQ(snapshot.spare[0].node, node("r"));
}

}  // namespace
}  // namespace muster::rendezvous
