#include "muster/rendezvous/sightings.h"

#include "muster/rendezvous/rules.h"
#include "tests/rendezvous/states.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::node;
using testing::settings;
using Nodes = std::vector<Node>;

constexpr TimePoint at(Duration since_start) { return TimePoint(since_start); }

State group_of(std::initializer_list<const char*> members) {
  State state;
  state.birth = 1;
  state.min_nodes = 1;
  state.max_nodes = 9;
  for (const char* name : members) state.participants[node(name)] = 0;
  return state;
}
State last_call(std::uint64_t number, TimePoint deadline) {
  State state = group_of({"a", "b"});
  state.deadline = deadline;
  state.last_call_count = number;
  return state;
}
Sign mark(std::string text) { return {true, std::move(text)}; }
const Sign kNone;

TEST(Sightings, LetTheTwoLowestNodesWatchAllOthers) {
  State state = group_of({"b", "d"});
  state.wait_list.insert(node("a"));
  state.redundancy_list = {node("c"), node("e")};
  EXPECT_TRUE(Sightings(node("a")).watches_all(state));
  EXPECT_TRUE(Sightings(node("b")).watches_all(state));
  EXPECT_EQ(Sightings(node("a")).whom_to_watch(state),
            (Nodes{node("b"), node("d"), node("c"), node("e")}));
  for (const char* name : {"c", "d", "e", "stranger"}) {
    EXPECT_FALSE(Sightings(node(name)).watches_all(state)) << name;
    EXPECT_EQ(Sightings(node(name)).whom_to_watch(state), (Nodes{node("a"), node("b")})) << name;
  }
}

TEST(Sightings, NeedNoneWhereANodeIsAlone) {
  EXPECT_TRUE(Sightings(node("a")).whom_to_watch(State()).empty());
  EXPECT_TRUE(Sightings(node("a")).whom_to_watch(group_of({"a"})).empty());
  EXPECT_EQ(Sightings(node("b")).whom_to_watch(group_of({"a"})), Nodes{node("a")});
}

TEST(Sightings, TakeANodeForAliveAsLongAsItsMarkChanges) {
  Sightings sightings(node("a"));
  State state = group_of({"a", "b"});
  const Nodes watched = sightings.whom_to_watch(state);
  sightings.note(watched, {mark("1")}, false, at(10s));
  sightings.note(watched, {mark("1")}, false, at(40s));
  sightings.fill(settings(1, 9), at(40s), state);
  EXPECT_EQ(state.last_heartbeats.at(node("b")), at(10s));
  sightings.note(watched, {mark("2")}, false, at(70s));
  sightings.fill(settings(1, 9), at(70s), state);
  EXPECT_EQ(state.last_heartbeats.at(node("b")), at(70s));
}

TEST(Sightings, DoNotTakeTheirOwnSilenceForThatOfOthers) {
  // Nobody has looked since the mark was seen, so nothing is known of the time since.
  Sightings sightings(node("a"));
  State state = group_of({"a", "b"});
  sightings.note({node("b")}, {mark("1")}, false, at(0s));
  sightings.note({node("b")}, {mark("1")}, false, at(80s));
  sightings.fill(settings(1, 9), at(10h), state);
  EXPECT_TRUE(drop_silent(settings(1, 9), at(10h), state).empty());
  EXPECT_EQ(state.last_heartbeats.at(node("b")), at(10h - 80s));
}

TEST(Sightings, CountSilenceFromTheFirstLookOn) {
  // However long a node was silent before this observer came: it has the whole window again.
  Sightings sightings(node("a"));
  State state = group_of({"a", "b"});
  sightings.fill(settings(1, 9), at(1h), state);
  EXPECT_EQ(state.last_heartbeats.at(node("b")), at(1h));
  sightings.note({node("b")}, {kNone}, false, at(1h));
  sightings.note({node("b")}, {kNone}, false, at(1h + 90s));
  sightings.fill(settings(1, 9), at(1h + 90s), state);
  EXPECT_TRUE(drop_silent(settings(1, 9), at(1h + 90s), state).empty());
  sightings.note({node("b")}, {kNone}, false, at(1h + 90s + 1ns));
  sightings.fill(settings(1, 9), at(1h + 90s + 1ns), state);
  EXPECT_EQ(drop_silent(settings(1, 9), at(1h + 90s + 1ns), state), Nodes{node("b")});
}

TEST(Sightings, TakeASignThatVanishedForNews) {
  Sightings sightings(node("a"));
  sightings.note({node("b")}, {mark("1")}, false, at(0s));
  sightings.note({node("b")}, {kNone}, false, at(50s));
  sightings.note({node("b")}, {kNone}, false, at(60s));
  State state = group_of({"a", "b"});
  sightings.fill(settings(1, 9), at(60s), state);
  EXPECT_EQ(state.last_heartbeats.at(node("b")), at(50s));
}

TEST(Sightings, GiveEverybodyTheWholeWindowAgainAfterAnAbsence) {
  Sightings sightings(node("a"));
  State state = group_of({"a", "b", "c"});
  for (const TimePoint when : {at(0s), at(91s)})
    sightings.note({node("b"), node("c")}, {mark("1"), mark("1")}, false, when);
  sightings.forget_absent(group_of({"a", "c"}));
  sightings.fill(settings(1, 9), at(91s), state);
  EXPECT_EQ(drop_silent(settings(1, 9), at(91s), state), Nodes{node("c")});
}

TEST(Sightings, CountNoGapBetweenLooksForMuchMoreThanItShouldHaveBeen) {
  // All were stopped for an hour. The first look shows what the last one had shown.
  Sightings sightings(node("a"), 30s);
  State state = group_of({"a", "b"});
  sightings.note({node("b")}, {mark("1")}, false, at(0s));
  sightings.note({node("b")}, {mark("1")}, false, at(31s));
  sightings.fill(settings(1, 9), at(31s), state);
  EXPECT_EQ(state.last_heartbeats.at(node("b")), at(0s));
  sightings.note({node("b")}, {mark("1")}, false, at(1h));
  sightings.fill(settings(1, 9), at(1h), state);
  EXPECT_EQ(state.last_heartbeats.at(node("b")), at(1h - 31s - 45s));
}

TEST(Sightings, BelieveLeases) {
  Sightings sightings(node("a"));
  State state = group_of({"a", "b", "c"});
  sightings.note({node("b"), node("c")}, {mark(""), kNone}, true, at(10s));
  sightings.fill(settings(1, 9), at(10s), state);
  EXPECT_EQ(drop_silent(settings(1, 9), at(10s), state), Nodes{node("c")});
  // However equal its mark stays.
  sightings.note({node("b")}, {mark("")}, true, at(10h));
  sightings.fill(settings(1, 9), at(10h), state);
  EXPECT_TRUE(drop_silent(settings(1, 9), at(10h), state).empty());
}

TEST(Sightings, TakeThoseForAliveWhomTheyDoNotWatch) {
  Sightings sightings(node("z"));
  State state = group_of({"a", "b", "c", "z"});
  sightings.note({node("a"), node("b")}, {mark("1"), mark("1")}, false, at(0s));
  sightings.note({node("a"), node("b")}, {mark("1"), mark("1")}, false, at(1h));
  sightings.fill(settings(1, 9), at(1h), state);
  EXPECT_EQ(drop_silent(settings(1, 9), at(1h), state), (Nodes{node("a"), node("b")}));
  EXPECT_TRUE(state.participants.contains(node("c")));
}

TEST(Sightings, KnowTheirOwnNodeByItsBeats) {
  Sightings sightings(node("a"));
  State state = group_of({"a"});
  sightings.fill(settings(1, 9), at(5s), state);
  EXPECT_EQ(state.last_heartbeats.at(node("a")), at(5s));
  sightings.beat(at(6s));
  sightings.fill(settings(1, 9), at(20s), state);
  EXPECT_EQ(state.last_heartbeats.at(node("a")), at(6s));
}

TEST(Sightings, LeaveItToTheOthersToDropTheirOwnNode) {
  Sightings sightings(node("a"));
  State state = group_of({"a"});
  sightings.beat(at(0s));
  sightings.fill(settings(1, 9), at(1h), state);
  EXPECT_TRUE(drop_silent(settings(1, 9), at(1h), state).empty());
}

TEST(Sightings, LetALastCallOfOthersBeginWhenItIsSeen) {  // D6
  Sightings sightings(node("a"));
  State state = last_call(1, TimePoint::min());
  sightings.fill(settings(1, 9), at(100s), state);
  EXPECT_EQ(state.deadline, at(130s));
  // Read again later, it is the same one.
  state = last_call(1, TimePoint::min());
  sightings.fill(settings(1, 9), at(120s), state);
  EXPECT_EQ(state.deadline, at(130s));
  // The next one is another.
  state = last_call(2, TimePoint::min());
  sightings.fill(settings(1, 9), at(140s), state);
  EXPECT_EQ(state.deadline, at(170s));
  // So is one of a run that has begun anew.
  state = last_call(2, TimePoint::min());
  state.birth = 2;
  sightings.fill(settings(1, 9), at(150s), state);
  EXPECT_EQ(state.deadline, at(180s));
}

TEST(Sightings, KeepTheEndOfALastCallThatThisNodeBegan) {
  Sightings sightings(node("a"));
  State state = last_call(1, at(42s));
  sightings.fill(settings(1, 9), at(12s), state);
  EXPECT_EQ(state.deadline, at(42s));
  state = last_call(1, TimePoint::min());
  sightings.fill(settings(1, 9), at(20s), state);
  EXPECT_EQ(state.deadline, at(42s));
}

TEST(Sightings, GiveNoDeadlineWhereThereIsNoLastCall) {
  Sightings sightings(node("a"));
  State state = last_call(1, TimePoint::min());
  sightings.fill(settings(1, 9), at(1s), state);
  state = group_of({"a"});
  sightings.fill(settings(1, 9), at(2s), state);
  EXPECT_FALSE(state.deadline);
}

TEST(Sightings, NameSignsSoThatEqualNodesDiffer) {  // D9
  EXPECT_EQ(sign_name({"host", 1, 2, 0xAB}), "host_1_2-00000000000000ab");
  EXPECT_NE(sign_name({"host", 1, 2, 1}), sign_name({"host", 1, 2, 2}));
}

}  // namespace
}  // namespace muster::rendezvous
