// Waiters, barriers and watchers of a Table.
#include "muster/store/table.h"
#include "muster/store/table_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace muster::store::testing {
namespace {

// ---- waiting

TEST_F(Table, IsDoneWaitingWhenEveryKeyIsThere) {
  set("a", "1");
  set("b", "");
  EXPECT_TRUE(wait(1, {"a", "b", "a"}));
  EXPECT_TRUE(wait(1, {}));
  EXPECT_EQ(table.waiter_count(), 0U);
}

TEST_F(Table, ReleasesAWaiterWhenItsLastKeyIsWritten) {
  set("b", "here");
  EXPECT_FALSE(wait(1, {"a", "b", "c"}));
  set("b", "again");
  set("c", "x");
  set("c", "y");
  EXPECT_TRUE(released().empty());
  set("a", "x");
  EXPECT_EQ(released(), Ids{1});
  set("a", "y");
  EXPECT_TRUE(released().empty());
}

TEST_F(Table, RemembersOnlyTheKeysMissingWhenTheWaitBegan) {
  set("was here", "x");
  EXPECT_FALSE(wait(1, {"was here", "a", "b"}));
  table.erase("was here", outcome);
  set("a", "x");
  table.erase("a", outcome);
  EXPECT_TRUE(released().empty());
  set("b", "x");
  EXPECT_EQ(released(), Ids{1});
}

TEST_F(Table, ReleasesAWaiterOnceForAKeyListedTwice) {
  EXPECT_FALSE(wait(1, {"a", "b", "a", "a"}));
  set("b", "x");
  set("a", "x");
  EXPECT_EQ(released(), Ids{1});
}

TEST_F(Table, ReleasesEveryWaiterOfAKeyInTheOrderOfArrival) {
  EXPECT_FALSE(wait(3, {"k"}));
  EXPECT_FALSE(wait(1, {"k"}, Need::Key));
  EXPECT_FALSE(wait(2, {"k"}));
  set("k", "v");
  EXPECT_EQ(released(), (Ids{3, 1, 2}));
}

TEST_F(Table, ReleasesByEveryKindOfWrite) {
  EXPECT_FALSE(wait(1, {"set"}));
  EXPECT_FALSE(wait(2, {"add"}));
  EXPECT_FALSE(wait(3, {"append"}));
  EXPECT_FALSE(wait(4, {"compare"}));
  set("set", "");
  EXPECT_TRUE(table.add("add", 1, outcome));
  table.append("append", "", outcome);
  table.compare_set("compare", "", "", outcome);
  EXPECT_EQ(released(), (Ids{1, 2, 3, 4}));
}

TEST_F(Table, ForgetsAWaiter) {
  EXPECT_FALSE(wait(1, {"a", "b"}));
  EXPECT_FALSE(wait(2, {"a"}));
  set("b", "x");
  table.forget(1, outcome);
  EXPECT_EQ(table.waiter_count(), 1U);
  set("a", "x");
  EXPECT_EQ(released(), Ids{2});
}

TEST_F(Table, ForgetsHarmlesslyWhoDoesNotWait) {
  table.forget(1, outcome);
  EXPECT_FALSE(wait(1, {"a"}));
  set("a", "x");
  outcome.clear();
  table.forget(1, outcome);
  EXPECT_TRUE(released().empty());
}

TEST_F(Table, LetsAReleasedWaiterWaitAgain) {
  EXPECT_FALSE(wait(1, {"a"}));
  set("a", "x");
  EXPECT_FALSE(wait(1, {"b", "c"}));
  set("b", "x");
  set("c", "x");
  EXPECT_EQ(released(), (Ids{1, 1}));
}

TEST_F(Table, ReleasesTenThousandWaitersAfterTenThousandOthersLeft) {
  constexpr WaiterId kCount = 20'000;
  for (WaiterId id = 1; id <= kCount; ++id) EXPECT_FALSE(wait(id, {"k", "l"}));
  for (WaiterId id = 1; id <= kCount; id += 4) table.forget(id, outcome);
  for (WaiterId id = kCount; id >= 4; id -= 4) table.forget(id, outcome);
  EXPECT_EQ(table.waiter_count(), kCount / 2);
  set("k", "v");
  EXPECT_TRUE(released().empty());
  set("l", "v");
  const Ids ids = released();
  EXPECT_EQ(ids.size(), kCount / 2);
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  EXPECT_EQ(table.waiter_count(), 0U);
}

TEST_F(Table, WaitsForAsManyKeysAsTheWireAllows) {
  constexpr std::size_t kCount = 131'072;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kCount; ++i) names.push_back("key-" + std::to_string(i / 2));
  const Names keys(names.begin(), names.end());
  EXPECT_FALSE(table.wait(1, keys));
  EXPECT_FALSE(table.wait(2, keys));
  EXPECT_FALSE(table.wait(3, keys, Need::Queue));
  table.forget(2, outcome);
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_TRUE(outcome.released.empty());
    set(names[kCount - 1 - i], "");
    if (i + 3 > kCount) break;
  }
  set(names.front(), "");
  EXPECT_EQ(released(), Ids{1});
  for (std::size_t i = 0; i < kCount; i += 2) push(names[i], "");
  EXPECT_EQ(released(), Ids{3});
  for (std::size_t i = kCount; i > 0; i -= 2) EXPECT_EQ(pop(names[i - 1], 3), "");
}

// ---- barrier

TEST_F(Table, HoldsABarrierUntilTheLastMemberComes) {
  EXPECT_FALSE(barrier(1, "b", 3));
  EXPECT_FALSE(barrier(2, "b", 3));
  EXPECT_EQ(value("b"), "2");
  EXPECT_TRUE(barrier(3, "b", 3));
  EXPECT_EQ(released(), (Ids{1, 2}));
  EXPECT_EQ(value("b"), "3");
  EXPECT_EQ(table.waiter_count(), 0U);
}

TEST_F(Table, LetsEverybodyPassACompleteBarrier) {
  EXPECT_TRUE(barrier(1, "b", 1));
  EXPECT_TRUE(barrier(2, "b", 1));
  EXPECT_TRUE(barrier(3, "zero", 0));
  EXPECT_TRUE(barrier(4, "negative", -5));
  EXPECT_EQ(table.waiter_count(), 0U);
}

TEST_F(Table, ShowsABarrierFromTheFirstArrivalButWakesItsWaitersOnlyWhenComplete) {
  EXPECT_FALSE(wait(9, {"b"}));
  EXPECT_FALSE(barrier(1, "b", 2));
  EXPECT_TRUE(released().empty());
  EXPECT_TRUE(table.present("b"));
  EXPECT_TRUE(wait(8, {"b"}));
  EXPECT_TRUE(barrier(2, "b", 2));
  EXPECT_EQ(released(), (Ids{9, 1}));
}

TEST_F(Table, ReleasesABarrierEarlyByAWriteToItsKey) {
  EXPECT_FALSE(barrier(1, "b", 9));
  set("b", "0");
  EXPECT_FALSE(barrier(2, "b", 9));
  EXPECT_TRUE(table.add("b", 1, outcome));
  EXPECT_FALSE(barrier(3, "b", 9));
  table.append("b", "", outcome);
  EXPECT_EQ(released(), (Ids{1, 2, 3}));
}

TEST_F(Table, HoldsABarrierThoughAQueueOfThatNameIsPushedTo) {
  push("b", "before");
  EXPECT_FALSE(barrier(1, "b", 2));
  push("b", "after");
  EXPECT_TRUE(released().empty());
}

TEST_F(Table, KeepsTheCountOfAMemberThatLeft) {
  EXPECT_FALSE(barrier(1, "b", 2));
  table.forget(1, outcome);
  EXPECT_TRUE(barrier(2, "b", 2));
  EXPECT_TRUE(released().empty());
}

TEST_F(Table, CountsABarrierOnFromAnyNumber) {
  set("b", " 41 members");
  EXPECT_TRUE(barrier(1, "b", 42));
  EXPECT_EQ(value("b"), "42");
}

TEST_F(Table, RefusesABarrierOnWhatIsNoNumber) {
  set("b", "text");
  const Result<bool> complete = table.barrier(1, "b", 2, outcome);
  ASSERT_FALSE(complete);
  EXPECT_EQ(complete.error().kind, ErrorKind::Invalid);
  EXPECT_EQ(value("b"), "text");
  EXPECT_EQ(table.waiter_count(), 0U);
}

// ---- watching

TEST_F(Table, TellsAWatcherOfEveryChangeOfItsKey) {
  table.watch_key(5, "k");
  set("k", "1");
  set("k", "1");
  EXPECT_TRUE(table.add("k", 2, outcome));
  table.append("k", "0", outcome);
  table.compare_set("k", "30", "x", outcome);
  set("other", "x");
  table.erase("k", outcome);
  table.erase("k", outcome);
  EXPECT_EQ(notices(), (Notices{{5, Kind::Created, "k", "", "1"},
                                {5, Kind::Updated, "k", "1", "1"},
                                {5, Kind::Updated, "k", "1", "3"},
                                {5, Kind::Updated, "k", "3", "30"},
                                {5, Kind::Updated, "k", "30", "x"},
                                {5, Kind::Deleted, "k", "x", ""}}));
}

TEST_F(Table, TellsAWatcherThatAppendingOrABarrierCreatedItsKey) {
  table.watch_prefix(5, "");
  table.append("a", "x", outcome);
  barrier(1, "b", 3);
  barrier(2, "b", 3);
  EXPECT_EQ(notices(), (Notices{{5, Kind::Created, "a", "", "x"},
                                {5, Kind::Created, "b", "", "1"},
                                {5, Kind::Updated, "b", "1", "2"}}));
}

TEST_F(Table, TellsAPrefixWatcherOfEveryKeyThatStartsWithIt) {
  table.watch_prefix(5, "node/");
  for (const char* key : {"node/a", "node", "node/", "nod", "other"}) set(key, "x");
  push("node/q", "item");
  EXPECT_EQ(notices(),
            (Notices{{5, Kind::Created, "node/a", "", "x"}, {5, Kind::Created, "node/", "", "x"}}));
}

TEST_F(Table, TellsWatchersInTheOrderOfTheirIdsAndEachOnce) {
  table.watch_prefix(4, "");
  table.watch_key(3, "ab");
  table.watch_prefix(2, "a");
  table.watch_prefix(2, "ab");
  table.watch_key(2, "ab");
  table.watch_key(1, "ab");
  table.watch_key(1, "ab");
  set("ab", "v");
  EXPECT_EQ(notices(), (Notices{{1, Kind::Created, "ab", "", "v"},
                                {2, Kind::Created, "ab", "", "v"},
                                {3, Kind::Created, "ab", "", "v"},
                                {4, Kind::Created, "ab", "", "v"}}));
}

TEST_F(Table, TellsNothingToWhoNoLongerWatches) {
  table.watch_key(1, "k");
  table.watch_prefix(1, "k");
  table.watch_prefix(2, "k");
  table.unwatch(1);
  table.unwatch(99);
  set("k", "v");
  EXPECT_EQ(notices(), (Notices{{2, Kind::Created, "k", "", "v"}}));
  table.unwatch(2);
  set("k", "w");
  EXPECT_TRUE(notices().empty());
}

TEST_F(Table, TellsTenThousandWatchersAndForgetsThem) {
  for (WatcherId id = 10'000; id > 0; --id) {
    if (id % 2 == 0) {
      table.watch_key(id, "k");
    } else {
      table.watch_prefix(id, "");
    }
  }
  set("k", "v");
  const Notices told = notices();
  ASSERT_EQ(told.size(), 10'000U);
  for (WatcherId id = 1; id <= 10'000; ++id) EXPECT_EQ(told[id - 1].watcher, id);
  for (WatcherId id = 1; id <= 10'000; ++id) table.unwatch(id);
  set("k", "w");
  EXPECT_TRUE(notices().empty());
}

}  // namespace
}  // namespace muster::store::testing
