#include "muster/rpc/group.h"
#include "muster/rpc/group_store.h"
#include "muster/rpc/member.h"
#include "muster/rpc/texts.h"
#include "muster/sim/loop.h"
#include "tests/rendezvous/faulty_store.h"
#include "tests/rpc/chaotic_store.h"
#include "tests/rpc/group_workers.h"
#include "tests/server/tcp_store_base.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
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

class StaticGroupTest : public ::testing::Test {
 protected:
  GroupWorker& start(std::string name, std::int64_t rank, std::int64_t world_size,
                     Duration timeout = 2s) {
    workers.emplace_back(loop, *store, member(std::move(name), rank, ++incarnation));
    workers.back().join_static(world_size, loop.now() + timeout);
    loop.run_until_idle();
    return workers.back();
  }
  Result<Member> look_up(GroupWorker& by, std::string name) {
    return loop.block_on(by.group->look_up(std::move(name)));
  }

  sim::Loop loop;
  std::unique_ptr<store::Store> store = store::make_memory_store(loop);
  std::uint64_t incarnation = 0;
  std::deque<GroupWorker> workers;
};

TEST_F(StaticGroupTest, EndsJoiningWhenAllHaveComeAndKnowsThemByRank) {  // S36, S37
  for (const std::int64_t rank : {2, 0, 3}) start("worker" + std::to_string(rank), rank, 4);
  loop.advance(1s);
  for (GroupWorker& worker : workers) EXPECT_FALSE(worker.done());
  start("worker1", 1, 4);
  for (GroupWorker& worker : workers) {
    ASSERT_NE(worker.group, nullptr);
    EXPECT_TRUE(worker.group->is_static());
    EXPECT_EQ(worker.told_count, 1);
    EXPECT_EQ(worker.names(), (Names{"worker0", "worker1", "worker2", "worker3"}));
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(worker.members[rank].info.id(), static_cast<std::int16_t>(rank));
    }
    for (GroupWorker& other : workers) {
      const auto found = look_up(worker, other.self.info.name());
      ASSERT_TRUE(found) << found.error().message;
      EXPECT_EQ(*found, other.self);
    }
  }
  const auto unknown = look_up(workers.front(), "worker4");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().kind, ErrorKind::Invalid);
  EXPECT_NE(unknown.error().message.find("could not find destination"), std::string::npos);
}

TEST_F(StaticGroupTest, CanBeOneWorkerAlone) {  // S48
  GroupWorker& me = start("me", 0, 1);
  ASSERT_NE(me.group, nullptr);
  EXPECT_EQ(me.members, std::vector<Member>{me.self});
  EXPECT_TRUE(loop.block_on(me.group->leave(loop.now())));
}

TEST_F(StaticGroupTest, RefusesEverybodyWhenAllHaveOneName) {  // S44
  for (std::int64_t rank = 0; rank < 4; ++rank) start("same", rank, 4);
  for (GroupWorker& worker : workers) {
    EXPECT_TRUE(failed_with(worker.error, ErrorKind::Invalid,
                            duplicate_name_text(workers.front().self.info, 1)));
    EXPECT_EQ(worker.told_count, 0);
  }
}

TEST_F(StaticGroupTest, RefusesEverybodyWhenTwoShareAName) {  // S45
  start("a", 0, 4);
  start("b", 1, 4);
  start("c", 2, 4);
  start("b", 3, 4);
  for (GroupWorker& worker : workers) {
    EXPECT_TRUE(failed_with(worker.error, ErrorKind::Invalid,
                            duplicate_name_text(workers[1].self.info, 3)));
  }
}

TEST_F(StaticGroupTest, ListsExactlyTheRanksThatAreMissingWhenTheDeadlinePasses) {  // S188, X-37
  start("a", 0, 4);
  loop.advance(500ms);
  start("b", 2, 4);
  loop.advance(1500ms);
  EXPECT_TRUE(failed_with(workers[0].error, ErrorKind::Timeout,
                          "ranks 1 and 3 of 4 have not come within 2s; see whether"));
  EXPECT_FALSE(workers[1].done());
  loop.advance(500ms);
  EXPECT_TRUE(failed_with(workers[1].error, ErrorKind::Timeout,
                          "ranks 1 and 3 of 4 have not come within 2s; see whether"));
}

TEST_F(StaticGroupTest, NamesOneMissingRankAndLongRunsOfThem) {
  start("a", 1, 2);
  loop.advance(2s);
  EXPECT_TRUE(failed_with(workers[0].error, ErrorKind::Timeout, "rank 0 of 2 has not come within"));
  store = store::make_memory_store(loop);
  start("a", 1, 1000);
  start("b", 4, 1000);
  start("c", 999, 1000);
  loop.advance(2s);
  EXPECT_TRUE(failed_with(workers[1].error, ErrorKind::Timeout,
                          "ranks 0, 2, 3 and 5 to 998 of 1000 have not come within 2s"));
}

TEST_F(StaticGroupTest, FindsAWorkerThatWasStartedAgainAtItsNewAddress) {  // S172
  GroupWorker& a = start("a", 0, 2);
  GroupWorker& b = start("b", 1, 2);
  ASSERT_TRUE(a.group && b.group);
  b.die();
  const auto stale = look_up(a, "b");
  ASSERT_TRUE(stale);
  EXPECT_EQ(*stale, b.self);
  EXPECT_EQ(a.told_count, 1);

  GroupWorker& again = start("b", 1, 2);
  ASSERT_NE(again.group, nullptr);
  const auto fresh = look_up(a, "b");
  ASSERT_TRUE(fresh) << fresh.error().message;
  EXPECT_EQ(*fresh, again.self);
  EXPECT_EQ(a.told_count, 2);
  EXPECT_EQ(a.members[1], again.self);
}

TEST_F(StaticGroupTest, RefusesAnotherNameForARankThatIsTaken) {
  start("a", 0, 2);
  GroupWorker& late = start("c", 0, 2);
  EXPECT_TRUE(failed_with(late.error, ErrorKind::Invalid, duplicate_id_text(0)));
  start("b", 1, 2);
  ASSERT_NE(workers[0].group, nullptr);
  EXPECT_EQ(workers[0].names(), (Names{"a", "b"}));
}

TEST_F(StaticGroupTest, TellsAWorkerThatWasReplacedWhileItWaited) {
  GroupWorker& first = start("a", 0, 2);
  GroupWorker& second = start("a", 0, 2);
  start("b", 1, 2);
  EXPECT_TRUE(failed_with(first.error, ErrorKind::Invalid, duplicate_id_text(0)));
  EXPECT_NE(second.group, nullptr);
}

TEST_F(StaticGroupTest, IsNoneForAWorkerWithAnotherWorldSize) {
  start("a", 0, 2);
  GroupWorker& larger = start("b", 1, 3);
  EXPECT_TRUE(
      failed_with(larger.error, ErrorKind::Invalid, "a world size of 2, this worker with 3"));
  start("b", 1, 2);
  EXPECT_NE(workers[0].group, nullptr);
}

TEST_F(StaticGroupTest, IsNoneForAWorkerWithoutAWorldSize) {  // S178
  for (std::int64_t rank = 0; rank < 3; ++rank) start("w" + std::to_string(rank), rank, 3);
  GroupWorker fourth(loop, *store, member("c", 7, 99));
  fourth.join_dynamic({}, loop.now() + 2s);
  loop.run_until_idle();
  EXPECT_TRUE(failed_with(fourth.error, ErrorKind::Invalid, mixed_group_text(true)));
  EXPECT_TRUE(failed_with(fourth.error, ErrorKind::Invalid,
                          "RPC group mixes statically and dynamically initialized members"));
  EXPECT_EQ(workers.front().told_count, 1);
}

TEST_F(StaticGroupTest, RefusesRanksAndSizesThatCannotBe) {
  EXPECT_TRUE(failed_with(start("a", 2, 2).error, ErrorKind::Invalid, "world size of 2"));
  EXPECT_TRUE(failed_with(start("a", 0, 0).error, ErrorKind::Invalid, "world size of 0"));
  EXPECT_TRUE(failed_with(start("a", 0, 32769).error, ErrorKind::Invalid, "world size of 32769"));
}

TEST_F(StaticGroupTest, LeavesWhatItCannotReadAsItIs) {
  ASSERT_TRUE(loop.block_on(store->set("rank/0/0", "somebody else's")));
  GroupWorker& a = start("a", 0, 2);
  EXPECT_TRUE(failed_with(a.error, ErrorKind::Corrupt, "\"rank/0/0\""));
  // Nor does one look at others' values with more trust.
  ASSERT_TRUE(loop.block_on(store->set("rank/0/1", encode_member(member("x", 5, 9)))));
  ASSERT_TRUE(loop.block_on(store->set("rank/0/0", encode_member(member("a", 0, 9)))));
  GroupWorker& again = start("a", 0, 2);
  EXPECT_TRUE(failed_with(again.error, ErrorKind::Corrupt, "\"rank/0/1\""));
  for (const std::string left : {"MusterRV1 left ", "MusterRV1 left 12345678MusterRM"}) {
    ASSERT_TRUE(loop.block_on(store->set("rank/0/0", encode_member(member("a", 0, 9)))));
    ASSERT_TRUE(loop.block_on(store->set("rank/0/1", left)));
    EXPECT_TRUE(failed_with(start("a", 0, 2).error, ErrorKind::Corrupt, "\"rank/0/1\""));
  }
  ASSERT_TRUE(loop.block_on(store->set("rank/0/1", encode_member(member("x", 5, 9)))));
  EXPECT_EQ(*loop.block_on(store->get("rank/0/1", kNever)), encode_member(member("x", 5, 9)));
  ASSERT_TRUE(loop.block_on(store->set("generation", "-1")));
  EXPECT_TRUE(failed_with(start("a", 0, 2).error, ErrorKind::Corrupt, "\"generation\""));
  ASSERT_TRUE(loop.block_on(store->set(std::string(kGroupKindKey), "MusterRG1 static 4x")));
  EXPECT_TRUE(failed_with(start("a", 0, 2).error, ErrorKind::Corrupt, "\"kind\""));
}

TEST_F(StaticGroupTest, AfterItsEndAnotherOneBeginsAndFindsNothingOfIt) {  // S49
  for (int generation = 0; generation < 3; ++generation) {
    workers.clear();
    start("a", 0, 2);
    start("b", 1, 2);
    ASSERT_TRUE(workers[0].group && workers[1].group);
    // One of the two is done already and comes again while the other one is still about to go.
    ASSERT_TRUE(loop.block_on(workers[0].group->end(loop.now() + 1s)));
    GroupWorker& early = start("a", 0, 2);
    EXPECT_FALSE(early.done());
    ASSERT_TRUE(loop.block_on(workers[1].group->end(loop.now() + 1s)));
    EXPECT_FALSE(early.done());
    GroupWorker& late = start("b", 1, 2);
    ASSERT_TRUE(early.group && late.group);
    EXPECT_EQ(early.members, (std::vector<Member>{early.self, late.self}));
    EXPECT_EQ(late.members, early.members);
    ASSERT_TRUE(loop.block_on(early.group->end(loop.now() + 1s)));
  }
}

TEST_F(StaticGroupTest, WhoIsStartedAgainFindsTheGenerationOfTheOthers) {
  start("a", 0, 2);
  start("b", 1, 2);
  for (GroupWorker& worker : workers) {
    ASSERT_TRUE(loop.block_on(worker.group->end(loop.now() + 1s)));
  }
  GroupWorker& a = start("a", 0, 2);
  GroupWorker& b = start("b", 1, 2);
  ASSERT_TRUE(a.group && b.group);
  b.die();
  GroupWorker& again = start("b", 1, 2);
  ASSERT_NE(again.group, nullptr);
  EXPECT_EQ(again.members, (std::vector<Member>{a.self, again.self}));
  EXPECT_EQ(*look_up(a, "b"), again.self);
}

TEST_F(StaticGroupTest, TriesAgainWhenNobodyKnowsWhetherAWriteTookEffect) {
  FaultyStore faulty(*store);
  for (const auto breaks : {FaultyStore::Break::Before, FaultyStore::Break::After}) {
    GroupWorker worker(loop, faulty, member("a", 0, ++incarnation));
    faulty.compare_set_breaks = breaks;
    faulty.compare_set_count = 0;
    worker.join_static(1, loop.now() + 10s);
    ASSERT_TRUE(loop.run_until([&] { return worker.done(); }, loop.now() + 20s));
    EXPECT_NE(worker.group, nullptr) << worker.error->message;
    EXPECT_GE(faulty.compare_set_count, 3);
  }
}

TEST_F(StaticGroupTest, GivesUpOnAStoreThatIsGone) {
  FaultyStore faulty(*store);
  faulty.unreachable = true;
  GroupWorker worker(loop, faulty, member("a", 0, 1));
  worker.join_static(1, kNever);
  ASSERT_TRUE(loop.run_until([&] { return worker.done(); }, loop.now() + 1min));
  EXPECT_TRUE(failed_with(worker.error, ErrorKind::Closed, "the connection broke"));
  EXPECT_EQ(faulty.compare_set_count, StoreRetries::kFailuresMax + 1);
}

TEST_F(StaticGroupTest, MeetsUnderOtherNamesAfterOneThatWasNotUnique) {
  for (const std::string second : {"a", "b"}) {
    workers.clear();
    start("a", 0, 3);
    start(second, 1, 3);
    start("c", 2, 3);
    for (GroupWorker& worker : workers) EXPECT_TRUE(worker.done());
  }
  for (GroupWorker& worker : workers) {
    ASSERT_NE(worker.group, nullptr) << worker.error->message;
    EXPECT_EQ(worker.names(), (Names{"a", "b", "c"}));
  }
}

TEST_F(StaticGroupTest, LeavesNothingOfItselfBehindWhenItHasEnded) {
  for (int generation = 0; generation < 5; ++generation) {
    workers.clear();
    start("a", 0, 2);
    start("b", 1, 2);
    for (GroupWorker& worker : workers) {
      ASSERT_NE(worker.group, nullptr);
      EXPECT_TRUE(loop.block_on(worker.group->end(loop.now() + 1s)));
      EXPECT_TRUE(loop.block_on(worker.group->leave(loop.now() + 1s)));
    }
    EXPECT_EQ(*loop.block_on(store->list_keys("")), (Names{"generation", "kind"}));
  }
}

TEST_F(StaticGroupTest, EndsThoughTheStoreCannotDelete) {
  FaultyStore faulty(*store);
  faulty.cannot_delete = true;
  GroupWorker worker(loop, faulty, member("a", 0, 1));
  worker.join_static(1, loop.now() + 1s);
  loop.run_until_idle();
  ASSERT_NE(worker.group, nullptr);
  EXPECT_TRUE(loop.block_on(worker.group->end(loop.now() + 1s)));
}

// ---- those who go without an end

TEST_F(StaticGroupTest, WaitsForOneThatGaveUpBeforeTheOthersCame) {
  GroupWorker& early = start("b", 1, 3);
  loop.advance(2s);
  EXPECT_TRUE(failed_with(early.error, ErrorKind::Timeout, "ranks 0 and 2 of 3 have not come"));
  start("a", 0, 3);
  GroupWorker& c = start("c", 2, 3, 3s);
  EXPECT_FALSE(c.done());
  loop.advance(2s);
  EXPECT_TRUE(failed_with(workers[1].error, ErrorKind::Timeout,
                          "rank 1 of 3 has gone again, and not come back within 2s; see whether"));
  // One that has gone meanwhile is not there either when the first one is back.
  start("b", 1, 3);
  EXPECT_FALSE(c.done());
  start("a", 0, 3);
  ASSERT_TRUE(loop.run_until([&] { return c.done(); }, loop.now() + 1s));
  ASSERT_NE(c.group, nullptr) << c.error->message;
  EXPECT_EQ(c.members, (std::vector<Member>{workers[4].self, workers[3].self, c.self}));
  EXPECT_EQ(workers[3].members, c.members);
  EXPECT_EQ(workers[4].members, c.members);
}

TEST_F(StaticGroupTest, NamesThoseWhoHaveGoneBesideThoseWhoNeverCame) {
  start("a", 0, 4);
  loop.advance(500ms);
  start("c", 2, 4);
  loop.advance(2s);
  EXPECT_TRUE(failed_with(workers[1].error, ErrorKind::Timeout,
                          "world size; rank 0 came and has gone again"));
}

TEST_F(StaticGroupTest, IsFollowedByAnotherWhenAllHaveLeftWithoutItsEnd) {
  for (const std::string first : {"a", "x"}) {  // the name may be another, too
    workers.clear();
    start(first, 0, 2);
    start("b", 1, 2);
    ASSERT_TRUE(loop.run_until([&] { return workers[0].done(); }, loop.now() + 1s));
    ASSERT_TRUE(workers[0].group && workers[1].group);
    for (GroupWorker& worker : workers) {
      EXPECT_TRUE(loop.block_on(worker.group->leave(loop.now() + 1s)));
    }
  }
  GroupWorker& b = start("b", 1, 2);
  loop.advance(1s);
  EXPECT_FALSE(b.done());
  GroupWorker& a = start("a", 0, 2);
  ASSERT_TRUE(loop.run_until([&] { return b.done(); }, loop.now() + 1s));
  ASSERT_TRUE(a.group && b.group);
  EXPECT_EQ(b.members, (std::vector<Member>{a.self, b.self}));
}

TEST_F(StaticGroupTest, TakesBackOneThatHasLeftAndComesAgain) {
  GroupWorker& a = start("a", 0, 2);
  GroupWorker& b = start("b", 1, 2);
  EXPECT_TRUE(loop.block_on(b.group->leave(loop.now() + 1s)));
  const auto gone = look_up(a, "b");
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error(), (Error{ErrorKind::Closed, "WorkerInfo(id=1, name=b) has left"}));
  GroupWorker& again = start("b", 1, 2);
  ASSERT_NE(again.group, nullptr);
  EXPECT_EQ(*look_up(a, "b"), again.self);
  // Its former self has no say any more.
  EXPECT_TRUE(loop.block_on(b.group->leave(loop.now() + 1s)));
  EXPECT_EQ(*look_up(a, "b"), again.self);
  EXPECT_TRUE(loop.block_on(again.group->leave(loop.now() + 1s)));
  ASSERT_NE(start("c", 1, 2).group, nullptr);
  EXPECT_EQ(look_up(a, "b").error().message,
            "WorkerInfo(id=1, name=b) has left, and WorkerInfo(id=1, name=c) has its place");
}

TEST_F(StaticGroupTest, IsMetByOneThatReadsWhenAnotherHasLeftAlready) {
  ChaoticStore late(loop, *store, 1);
  late.delay_min = 50ms;
  GroupWorker a(loop, late, member("a", 0, 100));
  GroupWorker& b = start("b", 1, 2, 10s);
  b.when_joined = [&] { b.leave(loop.now() + 1s); };
  a.join_static(2, loop.now() + 10s);
  ASSERT_TRUE(loop.run_until([&] { return a.done(); }, loop.now() + 20s));
  ASSERT_NE(a.group, nullptr) << a.error->message;
  EXPECT_TRUE(b.left.has_value());
  EXPECT_EQ(a.members, (std::vector<Member>{a.self, b.self}));
  // Not by one that was not there then.
  GroupWorker& again = start("a", 0, 2);
  loop.advance(2s);
  EXPECT_TRUE(failed_with(again.error, ErrorKind::Timeout, "rank 1 of 2 has gone again"));
}

TEST_F(StaticGroupTest, DoesNotEndForOthersWhenOneThatComesLateDoesNotFit) {
  GroupWorker& a = start("a", 0, 2);
  GroupWorker& b = start("b", 1, 2);
  EXPECT_TRUE(loop.block_on(b.group->leave(loop.now() + 1s)));
  EXPECT_TRUE(failed_with(start("a", 1, 2).error, ErrorKind::Invalid, "is not unique"));
  GroupWorker& again = start("b", 1, 2);
  ASSERT_NE(again.group, nullptr) << again.error->message;
  EXPECT_EQ(again.members, (std::vector<Member>{a.self, again.self}));
}

TEST_F(StaticGroupTest, IsLeftSoonWhenTheStoreIsGone) {
  FaultyStore faulty(*store);
  GroupWorker worker(loop, faulty, member("a", 0, 1));
  worker.join_static(1, loop.now() + 1s);
  loop.run_until_idle();
  ASSERT_NE(worker.group, nullptr);
  faulty.unreachable = true;
  worker.leave(loop.now() + 5s);
  ASSERT_TRUE(loop.run_until([&] { return worker.left.has_value(); }, loop.now() + 1s));
  EXPECT_TRUE(*worker.left);
}

// ---- over the network

class NetworkedStaticGroup : public store::testing::TcpStoreBase,
                             public ::testing::TestWithParam<wire::Dialect> {
 protected:
  NetworkedStaticGroup() { store = connect_to(client_host, GetParam(), default_options()); }
};
INSTANTIATE_TEST_SUITE_P(Dialect, NetworkedStaticGroup,
                         ::testing::Values(wire::Dialect::Extension, wire::Dialect::Modern,
                                           wire::Dialect::Legacy),
                         store::testing::dialect_name);

TEST_P(NetworkedStaticGroup, NeedsOnlyWhatThePlainestServerKnows) {
  GroupWorker a(client_host.loop(), *store, member("a", 0, 1));
  GroupWorker b(writer_host.loop(), *writer, member("b", 1, 2));
  a.join_static(2, loop.now() + 2s);
  loop.advance(1s);
  EXPECT_FALSE(a.done());
  b.join_static(2, loop.now() + 2s);
  ASSERT_TRUE(loop.run_until([&] { return a.done() && b.done(); }, loop.now() + 10s));
  ASSERT_TRUE(a.group && b.group);
  EXPECT_EQ(a.members, (std::vector<Member>{a.self, b.self}));
  EXPECT_EQ(b.members, a.members);

  GroupWorker again(client_host.loop(), *store, member("a", 0, 3));
  again.join_static(2, loop.now() + 2s);
  ASSERT_TRUE(loop.run_until([&] { return again.done(); }, loop.now() + 10s));
  ASSERT_NE(again.group, nullptr);
  const auto found = await(b.group->look_up("a"));
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(*found, again.self);
}

TEST_P(NetworkedStaticGroup, NamesTheMissing) {  // S188
  GroupWorker a(client_host.loop(), *store, member("a", 0, 1));
  GroupWorker b(writer_host.loop(), *writer, member("b", 2, 2));
  a.join_static(4, loop.now() + 2s);
  b.join_static(4, loop.now() + 2s);
  ASSERT_TRUE(loop.run_until([&] { return a.done() && b.done(); }, loop.now() + 3s));
  EXPECT_TRUE(failed_with(a.error, ErrorKind::Timeout, "ranks 1 and 3 of 4 have not come within"));
  EXPECT_TRUE(failed_with(b.error, ErrorKind::Timeout, "ranks 1 and 3 of 4 have not come within"));
}

TEST_P(NetworkedStaticGroup, WaitsForThoseWhoHaveLeft) {
  GroupWorker a(client_host.loop(), *store, member("a", 0, 1));
  GroupWorker b(writer_host.loop(), *writer, member("b", 1, 2));
  a.join_static(2, loop.now() + 2s);
  b.join_static(2, loop.now() + 2s);
  ASSERT_TRUE(loop.run_until([&] { return a.done() && b.done(); }, loop.now() + 10s));
  a.leave(loop.now() + 5s);
  b.leave(loop.now() + 5s);
  ASSERT_TRUE(loop.run_until([&] { return a.left && b.left; }, loop.now() + 1s));
  GroupWorker c(client_host.loop(), *store, member("a", 0, 3));
  GroupWorker d(writer_host.loop(), *writer, member("b", 1, 4));
  c.join_static(2, loop.now() + 5s);
  loop.advance(1s);
  EXPECT_FALSE(c.done());
  d.join_static(2, loop.now() + 5s);
  ASSERT_TRUE(loop.run_until([&] { return c.done() && d.done(); }, loop.now() + 1s));
  ASSERT_TRUE(c.group && d.group);
  EXPECT_EQ(c.members, (std::vector<Member>{c.self, d.self}));
}

TEST_P(NetworkedStaticGroup, FailsInBoundedTimeWhenTheStoreFallsSilent) {
  GroupWorker a(client_host.loop(), *store, member("a", 0, 1));
  network.crash(server_host, sim::Crash::Silent);
  a.join_static(2, loop.now() + 2s);
  ASSERT_TRUE(loop.run_until([&] { return a.done(); }, loop.now() + 8s));
  EXPECT_TRUE(failed_with(a.error, ErrorKind::Timeout, "who is missing could not be found out"));
}

}  // namespace
}  // namespace muster::rpc
