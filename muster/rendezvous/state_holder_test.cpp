#include "muster/rendezvous/state_holder.h"

#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/state_codec.h"
#include "muster/sim/loop.h"
#include "tests/rendezvous/fake_backend.h"
#include "tests/rendezvous/states.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::FakeBackend;
using testing::FakeRun;
using testing::node;
using testing::settings;
using Outcome = StateHolder::Outcome;

// The numbers in comments are the rows of the specification. Heartbeats are not in the state here
// but signs apart from it, so what is old is what this observer has watched for long.
class StateHolderTest : public ::testing::Test {
 protected:
  StateHolder& holder(Duration cache = 0s) {
    holder_.emplace(loop, random, backend, limits, sightings, StateHolder::Options{cache});
    return *holder_;
  }
  Result<Outcome> sync() { return loop.block_on(holder_->sync()); }
  void expect_outcome(Outcome outcome) {
    const auto synced = sync();
    ASSERT_TRUE(synced) << synced.error().message;
    EXPECT_EQ(*synced, outcome);
  }
  void expect_calls(int gets, int sets) {
    EXPECT_EQ(backend.calls.gets, gets);
    EXPECT_EQ(backend.calls.sets, sets);
    backend.calls = {};
  }
  // As another node writes it.
  void store(const State& state) { run.write(encode(state), false); }
  State stored() { return *decode(run.stored()->blob); }
  // Lets the nodes be seen now, with marks that never change.
  void see(const std::vector<Node>& nodes) {
    sightings.note(nodes, std::vector<Sign>(nodes.size(), {true, "mark"}), false, loop.now());
  }

  static State round(std::uint64_t number) {
    State state;
    state.birth = 1;
    state.round = number;
    return state;
  }
  static void add(State& state, const Node& node, std::string_view list) {
    state.min_nodes = 1;
    state.max_nodes = 20;
    if (list == "P") state.participants[node] = 0;
    if (list == "W") state.wait_list.insert(node);
    if (list == "R") state.redundancy_list.insert(node);
  }

  sim::Loop loop;
  Random random{1};
  FakeRun run{loop};
  FakeBackend backend{run};
  Settings limits = settings(1, 20);
  Sightings sightings{node("self")};
  std::optional<StateHolder> holder_;
};

TEST_F(StateHolderTest, BeginsWithTheInitialStateAndAsksNobody) {  // 48
  EXPECT_EQ(holder().state(), State());
  EXPECT_FALSE(holder_->dirty());
  EXPECT_FALSE(holder_->token());
  expect_calls(0, 0);
}

TEST_F(StateHolderTest, FindsTheInitialStateWhereThereIsNone) {  // 49
  holder();
  expect_outcome(Outcome::Read);
  EXPECT_EQ(holder_->state(), State());
  expect_calls(1, 0);
}

TEST_F(StateHolderTest, SeesEveryChangeWithoutACache) {  // 50
  holder();
  for (const std::uint64_t number : {1U, 2U, 3U}) {
    store(round(number));
    expect_outcome(Outcome::Read);
    EXPECT_EQ(holder_->state().round, number);
    expect_calls(1, 0);
  }
}

TEST_F(StateHolderTest, TakesTheWinnersStateWhenItLoses) {  // 51
  store(round(1));
  holder();
  expect_outcome(Outcome::Read);
  backend.calls = {};
  holder_->edit().closed = true;
  store(round(5));
  expect_outcome(Outcome::Lost);
  EXPECT_EQ(holder_->state(), round(5));
  EXPECT_EQ(holder_->token(), run.stored()->token);
  EXPECT_FALSE(holder_->dirty());
  expect_calls(0, 1);
}

TEST_F(StateHolderTest, WritesEveryChangeOfItsOwn) {  // 52
  holder(1s);
  expect_outcome(Outcome::Read);
  backend.calls = {};
  for (const std::uint64_t number : {1U, 2U, 3U}) {
    holder_->edit().round = number;
    EXPECT_TRUE(holder_->dirty());
    // The cache does not keep anything from being written.
    expect_outcome(Outcome::Won);
    EXPECT_FALSE(holder_->dirty());
    EXPECT_EQ(stored().round, number);
    expect_calls(0, 1);
  }
}

TEST_F(StateHolderTest, GivesANewRunItsBirth) {
  holder();
  expect_outcome(Outcome::Read);
  holder_->edit().closed = true;
  expect_outcome(Outcome::Won);
  const std::uint64_t birth = stored().birth;
  EXPECT_NE(birth, 0U);
  holder_->edit().round = 7;
  expect_outcome(Outcome::Won);
  EXPECT_EQ(stored().birth, birth);
}

TEST_F(StateHolderTest, DoesNotReadAgainWhileItsCopyIsFresh) {  // 53
  for (const Duration cache : {1s, 5s, 10s}) {
    holder(cache);
    loop.advance(5s);
    expect_outcome(Outcome::Read);
    expect_calls(1, 0);
    store(round(run.version()));
    expect_outcome(Outcome::Read);
    loop.advance(cache);
    expect_outcome(Outcome::Read);
    expect_calls(0, 0);
  }
}

TEST_F(StateHolderTest, ReadsAgainWhenItsCopyIsOld) {  // 54
  holder(1s);
  loop.advance(5s);
  expect_outcome(Outcome::Read);
  loop.advance(1010ms);
  store(round(3));
  expect_outcome(Outcome::Read);
  EXPECT_EQ(holder_->state().round, 3U);
  expect_calls(2, 0);
}

TEST_F(StateHolderTest, ReadsAgainWhenItIsToldTo) {
  holder(1h);
  expect_outcome(Outcome::Read);
  store(round(3));
  holder_->expire_cache();
  expect_outcome(Outcome::Read);
  EXPECT_EQ(holder_->state().round, 3U);
}

TEST_F(StateHolderTest, DropsThoseWhoWereSilentForTooLong) {  // 55
  State state = round(1);
  std::vector<Node> silent;
  for (const auto& [name, list] : {std::pair("s1", "P"), std::pair("s2", "P"), std::pair("s3", "P"),
                                   std::pair("s4", "W"), std::pair("s5", "W")}) {
    silent.push_back(node(name));
    add(state, node(name), list);
  }
  for (const auto& [name, list] :
       {std::pair("self", "P"), std::pair("l1", "P"), std::pair("l2", "W")}) {
    add(state, node(name), list);
  }
  store(state);
  holder();
  see(silent);
  loop.advance(90s);
  see(silent);
  expect_outcome(Outcome::Read);
  EXPECT_TRUE(holder_->dropped().empty());  // exactly the window
  loop.advance(1ns);
  see(silent);
  expect_outcome(Outcome::Read);
  EXPECT_EQ(holder_->dropped(), silent);
  EXPECT_EQ(holder_->state().participants.size(), 2U);
  EXPECT_EQ(holder_->state().wait_list, std::set<Node>{node("l2")});
  EXPECT_EQ(holder_->state().last_heartbeats.size(), 3U);
  // Only the copy has changed, and it is not written by itself.
  EXPECT_FALSE(holder_->dirty());
  EXPECT_EQ(stored().participants.size(), 5U);
}

TEST_F(StateHolderTest, BeginsANewRoundWhenAllMembersWereSilent) {  // 56
  State state = round(999);
  add(state, node("a"), "P");
  add(state, node("w"), "W");
  state.complete = true;
  state.world_size = 1;
  state.closed = true;
  store(state);
  holder();
  see({node("a"), node("w")});
  loop.advance(100s);
  see({node("a"), node("w")});
  see({node("a"), node("w")});
  expect_outcome(Outcome::Read);
  EXPECT_TRUE(holder_->state().participants.empty());
  EXPECT_TRUE(holder_->state().wait_list.empty());
  EXPECT_TRUE(holder_->state().last_heartbeats.empty());
  EXPECT_FALSE(holder_->state().complete);
  EXPECT_EQ(holder_->state().round, 1000U);
  EXPECT_TRUE(holder_->state().closed);
  EXPECT_FALSE(holder_->state().deadline);
}

TEST_F(StateHolderTest, ReportsWhatItCannotRead) {  // 57
  run.write("junk", false);
  holder();
  auto synced = sync();
  ASSERT_FALSE(synced);
  EXPECT_EQ(synced.error().kind, ErrorKind::Corrupt);
  // Nothing was taken over.
  EXPECT_FALSE(holder_->token());
  EXPECT_FALSE(holder_->last_sync());
  holder_->edit().closed = true;
  synced = sync();
  ASSERT_FALSE(synced);
  EXPECT_EQ(synced.error().kind, ErrorKind::Corrupt);
  EXPECT_TRUE(holder_->dirty());
  EXPECT_EQ(run.stored()->blob, "junk");
}

TEST_F(StateHolderTest, DropsASilentSpare) {  // 58
  State state = round(3);
  add(state, node("a"), "P");
  add(state, node("r"), "R");
  state.complete = true;
  state.world_size = 1;
  store(state);
  holder();
  see({node("r")});
  loop.advance(91s);
  see({node("r")});
  see({node("r")});
  expect_outcome(Outcome::Read);
  EXPECT_TRUE(holder_->state().redundancy_list.empty());
  EXPECT_TRUE(holder_->state().complete);
  EXPECT_FALSE(holder_->state().lost);
  EXPECT_EQ(holder_->state().round, 3U);
}

TEST_F(StateHolderTest, WritesItsCopyAnewWhenTheStateIsGone) {  // 59
  store(round(1));
  holder();
  expect_outcome(Outcome::Read);
  holder_->edit().round = 2;
  run.forget();
  expect_outcome(Outcome::Lost);
  EXPECT_EQ(holder_->state().round, 2U);
  EXPECT_FALSE(holder_->token());
  // What was not written stays to be written. (The reference would go on as if it had been.)
  EXPECT_TRUE(holder_->dirty());
  expect_outcome(Outcome::Won);
  EXPECT_EQ(stored().round, 2U);
}

TEST_F(StateHolderTest, WritesWhatItHasDroppedWithItsNextChange) {
  State state = round(1);
  for (const char* name : {"a", "b", "self"}) add(state, node(name), "P");
  state.complete = true;
  state.world_size = 3;
  state.participants[node("b")] = 1;
  state.participants[node("self")] = 2;
  store(state);
  holder();
  see({node("a"), node("b")});
  loop.advance(91s);
  see({node("a"), node("b")});
  expect_outcome(Outcome::Read);
  EXPECT_EQ(holder_->dropped().size(), 2U);
  holder_->edit();
  expect_outcome(Outcome::Won);
  EXPECT_TRUE(holder_->dropped().empty());
  EXPECT_EQ(stored().participants.size(), 1U);
  EXPECT_TRUE(stored().lost);
}

TEST_F(StateHolderTest, SignalsByWhatTheOthersHadSeen) {
  State state = round(1);
  add(state, node("a"), "P");
  add(state, node("self"), "P");
  state.complete = true;
  state.world_size = 2;
  state.participants[node("self")] = 1;
  store(state);
  holder();
  see({node("a")});
  loop.advance(91s);
  see({node("a")});
  expect_outcome(Outcome::Read);  // `lost` by now, in the copy
  const Token before = *holder_->token();
  holder_->edit();
  expect_outcome(Outcome::Won);
  EXPECT_TRUE(*loop.block_on(backend.wait_signal(before, false, loop.now())));
}

TEST_F(StateHolderTest, ForgetsChangesOfAnOperationThatWasGivenUp) {
  State state = round(1);
  for (const char* name : {"a", "self"}) add(state, node(name), "P");
  store(state);
  holder();
  expect_outcome(Outcome::Read);
  const State before = holder_->state();
  holder_->edit().round = 9;
  holder_->edit().closed = true;
  holder_->discard_edits();
  EXPECT_FALSE(holder_->dirty());
  EXPECT_EQ(holder_->state(), before);
  holder_->discard_edits();  // nothing to forget
  EXPECT_EQ(holder_->state(), before);
  expect_outcome(Outcome::Read);
  EXPECT_EQ(stored().round, 1U);
}

TEST_F(StateHolderTest, StaysAsItWasWhenTheStoreCannotBeReached) {
  store(round(4));
  holder(1s);
  expect_outcome(Outcome::Read);
  const auto token = holder_->token();
  const auto last_sync = holder_->last_sync();
  loop.advance(5s);
  backend.failure = Error{ErrorKind::Unavailable, "gone"};
  auto synced = sync();
  ASSERT_FALSE(synced);
  EXPECT_EQ(synced.error(), *backend.failure);
  EXPECT_EQ(holder_->state().round, 4U);
  EXPECT_EQ(holder_->token(), token);
  EXPECT_EQ(holder_->last_sync(), last_sync);
  holder_->edit().round = 5;
  ASSERT_FALSE(sync());
  EXPECT_TRUE(holder_->dirty());
  backend.failure.reset();
  expect_outcome(Outcome::Won);
  EXPECT_EQ(stored().round, 5U);
}

TEST_F(StateHolderTest, RecognisesAWriteWhoseAnswerWasLost) {
  store(round(4));
  holder();
  expect_outcome(Outcome::Read);
  backend.answers_to_lose = 1;
  holder_->edit().round = 5;
  ASSERT_FALSE(sync());
  // The token is stale now; what it is given back is its own write.
  expect_outcome(Outcome::Lost);
  EXPECT_EQ(holder_->state().round, 5U);
}

}  // namespace
}  // namespace muster::rendezvous
