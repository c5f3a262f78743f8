// Wishes: many nodes over one SharedDriver each, where one writes for all.
#include "muster/rendezvous/host_protocol.h"
#include "muster/rendezvous/wishes.h"
#include "tests/rendezvous/shared_peers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::limits;
using testing::node;
using testing::Peer;

class SharedDriverWishes : public testing::SharedDriverTest {};

// What each of them would write alone, one writes for all who have said what they want.
TEST_F(SharedDriverWishes, GrantsTheWishesOfAllWhoCameTogetherWithAFewWrites) {
  run.has_wishes = true;
  constexpr std::int64_t kCount = 30;
  for (std::int64_t index = 0; index < kCount; ++index) {
    add(fmt::format("n{:02}", index), limits(kCount, kCount)).backend.delay =
        10ms + index % 7 * 1ms;
  }
  for (int round = 0; round < 2; ++round) {
    const std::uint64_t version = run.version();
    for (const auto& peer : peers_) peer->join();
    ASSERT_TRUE(loop.run_until(
        [&] {
          return std::all_of(peers_.begin(), peers_.end(),
                             [](const auto& peer) { return peer->place.has_value(); });
        },
        loop.now() + 5min));
    std::set<std::int64_t> ranks;
    for (const auto& peer : peers_) {
      ASSERT_TRUE(peer->joined()) << peer->place->error().message;
      EXPECT_EQ((*peer->place)->id.round, static_cast<std::uint64_t>(round));
      EXPECT_EQ((*peer->place)->world_size, kCount);
      ranks.insert((*peer->place)->rank);
    }
    EXPECT_EQ(ranks.size(), peers_.size());
    EXPECT_LT(run.version() - version, std::uint64_t{kCount} / 2);
    loop.advance(1s);
    EXPECT_TRUE(run.wishes.empty());
  }
}

TEST_F(SharedDriverWishes, SeesToItselfWhenItsWishIsLost) {
  run.has_wishes = true;
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  a.backend.before_set = b.backend.before_set = [this] { run.wishes.clear(); };
  join_all({&a, &b});
}

TEST_F(SharedDriverWishes, DoesNotGrantAWishThatDoesNotFitInOrCannotBeRead) {
  run.has_wishes = true;
  Hello other;
  other.run_id = "run";
  other.joins = true;
  other.node = node("x");
  other.settings = limits(1, 9);
  run.wishes["x"] = encode(other);
  run.wishes["y"] = "junk";
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  join_all({&a, &b});
  EXPECT_FALSE(stored().participants.contains(node("x")));
}

// Over a store whose wishes have numbers, the first one writes, and then for all who came after it.
TEST_F(SharedDriverWishes, JoinsACrowdWithAFewWritesWhereWishesHaveNumbers) {
  run.has_wishes = run.has_wish_numbers = true;
  constexpr std::int64_t kCount = 60;
  for (std::int64_t index = 0; index < kCount; ++index) {
    add(fmt::format("n{:02}", index), limits(kCount, kCount)).backend.delay =
        10ms + index % 7 * 1ms;
  }
  for (std::uint64_t round = 0; round < 3; ++round) {
    const std::uint64_t version = run.version();
    int attempts = 0;
    for (const auto& peer : peers_) attempts -= peer->backend.calls.sets;
    for (const auto& peer : peers_) peer->join();
    ASSERT_TRUE(loop.run_until(
        [&] {
          return std::all_of(peers_.begin(), peers_.end(),
                             [](const auto& peer) { return peer->place.has_value(); });
        },
        loop.now() + 5min));
    std::set<std::int64_t> ranks;
    for (const auto& peer : peers_) {
      ASSERT_TRUE(peer->joined()) << peer->place->error().message;
      EXPECT_EQ((*peer->place)->id.round, round);
      ranks.insert((*peer->place)->rank);
      attempts += peer->backend.calls.sets;
    }
    EXPECT_EQ(ranks.size(), peers_.size());
    EXPECT_LE(run.version() - version, 6U);
    EXPECT_LE(attempts, 10);
    loop.advance(1s);
    EXPECT_TRUE(run.numbered_wishes.empty());
  }
}

TEST_F(SharedDriverWishes, WritesAtOnceWhenNobodyIsBeforeIt) {
  run.has_wishes = run.has_wish_numbers = true;
  Peer& a = add("a", limits(1, 8), 300ms);
  a.backend.delay = 10ms;
  a.join();
  ASSERT_TRUE(loop.run_until([&] { return run.version() == 1; }, loop.now() + 1s));
  // A sign of life, a look, a number, and the write: no pause, no wish.
  EXPECT_LE(loop.now(), TimePoint(41ms));
  EXPECT_EQ(a.backend.calls.wishes, 0);
}

TEST_F(SharedDriverWishes, TakesNoNumberWhereTwoAreAllThereCanBe) {
  run.has_wishes = run.has_wish_numbers = true;
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  join_all({&a, &b});
  EXPECT_EQ(run.wish_count, 0U);
}

// The first one has taken a number and died.
TEST_F(SharedDriverWishes, SeesToItselfWhenTheOneBeforeItIsGone) {
  run.has_wishes = run.has_wish_numbers = true;
  run.wish_count = 1;
  Peer& a = add("a", limits(3, 3));
  Peer& b = add("b", limits(3, 3));
  Peer& c = add("c", limits(3, 3));
  for (Peer* peer : {&a, &b, &c}) peer->backend.delay = 1ms;
  const TimePoint began = loop.now();
  join_all({&a, &b, &c});
  EXPECT_LE(loop.now() - began, 200ms);
  EXPECT_EQ(stored().wishes, (WishMarks{4, {1}}));
}

// Whoever writes the state and dies leaves wishes behind that it has granted.
TEST_F(SharedDriverWishes, GrantsAWishOnlyOnceIfItIsStillThereAfterwards) {
  run.has_wishes = run.has_wish_numbers = true;
  Hello other;
  other.run_id = "run";
  other.joins = true;
  other.node = node("x");
  other.settings = limits(1, 9);
  run.wish_count = 1;
  run.numbered_wishes[1] = encode(other);
  Peer& a = add("a", limits(1, 9));
  a.backend.keeps_wishes = true;
  a.join();
  ASSERT_TRUE(loop.run_until([&] { return stored().participants.size() == 2; }, loop.now() + 1s));
  EXPECT_EQ(stored().wishes.taken, 2U);
  ASSERT_TRUE(run.numbered_wishes.contains(1));
  // It gives no signs of life, and is dropped; and nobody puts it in again.
  Peer& b = add("b", limits(1, 9));
  b.backend.keeps_wishes = true;
  join_all({&a, &b});
  loop.advance(1min);
  EXPECT_FALSE(stored().last_heartbeats.contains(node("x")));
  join_all({&a, &b});
  EXPECT_FALSE(stored().participants.contains(node("x")));
  EXPECT_FALSE(stored().wait_list.contains(node("x")));
}

TEST_F(SharedDriverWishes, IsNotPutInByAWishItHasTakenBack) {
  run.has_wishes = run.has_wish_numbers = true;
  Peer& a = add("a", limits(3, 3));
  Peer& b = add("b", limits(3, 3));
  a.join();
  ASSERT_TRUE(loop.run_until([&] { return run.version() == 1; }, loop.now() + 1s));
  // Somebody is before b, so that it waits for its wish to be granted.
  ++run.wish_count;
  b.join();
  ASSERT_TRUE(loop.run_until([&] { return b.backend.calls.wishes == 1; }, loop.now() + 1s));
  b.cancel();
  ASSERT_TRUE(await(b.driver->leave(loop.now() + 5s)));
  // That was a write: one that had read the wish before has lost.
  EXPECT_FALSE(is_open(stored().wishes, run.wish_count));
  EXPECT_FALSE(stored().participants.contains(b.self));
}

TEST_F(SharedDriverWishes, WishesForNothingWhenItTakesItsJoinBack) {
  run.has_wishes = run.has_wish_numbers = true;
  Settings settings = limits(3, 3);
  settings.timeouts.join = 8s;
  Peer& a = add("a", settings);
  Peer& b = add("b", settings);
  a.join();
  b.join();
  loop.advance(20s);
  EXPECT_EQ(a.failure(), ErrorKind::Timeout);
  EXPECT_EQ(b.failure(), ErrorKind::Timeout);
  EXPECT_TRUE(stored().participants.empty());
  EXPECT_EQ(run.wish_count, 2U);
}

TEST_F(SharedDriverWishes, TriesAgainAtItsOwnPaceWhenItCannotWish) {
  run.has_wishes = run.has_wish_numbers = true;
  Peer& a = add("a", limits(1, 3));
  a.backend.wish_failure = Error{ErrorKind::Unavailable, "the connection broke"};
  a.join();
  loop.advance(2s);
  EXPECT_GE(a.backend.calls.wish_numbers, 2);
  EXPECT_LE(a.backend.calls.wish_numbers, 100);
  a.backend.wish_failure.reset();
  loop.advance(1min);
  EXPECT_TRUE(a.joined());
}

TEST_F(SharedDriverWishes, TakesNumbersAnewInAStoreThatHasForgottenEverything) {
  run.has_wishes = run.has_wish_numbers = true;
  Peer& a = add("a", limits(3, 3));
  Peer& b = add("b", limits(3, 3));
  Peer& c = add("c", limits(3, 3));
  join_all({&a, &b, &c});
  join_all({&a, &b, &c});
  run.forget();
  join_all({&a, &b, &c});
  EXPECT_LE(stored().wishes.taken, 3U);
}

}  // namespace
}  // namespace muster::rendezvous
