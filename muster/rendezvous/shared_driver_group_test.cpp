// What nodes are to one another: signs of life, spares, and where the reference goes wrong.
#include "muster/rendezvous/host_protocol.h"
#include "muster/rendezvous/shared_driver.h"
#include "muster/rendezvous/sightings.h"
#include "muster/sim/loop.h"
#include "tests/rendezvous/shared_peers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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
using testing::FakeRun;
using testing::keep;
using testing::limits;
using testing::node;
using testing::Peer;
using testing::SharedDriverTest;

// ---- signs of life

TEST_F(SharedDriverTest, GivesSignsOfLifeFromTheJoinToTheStop) {  // 103, 105
  Peer& a = add("a", limits(1, 1));
  loop.advance(1min);
  EXPECT_EQ(a.backend.calls.beats, 0);
  join_all({&a});
  a.backend.calls = {};
  loop.advance(1min);
  EXPECT_EQ(a.backend.calls.beats, 12);
  a.driver->stop();
  loop.advance(1min);
  EXPECT_EQ(a.backend.calls.beats, 12);
  join_all({&a});
  a.backend.calls = {};
  loop.advance(10s);
  EXPECT_EQ(a.backend.calls.beats, 2);
  a.die();
  loop.advance(1min);
  EXPECT_EQ(a.backend.calls.beats, 2);
}

TEST_F(SharedDriverTest, GivesSignsOfLifeWhileItWaitsToJoin) {  // 80, 83, 84
  Peer& a = add("a", limits(1, 1));
  Peer& spare = add("spare", limits(1, 1));
  join_all({&a});
  spare.join();
  loop.advance(1min);
  EXPECT_EQ(spare.backend.calls.beats, 13);
  EXPECT_EQ(run.sign_count(), 2U);
}

TEST_F(SharedDriverTest, SwallowsWhatGoesWrongWithASignOfLife) {  // 100, 104, D11
  // However it goes wrong: an error of the store, a mistake of ours, no answer at all.
  for (const ErrorKind kind : {ErrorKind::Unavailable, ErrorKind::Invalid, ErrorKind::Corrupt}) {
    run.forget();
    Peer& a = add("a", limits(1, 1));
    join_all({&a});
    a.events.clear();
    a.backend.beat_failure = Error{kind, "it went wrong"};
    loop.advance(7s);
    ASSERT_FALSE(a.events.empty());
    EXPECT_EQ(a.events.back(), std::pair(NodeState::Failed, std::string("it went wrong")));
    const auto beats = run.beats_of(sign_name(a.self));
    a.backend.beat_failure.reset();
    loop.advance(7s);
    EXPECT_GT(run.beats_of(sign_name(a.self)), beats);
    EXPECT_TRUE(a.status().member);
    a.die();
  }
}

TEST_F(SharedDriverTest, GivesASignOfLifeUpThatTakesTooLong) {  // 104
  Settings settings = limits(1, 1);
  settings.timeouts.heartbeat = 200ms;
  Peer& a = add("a", settings);
  join_all({&a});
  a.backend.delay = 300ms;
  const auto beats = run.beats_of(sign_name(a.self));
  loop.advance(10s);
  EXPECT_GT(a.backend.calls.beats, 1);
  EXPECT_EQ(run.beats_of(sign_name(a.self)), beats);
  EXPECT_FALSE(log.warnings().empty());
  a.backend.delay = 0s;
  loop.advance(10s);
  EXPECT_GT(run.beats_of(sign_name(a.self)), beats);
}

TEST_F(SharedDriverTest, TakesTheDeadOutForEverybody) {  // D4, D8, 119
  Peer& a = add("a", limits(3, 3));
  Peer& b = add("b", limits(3, 3));
  Peer& c = add("c", limits(3, 3));
  join_all({&a, &b, &c});
  b.die();
  loop.advance(14s);
  EXPECT_FALSE(a.status().lost);
  loop.advance(12s);
  // Not only in the eyes of those who noticed it.
  EXPECT_FALSE(stored().participants.contains(b.self));
  EXPECT_TRUE(stored().lost);
  EXPECT_TRUE(a.status().lost);
  EXPECT_TRUE(c.status().lost);
  EXPECT_TRUE(a.status().member);
}

TEST_F(SharedDriverTest, NoticesTheDeathOfBothObservers) {
  std::vector<Peer*> all;
  for (const char* name : {"a", "b", "c", "d"}) all.push_back(&add(name, limits(4, 4)));
  join_all({all[0], all[1], all[2], all[3]});
  all[0]->die();
  all[1]->die();
  loop.advance(30s);
  EXPECT_EQ(stored().participants.size(), 2U);
  EXPECT_TRUE(all[3]->status().lost);
}

TEST_F(SharedDriverTest, DropsAParticipantThatDiesWhileTheRoundForms) {  // 119
  Settings settings = limits(2, 3);
  settings.timeouts.last_call = 10min;
  settings.timeouts.join = 1h;
  Peer& a = add("a", settings);
  Peer& b = add("b", settings);
  a.join();
  b.join();
  loop.advance(1s);
  ASSERT_TRUE(stored().deadline);
  b.die();
  loop.advance(30s);
  EXPECT_FALSE(stored().deadline);
  EXPECT_EQ(stored().participants.size(), 1U);
  Peer& c = add("c", settings);
  c.join();
  loop.advance(9min + 59s);
  EXPECT_FALSE(a.place);
  loop.advance(2s);
  ASSERT_TRUE(a.joined() && c.joined());
  EXPECT_EQ((**a.place).world_size, 2);
}

TEST_F(SharedDriverTest, KnowsAtOnceOfADeathWhereThereAreLeases) {
  FakeRun leases(loop, true);
  Peer a(loop, leases, node("a"), limits(2, 2));
  Peer b(loop, leases, node("b"), limits(2, 2));
  a.join();
  b.join();
  loop.run_until_idle();
  ASSERT_TRUE(a.joined() && b.joined());
  loop.advance(4s);
  b.die();
  loop.advance(11s);  // its last beat was at 0 s, the window is 15 s
  EXPECT_TRUE(a.status().lost);
}

TEST_F(SharedDriverTest, TellsANodeThatTheOthersHaveGivenItUp) {  // D5
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  join_all({&a, &b});
  EXPECT_TRUE(b.status().member);
  b.backend.failure = Error{ErrorKind::Unavailable, "cut off"};
  loop.advance(30s);
  EXPECT_FALSE(stored().participants.contains(b.self));
  b.backend.failure.reset();
  loop.advance(6s);
  EXPECT_FALSE(b.status().member);
  // It can come back in the next round.
  join_all({&a, &b});
  EXPECT_TRUE(b.status().member);
}

TEST_F(SharedDriverTest, ComparesNoClocks) {  // D6, 126
  sim::LocalLoop fast(loop);
  sim::LocalLoop slow(loop);
  fast.set_drift(1'000'000);
  loop.advance(1min);
  fast.set_drift(0);
  ASSERT_EQ(fast.now() - slow.now(), 1min);
  Peer a(fast, run, node("a"), limits(1, 3));
  Peer b(slow, run, node("b"), limits(1, 3));
  a.join();
  loop.run_until_idle();
  b.join();
  const TimePoint start = loop.now();
  loop.run_until([&] { return a.joined() && b.joined(); }, start + 5min);
  EXPECT_GE(loop.now() - start, 30s);
  EXPECT_LE(loop.now() - start, 30s + 1ms);
  loop.advance(1min);
  EXPECT_EQ(stored().participants.size(), 2U);
  EXPECT_TRUE(a.status().member && b.status().member);
  EXPECT_FALSE(a.status().lost || b.status().lost);
}

TEST_F(SharedDriverTest, CostsLittleWhileNothingHappens) {
  std::vector<Peer*> all;
  for (char name = 'a'; name <= 'j'; ++name)
    all.push_back(&add(std::string(1, name), limits(10, 10)));
  for (Peer* peer : all) peer->join();
  loop.run_until([&] { return all.back()->joined(); }, loop.now() + 1min);
  loop.advance(10s);
  for (Peer* peer : all) peer->backend.calls = {};
  const auto version = run.version();
  loop.advance(100s);  // 20 intervals
  EXPECT_EQ(run.version(), version);
  std::uint64_t signs_read = 0;
  for (Peer* peer : all) {
    EXPECT_EQ(peer->backend.calls.beats, 20);
    EXPECT_LE(peer->backend.calls.gets, 21);
    EXPECT_EQ(peer->backend.calls.sets, 0);
    signs_read += peer->backend.calls.signs_read;
  }
  // Two nodes look at the nine others, eight look at those two.
  EXPECT_LE(signs_read, 21U * (2 * 9 + 8 * 2));
}

// ---- spares

TEST_F(SharedDriverTest, ParksThoseForWhomThereIsNoRoom) {  // 79, 80, 114
  Settings settings = limits(2, 2);
  settings.timeouts.join = 20s;
  Peer& a = add("a", settings);
  Peer& b = add("b", settings);
  Peer& spare = add("s", settings);
  join_all({&a, &b});
  spare.join();
  loop.advance(10min);
  EXPECT_EQ(stored().redundancy_list, std::set<Node>{spare.self});
  EXPECT_FALSE(spare.place);
  EXPECT_EQ(a.status().waiting, 0);
  EXPECT_EQ(stored().round, 0U);
}

TEST_F(SharedDriverTest, CallsASpareInWhenAMemberDies) {  // 70, 81, 115
  Settings settings = limits(2, 2);
  settings.timeouts.join = 1min;
  Peer& a = add("a", settings);
  Peer& b = add("b", settings);
  Peer& spare = add("s", settings);
  join_all({&a, &b});
  spare.join();
  loop.advance(10min);
  b.die();
  loop.advance(30s);
  EXPECT_EQ(stored().wait_list, std::set<Node>{spare.self});
  EXPECT_EQ(a.status().waiting, 1);
  // It has its whole time again.
  loop.advance(25s);
  EXPECT_FALSE(spare.place);
  join_all({&a, &spare});
  EXPECT_EQ((**spare.place).rank, 1);
}

TEST_F(SharedDriverTest, GivesASpareThatWasCalledItsWholeTimeAgain) {  // 70
  Settings settings = limits(2, 2);
  settings.timeouts.join = 1min;
  Peer& a = add("a", settings);
  Peer& b = add("b", settings);
  Peer& spare = add("s", settings);
  join_all({&a, &b});
  spare.join();
  loop.advance(10min);
  ASSERT_TRUE(await(b.driver->leave(loop.now() + 5s)));
  loop.advance(1min);
  EXPECT_FALSE(spare.place);
  loop.advance(1s);
  EXPECT_EQ(spare.failure(), ErrorKind::Timeout);
  EXPECT_TRUE(stored().wait_list.empty());
}

TEST_F(SharedDriverTest, LetsSparesGoInPeaceWhenTheRunIsClosed) {  // 77, 116
  Peer& a = add("a", limits(1, 1));
  Peer& spare = add("s", limits(1, 1));
  join_all({&a});
  spare.join();
  loop.advance(1s);
  ASSERT_TRUE(await(a.driver->close(loop.now() + 30s)));
  loop.run_until_idle();
  EXPECT_EQ(spare.failure(), ErrorKind::Finished);
  EXPECT_TRUE(stored().redundancy_list.empty());
  Peer& fresh = add("f", limits(1, 1));
  fresh.join();
  loop.run_until_idle();
  EXPECT_EQ(fresh.failure(), ErrorKind::Closed);
}

TEST_F(SharedDriverTest, ParksTheOneWhoLosesTheRaceForTheLastSeat) {  // D1, 122
  Peer& a = add("a", limits(1, 2));
  Peer& b = add("b", limits(1, 2));
  Peer& c = add("c", limits(1, 2));
  a.join();
  loop.advance(31s);
  ASSERT_TRUE(a.joined());
  b.join();
  c.join();
  loop.advance(1s);
  ASSERT_EQ(stored().wait_list.size(), 2U);
  a.join();
  loop.advance(1s);
  EXPECT_EQ(a.joined() + b.joined() + c.joined(), 2);
  EXPECT_EQ(stored().redundancy_list.size(), 1U);
  EXPECT_TRUE(stored().wait_list.empty());
  EXPECT_EQ(stored().round, 1U);
  loop.advance(1min);
  for (const auto& peer : peers_) {
    if (peer->joined()) {
      EXPECT_EQ(peer->status().waiting, 0);
    }
  }
  EXPECT_EQ(stored().round, 1U);
}

// ---- where the reference goes wrong

TEST_F(SharedDriverTest, ReportsTheFrozenSizeToOneWhoIsSlow) {  // D2, 123
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  b.join();
  loop.run_until_idle();
  b.backend.delay = 1s;  // it will read late that the round is complete
  a.join();
  loop.run_until_idle();
  ASSERT_TRUE(a.joined());
  a.join();  // and by then a has left again
  loop.run_until_idle();
  EXPECT_EQ(stored().participants.size(), 1U);
  loop.advance(10s);
  ASSERT_TRUE(b.joined());
  EXPECT_EQ((**b.place).world_size, 2);
  EXPECT_EQ((**b.place).rank, 1);
  EXPECT_TRUE(b.status().lost);
}

TEST_F(SharedDriverTest, BacksOffAfterLostWrites) {  // D7
  std::vector<Peer*> all;
  const int count = 64;
  for (int i = 0; i < count; ++i) {
    Peer& peer = add("n" + std::to_string(100 + i), limits(count, count));
    peer.backend.delay = 1ms;
    all.push_back(&peer);
  }
  for (Peer* peer : all) peer->join();
  ASSERT_TRUE(loop.run_until(
      [&] {
        for (Peer* peer : all) {
          if (!peer->joined()) return false;
        }
        return true;
      },
      loop.now() + 1min));
  int writes = 0;
  for (Peer* peer : all) writes += peer->backend.calls.sets;
  // All at once and without a pause it would be count * count / 2, which is 2048.
  EXPECT_LT(writes, count * 8);
  EXPECT_LT(loop.now(), TimePoint(10s));
}

TEST_F(SharedDriverTest, TellsNodesWithEqualNamesApart) {  // D9, 127
  Peer a(loop, run, Node{"host", 1, 0, 5}, limits(2, 2));
  Peer b(loop, run, Node{"host", 1, 0, 6}, limits(2, 2));
  join_all({&a, &b});
  EXPECT_EQ((**a.place).rank + (**b.place).rank, 1);
  EXPECT_EQ(run.sign_count(), 2U);
}

TEST_F(SharedDriverTest, RefusesANodeWithOtherLimits) {  // D10, 128
  Peer& a = add("a", limits(1, 2));
  Peer& b = add("b", limits(1, 3));
  a.join();
  b.join();
  loop.run_until_idle();
  EXPECT_EQ(b.failure(), ErrorKind::Invalid);
  EXPECT_FALSE(stored().participants.contains(b.self));
  EXPECT_EQ(run.sign_count(), 1U);
}

TEST_F(SharedDriverTest, LeavesNothingBehindWhenItFails) {  // D13
  // Closed while it takes part in a round that forms: it counts to nobody's minimum any more.
  Peer& a = add("a", limits(3, 3));
  Peer& b = add("b", limits(3, 3));
  a.join();
  b.join();
  loop.advance(1s);
  Peer& c = add("c", limits(3, 3));
  ASSERT_TRUE(await(c.driver->close(loop.now() + 5s)));
  loop.run_until_idle();
  EXPECT_EQ(a.failure(), ErrorKind::Closed);
  EXPECT_TRUE(stored().participants.empty());
  EXPECT_EQ(run.sign_count(), 0U);
}

// ---- leaving

TEST_F(SharedDriverTest, LeavesWithoutClosing) {
  Peer& a = add("a", limits(2, 2));
  Peer& b = add("b", limits(2, 2));
  join_all({&a, &b});
  ASSERT_TRUE(await(a.driver->leave(loop.now() + 5s)));
  loop.run_until_idle();
  EXPECT_FALSE(a.status().member);
  EXPECT_TRUE(b.status().lost);
  EXPECT_FALSE(b.status().closed);
  EXPECT_EQ(run.sign_count(), 1U);
  const int beats = a.backend.calls.beats;
  loop.advance(1min);
  EXPECT_EQ(a.backend.calls.beats, beats);
  ASSERT_TRUE(await(a.driver->leave(loop.now() + 5s)));
}

TEST_F(SharedDriverTest, TakesBackAJoinThatWasCancelled) {
  Peer& a = add("a", limits(2, 2));
  a.join();
  loop.advance(1s);
  a.cancel();
  EXPECT_EQ(stored().participants.size(), 1U);
  ASSERT_TRUE(await(a.driver->leave(loop.now() + 5s)));
  EXPECT_TRUE(stored().participants.empty());
  // Wherever it was: waiting, parked.
  Peer& m = add("m", limits(2, 2));
  Peer& n = add("n", limits(2, 2));
  join_all({&m, &n});
  a.join();
  loop.advance(1s);
  ASSERT_EQ(stored().redundancy_list.size(), 1U);
  a.cancel();
  ASSERT_TRUE(await(a.driver->leave(loop.now() + 5s)));
  EXPECT_TRUE(stored().redundancy_list.empty());
}

TEST_F(SharedDriverTest, CanBeCancelledAnywhere) {
  // Whatever a call waits for when it is destroyed: the driver stays usable.
  for (Duration when = 0s; when < 50ms; when += 1ms) {
    run.forget();
    Peer& a = add("a", limits(1, 1), 10ms);
    a.backend.delay = 3ms;
    a.join();
    loop.advance(when);
    a.cancel();
    ASSERT_TRUE(await(a.driver->leave(loop.now() + 5s)));
    EXPECT_TRUE(stored().participants.empty());
    join_all({&a});
    a.die();
  }
}

TEST_F(SharedDriverTest, HasOneCallAtATimeAtTheStore) {
  Peer& a = add("a", limits(1, 2));
  join_all({&a});
  a.backend.delay = 100ms;
  std::optional<Result<Status>> looked;
  std::optional<Result<>> closed;
  TaskScope scope;
  loop.advance(2s);
  scope.start(keep(a.driver->look(), looked));
  scope.start(keep(a.driver->close(loop.now() + 10s), closed));
  loop.advance(5s);
  ASSERT_TRUE(looked && *looked && closed && *closed);
  EXPECT_TRUE(stored().closed);
}

}  // namespace
}  // namespace muster::rendezvous
