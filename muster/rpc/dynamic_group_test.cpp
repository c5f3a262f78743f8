#include "muster/rpc/dynamic_group.h"

#include "muster/rpc/group_store.h"
#include "muster/rpc/texts.h"
#include "muster/sim/loop.h"
#include "tests/rendezvous/faulty_store.h"
#include "tests/rpc/chaotic_store.h"
#include "tests/rpc/group_workers.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using rendezvous::testing::FaultyStore;
using testing::ChaoticStore;
using testing::failed_with;
using testing::GroupWorker;
using testing::member;
using Names = std::vector<std::string>;

class DynamicGroupTest : public ::testing::Test {
 protected:
  GroupWorker& start(std::string name, std::int64_t id, Duration timeout = 1min) {
    workers.emplace_back(loop, *store, member(std::move(name), id, ++incarnation));
    workers.back().join_dynamic({}, loop.now() + timeout);
    return workers.back();
  }
  GroupWorker& join(std::string name, std::int64_t id) {
    GroupWorker& worker = start(std::move(name), id);
    EXPECT_TRUE(settle([&] { return worker.done(); }));
    EXPECT_FALSE(worker.error) << worker.error->message;
    return worker;
  }
  void leave(GroupWorker& worker) {
    worker.leave(loop.now() + 1min);
    EXPECT_TRUE(settle([&] { return worker.left.has_value(); }));
    EXPECT_TRUE(*worker.left) << worker.left->error().message;
    worker.group.reset();
  }
  bool settle(const std::function<bool()>& reached, Duration most = 2min) {
    return loop.run_until(reached, loop.now() + most);
  }
  std::vector<std::string> keys() { return *loop.block_on(store->list_keys("")); }

  tests::LogCapture log;
  sim::Loop loop;
  std::unique_ptr<store::Store> store = store::make_memory_store(loop);
  std::deque<std::unique_ptr<store::Store>> stores;  // more of them
  std::uint64_t incarnation = 0;
  std::deque<GroupWorker> workers;
};

TEST_F(DynamicGroupTest, StartsAndEndsWithoutAWorldSize) {  // S174
  for (const std::int64_t id : {0, 1, 2, 3}) join("worker" + std::to_string(id), id);
  for (GroupWorker& worker : workers) {
    EXPECT_FALSE(worker.group->is_static());
    EXPECT_TRUE(settle([&] { return worker.names().size() == 4; }));
    EXPECT_EQ(worker.names(), (Names{"worker0", "worker1", "worker2", "worker3"}));
  }
  for (GroupWorker& worker : workers) leave(worker);
  EXPECT_EQ(keys(), (Names{"kind", "members"}));
}

// What S175 and S176 rest on; their calls are in groups_test.py.
TEST_F(DynamicGroupTest, MakesNewcomersAndMembersKnownToOneAnotherBeforeJoiningEnds) {
  GroupWorker& first = join("worker0", 0);
  EXPECT_EQ(first.members, std::vector<Member>{first.self});
  for (const std::int64_t id : {7, 3, 5}) {
    GroupWorker& newcomer = start("worker" + std::to_string(id), id);
    bool checked = false;
    newcomer.when_joined = [&] {
      checked = true;
      for (GroupWorker& other : workers) {
        EXPECT_TRUE(other.find(newcomer.self.info.name()) != nullptr);
        EXPECT_TRUE(newcomer.find(other.self.info.name()) != nullptr);
      }
    };
    ASSERT_TRUE(settle([&] { return checked; }));
  }
  EXPECT_EQ(first.names(), (Names{"worker0", "worker3", "worker5", "worker7"}));
}

TEST_F(DynamicGroupTest, WaitsForAMemberThatIsSlowToTakeNote) {
  join("a", 0);
  sim::LocalLoop slow_loop(loop);
  ChaoticStore slow_store(slow_loop, *store, 1);
  slow_store.delay_max = 300ms;
  GroupWorker slow(slow_loop, slow_store, member("b", 1, 100));
  slow.join_dynamic({}, loop.now() + 1min);
  ASSERT_TRUE(settle([&] { return slow.group != nullptr; }));
  GroupWorker& c = start("c", 2);
  c.when_joined = [&] { EXPECT_NE(slow.find("c"), nullptr); };
  slow_loop.stop();
  loop.advance(1s);
  EXPECT_FALSE(c.done());
  slow_loop.resume();
  ASSERT_TRUE(settle([&] { return c.group != nullptr; }));
  EXPECT_EQ(slow.self.incarnation, slow.find("b")->incarnation);
}

TEST_F(DynamicGroupTest, TellsTheOthersOfWhoLeaves) {
  GroupWorker& a = join("a", 0);
  GroupWorker& b = join("b", 1);
  leave(b);
  ASSERT_TRUE(settle([&] { return a.names() == Names{"a"}; }, 1s));
  const auto gone = loop.block_on(a.group->look_up("b"));
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().kind, ErrorKind::Invalid);
  EXPECT_EQ(gone.error().message, unknown_destination_name_text(a.self.info, "b"));
}

TEST_F(DynamicGroupTest, LeavesOnlyOnce) {
  GroupWorker& a = join("a", 0);
  for (int round = 0; round < 2; ++round) {
    a.left.reset();
    a.leave(loop.now() + 1s);
    ASSERT_TRUE(settle([&] { return a.left.has_value(); }));
    EXPECT_TRUE(*a.left);
  }
}

TEST_F(DynamicGroupTest, CanBeLeftFromInsideTheNewsOfAChange) {
  GroupWorker& a = join("a", 0);
  a.when_told = [&] { a.leave(loop.now() + 1s); };
  GroupWorker& b = join("b", 1);
  ASSERT_TRUE(settle([&] { return a.left.has_value() && b.names() == Names{"b"}; }));
}

TEST_F(DynamicGroupTest, IsNoneForAWorkerWithAWorldSize) {  // S178
  join("a", 0);
  GroupWorker other(loop, *store, member("b", 1, 100));
  other.join_static(2, loop.now() + 2s);
  loop.run_until_idle();
  EXPECT_TRUE(failed_with(other.error, ErrorKind::Invalid, mixed_group_text(false)));
}

TEST_F(DynamicGroupTest, LetsOthersJoinWhenAMemberWasKilledAndForgetsIt) {  // S179, X-29
  GroupWorker& a = join("a", 0);
  GroupWorker& dead = join("dead", 1);
  dead.die();
  GroupWorker& c = start("c", 2);
  ASSERT_TRUE(settle([&] { return c.group != nullptr; }, 7s));
  ASSERT_TRUE(settle([&] { return a.names() == Names{"a", "c"}; }, 1s));
  EXPECT_EQ(c.names(), (Names{"a", "c"}));
  EXPECT_EQ(keys().size(), 4U);
}

TEST_F(DynamicGroupTest, NoticesThatAMemberDiedWithoutAnybodyAsking) {
  GroupWorker& a = join("a", 0);
  GroupWorker& b = join("b", 1);
  GroupWorker& c = join("c", 2);
  a.die();
  ASSERT_TRUE(settle([&] { return b.names() == Names{"b", "c"} && c.names() == b.names(); }, 8s));
  b.die();
  ASSERT_TRUE(settle([&] { return c.names() == Names{"c"}; }, 8s));
}

TEST_F(DynamicGroupTest, LooksAtOnceAtAMemberWhoseConnectionBroke) {
  for (const bool suspected : {false, true}) {
    store::Store& fresh = *stores.emplace_back(store::make_memory_store(loop));
    std::deque<GroupWorker> six;
    for (std::int64_t id = 0; id < 6; ++id) {
      six.emplace_back(loop, fresh, member("w" + std::to_string(id), id, ++incarnation));
      six.back().join_dynamic({}, loop.now() + 1min);
      ASSERT_TRUE(settle([&] { return six.back().group != nullptr; }));
    }
    // Both observers of the third die with it: it is nobody's business until they seem to be gone.
    for (std::size_t index = 0; index < 3; ++index) six[index].die();
    if (suspected) six[4].group->suspect(six[2].self);
    loop.advance(6s);
    EXPECT_EQ(six[5].names(),
              suspected ? (Names{"w3", "w4", "w5"}) : (Names{"w2", "w3", "w4", "w5"}));
    loop.advance(7s);
    EXPECT_EQ(six[5].names(), (Names{"w3", "w4", "w5"}));
  }
}

TEST_F(DynamicGroupTest, DoesNotTakeOutASuspectThatLives) {
  GroupWorker& a = join("a", 0);
  GroupWorker& b = join("b", 1);
  for (int second = 0; second < 30; ++second) {
    a.group->suspect(b.self);
    loop.advance(1s);
  }
  EXPECT_EQ(a.names(), (Names{"a", "b"}));
  EXPECT_EQ(a.find("b")->incarnation, b.self.incarnation);
}

TEST_F(DynamicGroupTest, RefusesALiveNameAndLetsTheNextOneIn) {  // S180, X-28
  GroupWorker& a = join("a", 0);
  GroupWorker& twin = start("a", 1);
  ASSERT_TRUE(settle([&] { return twin.done(); }, 3s));
  EXPECT_TRUE(failed_with(twin.error, ErrorKind::Invalid, duplicate_name_text(a.self.info, 1)));
  EXPECT_EQ(keys(), (Names{"kind", lease_key(1), "members"}));
  GroupWorker& same_id = start("b", 0);
  ASSERT_TRUE(settle([&] { return same_id.done(); }, 3s));
  EXPECT_TRUE(failed_with(same_id.error, ErrorKind::Invalid, duplicate_id_text(0)));
  GroupWorker& next = start("c", 1);
  ASSERT_TRUE(settle([&] { return next.group != nullptr; }, 1s));
  EXPECT_EQ(a.names(), (Names{"a", "c"}));
}

TEST_F(DynamicGroupTest, SaysThatANameIsTakenWhenTheDeadlinePassesBeforeItsHolderIsJudged) {
  GroupWorker& a = join("a", 0);
  a.die();
  GroupWorker& again = start("a", 0, 2s);
  ASSERT_TRUE(settle([&] { return again.done(); }, 3s));
  EXPECT_TRUE(failed_with(again.error, ErrorKind::Invalid, duplicate_name_text(a.self.info, 0)));
}

TEST_F(DynamicGroupTest, LetsAWorkerThatWasStartedAgainTakeItsPlaceFromItsDeadSelf) {  // S172
  GroupWorker& a = join("a", 0);
  GroupWorker& b = join("b", 1);
  b.die();
  GroupWorker& again = start("b", 1);
  ASSERT_TRUE(settle([&] { return again.group != nullptr; }, 7s));
  EXPECT_EQ(*a.find("b"), again.self);
  const auto found = loop.block_on(a.group->look_up("b"));
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, again.self);
  EXPECT_EQ(keys().size(), 4U);
}

TEST_F(DynamicGroupTest, GivesTheIdOfWhoLeftToAnotherName) {  // S181, X-30
  GroupWorker& a = join("a", 0);
  leave(join("b", 1));
  join("c", 1);
  EXPECT_EQ(a.names(), (Names{"a", "c"}));
  EXPECT_EQ(a.find("c")->info.id(), 1);
  // And the name to another id.
  join("b", 2);
  EXPECT_EQ(a.names(), (Names{"a", "c", "b"}));
}

TEST_F(DynamicGroupTest, TakesNamesWithHyphens) {  // S182, X-31
  GroupWorker& first = join("a-1", 0);
  join("b-2-", 1);
  join("-", 2);
  EXPECT_EQ(first.names(), (Names{"a-1", "b-2-", "-"}));
}

TEST_F(DynamicGroupTest, JoinsAgainAsOftenAsItLikes) {  // S49, X-33
  GroupWorker& a = join("a", 0);
  for (int round = 0; round < 20; ++round) leave(join("b", 1));
  EXPECT_TRUE(settle([&] { return a.names() == Names{"a"}; }));
  EXPECT_EQ(keys().size(), 3U);
}

TEST_F(DynamicGroupTest, NamesThoseWhoHaveNotTakenNoteAndLeavesNothingBehind) {
  join("a", 0);
  GroupWorker& dead = join("dead", 1);
  dead.die();
  GroupWorker& c = start("c", 2, 2s);
  ASSERT_TRUE(settle([&] { return c.done(); }, 3s));
  EXPECT_TRUE(failed_with(c.error, ErrorKind::Timeout, "WorkerInfo(id=1, name=dead)"));
  EXPECT_TRUE(failed_with(c.error, ErrorKind::Timeout, "within 2s"));
  EXPECT_EQ(keys(), (Names{"kind", lease_key(1), lease_key(2), "members"}));
  ASSERT_TRUE(settle([&] { return workers[0].names() == Names{"a"}; }, 10s));
}

TEST_F(DynamicGroupTest, GetsOverAJoinThatWasCutOffAnywhere) {  // S180
  // Cancelled at every moment: what it left behind holds up nobody for longer than a lease.
  for (Duration moment = 0ms; moment < 200ms; moment += 5ms) {
    store::Store& fresh = *stores.emplace_back(store::make_memory_store(loop));
    ChaoticStore slow(loop, fresh, static_cast<std::uint64_t>(moment.count()));
    GroupWorker cut(loop, slow, member("a", 0, ++incarnation));
    cut.join_dynamic({}, kNever);
    loop.advance(moment);
    cut.die();
    GroupWorker next(loop, fresh, member("a", 0, ++incarnation));
    next.join_dynamic({}, loop.now() + 10s);
    ASSERT_TRUE(settle([&] { return next.done(); }, 10s));
    EXPECT_TRUE(next.group != nullptr) << next.error->message;
    next.die();
  }
}

// ---- workers that are stopped, and stores that go away

TEST_F(DynamicGroupTest, TakesAStoppedWorkerBackAsANewIncarnation) {
  GroupWorker& a = join("a", 0);
  sim::LocalLoop own(loop);
  ChaoticStore view(own, *store, 1);
  GroupWorker b(own, view, member("b", 1, 100));
  b.join_dynamic({}, loop.now() + 1min);
  ASSERT_TRUE(settle([&] { return b.group != nullptr; }));
  own.stop();
  ASSERT_TRUE(settle([&] { return a.names() == Names{"a"}; }, 8s));
  own.resume();
  ASSERT_TRUE(settle([&] { return a.names() == Names{"a", "b"}; }, 3s));
  EXPECT_NE(a.find("b")->incarnation, b.self.incarnation);
  ASSERT_TRUE(settle([&] { return b.members == a.members; }, 1s));
  loop.advance(30s);
  EXPECT_EQ(a.names(), (Names{"a", "b"}));
  EXPECT_EQ(keys().size(), 4U);
  b.leave(loop.now() + 1min);
  ASSERT_TRUE(settle([&] { return a.names() == Names{"a"}; }, 1s));
}

TEST_F(DynamicGroupTest, KeepsAStoppedWorkerOutWhoseNameWasTaken) {
  GroupWorker& a = join("a", 0);
  sim::LocalLoop own(loop);
  ChaoticStore view(own, *store, 1);
  GroupWorker b(own, view, member("b", 1, 100));
  b.join_dynamic({}, loop.now() + 1min);
  ASSERT_TRUE(settle([&] { return b.group != nullptr; }));
  own.stop();
  GroupWorker& heir = join("b", 2);
  own.resume();
  ASSERT_TRUE(settle([&] { return b.members == a.members; }, 5s));
  EXPECT_EQ(*b.find("b"), heir.self);
  // It hears on, and has left nothing behind.
  join("c", 3);
  ASSERT_TRUE(settle([&] { return b.names() == Names{"a", "b", "c"}; }, 1s));
  loop.advance(10s);
  EXPECT_EQ(keys().size(), 5U);
  EXPECT_EQ(a.names(), (Names{"a", "b", "c"}));
  b.leave(loop.now() + 1s);
  ASSERT_TRUE(settle([&] { return b.left.has_value(); }));
  loop.advance(1s);
  EXPECT_EQ(a.names(), (Names{"a", "b", "c"}));
}

TEST_F(DynamicGroupTest, LosesNobodyWhileTheStoreIsAway) {
  FaultyStore shared(*store);
  std::deque<GroupWorker> three;
  for (std::int64_t id = 0; id < 3; ++id) {
    three.emplace_back(loop, shared, member("w" + std::to_string(id), id, ++incarnation));
    three.back().join_dynamic({}, loop.now() + 1min);
    ASSERT_TRUE(settle([&] { return three.back().group != nullptr; }));
  }
  shared.unreachable = true;
  loop.advance(1min);
  shared.unreachable = false;
  loop.advance(1min);
  for (GroupWorker& worker : three) {
    EXPECT_EQ(worker.names(), (Names{"w0", "w1", "w2"}));
    EXPECT_EQ(worker.find(worker.self.info.name())->incarnation, worker.self.incarnation);
  }
  EXPECT_EQ(log.warnings().size(), 3U);
}

TEST_F(DynamicGroupTest, FormsAgainWhenTheStoreHasLostEverything) {
  for (const std::int64_t id : {0, 1, 2}) join("w" + std::to_string(id), id);
  const int versions_before = 3;
  for (const std::string& key : keys()) ASSERT_TRUE(loop.block_on(store->delete_key(key)));
  const auto agree = [&] {
    for (GroupWorker& worker : workers) {
      if (worker.names() != Names{"w0", "w1", "w2"}) return false;
      if (worker.members != workers.front().members) return false;
    }
    return true;
  };
  loop.advance(100ms);
  ASSERT_TRUE(settle(agree, 10s));
  const auto list = decode_list("members", *loop.block_on(store->get("members", kNever)));
  ASSERT_TRUE(list);
  EXPECT_GT(list->version, versions_before);
  EXPECT_EQ(keys().size(), 5U);
}

TEST_F(DynamicGroupTest, LeavesAListThatItCannotReadAsItIs) {
  ASSERT_TRUE(loop.block_on(store->set("members", "worker0-0,worker1-1,")));
  GroupWorker& a = start("a", 0);
  ASSERT_TRUE(settle([&] { return a.done(); }));
  EXPECT_TRUE(failed_with(a.error, ErrorKind::Corrupt, "\"members\""));
  EXPECT_EQ(*loop.block_on(store->get("members", kNever)), "worker0-0,worker1-1,");
  EXPECT_EQ(keys(), (Names{"kind", "members"}));
}

TEST_F(DynamicGroupTest, GoesOnWithTheMembersItKnowsWhenTheListIsDamaged) {
  GroupWorker& a = join("a", 0);
  GroupWorker& b = join("b", 1);
  ASSERT_TRUE(loop.block_on(store->set("members", "damage")));
  loop.advance(10s);
  EXPECT_EQ(a.names(), (Names{"a", "b"}));
  EXPECT_EQ(b.names(), (Names{"a", "b"}));
  EXPECT_EQ(*loop.block_on(store->get("members", kNever)), "damage");
  EXPECT_FALSE(log.warnings().empty());
  a.leave(loop.now() + 1s);
  ASSERT_TRUE(settle([&] { return a.left.has_value(); }));
  EXPECT_EQ(a.left->error().kind, ErrorKind::Corrupt);
}

TEST_F(DynamicGroupTest, TriesAgainWhenNobodyKnowsWhetherItIsIn) {
  for (const auto breaks : {FaultyStore::Break::Before, FaultyStore::Break::After}) {
    store::Store& fresh = *stores.emplace_back(store::make_memory_store(loop));
    GroupWorker first(loop, fresh, member("first", 0, ++incarnation));
    first.join_dynamic({}, kNever);
    ASSERT_TRUE(settle([&] { return first.group != nullptr; }));
    FaultyStore faulty(fresh);
    faulty.compare_set_breaks = breaks;
    GroupWorker worker(loop, faulty, member("a", 1, ++incarnation));
    worker.join_dynamic({}, loop.now() + 10s);
    ASSERT_TRUE(settle([&] { return worker.done(); }));
    ASSERT_TRUE(worker.group != nullptr) << worker.error->message;
    faulty.compare_set_breaks = breaks;
    worker.leave(loop.now() + 10s);
    ASSERT_TRUE(settle([&] { return worker.left.has_value(); }));
    EXPECT_TRUE(*worker.left) << worker.left->error().message;
    ASSERT_TRUE(settle([&] { return first.names() == Names{"first"}; }));
  }
}

TEST_F(DynamicGroupTest, GivesUpAJoinInTimeWhenTheStoreIsGone) {
  FaultyStore faulty(*store);
  faulty.unreachable = true;
  GroupWorker worker(loop, faulty, member("a", 0, 1));
  worker.join_dynamic({}, kNever);
  ASSERT_TRUE(settle([&] { return worker.done(); }));
  EXPECT_TRUE(failed_with(worker.error, ErrorKind::Closed, "the connection broke"));
}

TEST_F(DynamicGroupTest, RefusesALeaseThatOneLateRenewalWouldEnd) {
  GroupWorker worker(loop, *store, member("a", 0, 1));
  worker.join_dynamic({.renew_interval = 1s, .lease = 1999ms}, kNever);
  EXPECT_TRUE(failed_with(worker.error, ErrorKind::Invalid, "at least 2 times as long"));
  GroupWorker other(loop, *store, member("a", 0, 1));
  other.join_dynamic({.renew_interval = 0s, .lease = 1s}, kNever);
  EXPECT_TRUE(failed_with(other.error, ErrorKind::Invalid, "too short"));
}

TEST_F(DynamicGroupTest, TakesOutAllWhoDieAtOnceWithinTwoLeases) {
  for (std::int64_t id = 0; id < 16; ++id) join("w" + std::to_string(id), id);
  // The lowest by id and by incarnation.
  for (std::size_t index = 0; index < 8; ++index) workers[index].die();
  const auto are_out = [&] {
    for (std::size_t index = 8; index < 16; ++index) {
      if (workers[index].members.size() != 8) return false;
    }
    return true;
  };
  EXPECT_TRUE(settle(are_out, 2 * GroupOptions().lease));
  loop.advance(1min);
  EXPECT_TRUE(are_out());
  EXPECT_EQ(keys().size(), 2U + 8U);
}

TEST_F(DynamicGroupTest, NeverGoesBackToAnOlderListThanItHasToldOf) {
  sim::LocalLoop own(loop);
  ChaoticStore late(own, *store, 1);
  late.delay_min = 50ms;
  late.delay_max = 0ms;
  GroupWorker a(own, late, member("a", 0, 100));
  a.join_dynamic({}, loop.now() + 1min);
  ASSERT_TRUE(settle([&] { return a.group != nullptr; }));
  GroupWorker& b = join("b", 1);
  // It is taken out and comes back; others come while it still hears of that.
  own.stop();
  ASSERT_TRUE(settle([&] { return b.names() == Names{"b"}; }, 8s));
  join("c", 2);
  std::size_t most = 0;
  a.when_told = [&] {
    if (most == 0) start("d", 3);
    EXPECT_GE(a.members.size(), most);
    most = a.members.size();
  };
  own.resume();
  ASSERT_TRUE(settle([&] { return a.names() == Names{"a", "b", "c", "d"}; }, 3s));
  loop.advance(3s);
  EXPECT_EQ(a.names(), (Names{"a", "b", "c", "d"}));
}

}  // namespace
}  // namespace muster::rpc
