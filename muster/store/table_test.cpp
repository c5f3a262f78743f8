#include "muster/store/table.h"

#include "muster/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace muster::store {

static bool operator==(const Notice& left, const Notice& right) {
  return left.watcher == right.watcher && left.kind == right.kind && left.key == right.key &&
         left.old_value == right.old_value && left.new_value == right.new_value;
}
static void PrintTo(const Notice& notice, std::ostream* out) {
  *out << notice.watcher << " " << name_of(notice.kind) << " " << notice.key << ": "
       << notice.old_value << " -> " << notice.new_value;
}

}  // namespace muster::store

namespace muster::store::testing {
namespace {

using Ids = std::vector<WaiterId>;
using Names = std::vector<std::string_view>;
using Notices = std::vector<Notice>;
using Kind = Change::Kind;
using Need = store::Table::Need;

class Table : public ::testing::Test {
 protected:
  // What the last calls did, and forgets it.
  Ids released() { return std::exchange(outcome.released, {}); }
  Notices notices() { return std::exchange(outcome.notices, {}); }

  void set(std::string_view key, std::string_view value) { table.set(key, value, outcome); }
  bool wait(WaiterId waiter, const Names& keys, Need need = Need::Any) {
    return table.wait(waiter, keys, need);
  }
  void push(std::string_view queue, std::string_view item) { table.push(queue, item, outcome); }
  bool barrier(WaiterId waiter, std::string_view key, std::int64_t member_count) {
    const Result<bool> complete = table.barrier(waiter, key, member_count, outcome);
    EXPECT_TRUE(complete);
    return complete && *complete;
  }
  std::string value(std::string_view key) const {
    const std::string* const found = table.find(key);
    return found == nullptr ? "(absent)" : *found;
  }
  std::string pop(std::string_view queue, WaiterId waiter = 0) {
    return table.pop(queue, waiter).value_or("(empty)");
  }

  store::Table table;
  Outcome outcome;
};
// ---- set and find

TEST_F(Table, CreatesAndOverwrites) {
  EXPECT_EQ(table.find("k"), nullptr);
  set("k", "a long value that does not fit into the string object itself");
  set("k", "v");
  EXPECT_EQ(value("k"), "v");
  EXPECT_EQ(table.key_count(), 1U);
}

TEST_F(Table, TellsAnEmptyValueFromAnAbsentOne) {
  set("k", "");
  ASSERT_NE(table.find("k"), nullptr);
  EXPECT_EQ(*table.find("k"), "");
  EXPECT_TRUE(table.present("k"));
}

TEST_F(Table, TakesKeysOfAnyBytes) {
  const std::string_view cut("a\0b", 3);
  set(cut, "1");
  set("a", "2");
  set("", "3");
  EXPECT_EQ(value(cut), "1");
  EXPECT_EQ(value("a"), "2");
  EXPECT_EQ(value(""), "3");
}

TEST_F(Table, SetsAValueToItself) {
  set("k", std::string(5000, 'x'));
  set("k", *table.find("k"));
  EXPECT_EQ(value("k"), std::string(5000, 'x'));
  table.append("k", *table.find("k"), outcome);
  EXPECT_EQ(value("k"), std::string(10000, 'x'));
}

TEST_F(Table, GivesMemoryBackWhenAValueShrinks) {
  set("k", std::string(1 << 20, 'x'));
  set("k", "small");
  EXPECT_LT(table.find("k")->capacity(), 100U);
}

// ---- counters

TEST_F(Table, CountsFromZeroInDecimalText) {
  EXPECT_EQ(*table.add("n", 5, outcome), 5);
  EXPECT_EQ(*table.add("n", -7, outcome), -2);
  EXPECT_EQ(value("n"), "-2");
}

TEST_F(Table, CreatesTheKeyByAddingZeroAndReleasesItsWaiters) {
  EXPECT_FALSE(wait(1, {"n"}));
  EXPECT_EQ(*table.add("n", 0, outcome), 0);
  EXPECT_EQ(value("n"), "0");
  EXPECT_EQ(released(), Ids{1});
}

TEST_F(Table, WrapsSumsIn64Bits) {
  set("n", "9223372036854775807");
  EXPECT_EQ(*table.add("n", 1, outcome), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(value("n"), "-9223372036854775808");
  EXPECT_EQ(*table.add("n", -1, outcome), std::numeric_limits<std::int64_t>::max());
}

TEST_F(Table, ReplacesWhatFollowsTheDigitsWhenAdding) {
  set("n", "12abc");
  EXPECT_EQ(*table.add("n", 1, outcome), 13);
  EXPECT_EQ(value("n"), "13");
}

TEST_F(Table, RefusesToAddToWhatIsNoNumberAndChangesNothing) {
  table.watch_key(1, "n");
  for (const char* text :
       {"", "abc", "-", "+", "  ", "9223372036854775808", "-9223372036854775809"}) {
    set("n", text);
    outcome.clear();
    const std::size_t bytes = table.bytes();
    const Result<std::int64_t> sum = table.add("n", 1, outcome);
    ASSERT_FALSE(sum) << text;
    EXPECT_EQ(sum.error().kind, ErrorKind::Invalid);
    EXPECT_EQ(sum.error().message, "the value of key \"n\" is not a number of 64 bits");
    EXPECT_EQ(value("n"), text);
    EXPECT_EQ(table.bytes(), bytes);
    EXPECT_TRUE(outcome.notices.empty());
  }
}

TEST(ParseCounter, ReadsWhatStrtollReads) {
  EXPECT_EQ(parse_counter("0"), 0);
  EXPECT_EQ(parse_counter("-0"), 0);
  EXPECT_EQ(parse_counter("+5"), 5);
  EXPECT_EQ(parse_counter("-5"), -5);
  EXPECT_EQ(parse_counter("007"), 7);
  EXPECT_EQ(parse_counter(" \t\n\v\f\r42"), 42);
  EXPECT_EQ(parse_counter("12abc"), 12);
  EXPECT_EQ(parse_counter("12 13"), 12);
  EXPECT_EQ(parse_counter("0x10"), 0);
  EXPECT_EQ(parse_counter(std::string_view("1\0002", 3)), 1);
  EXPECT_EQ(parse_counter("9223372036854775807"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse_counter("-9223372036854775808"), std::numeric_limits<std::int64_t>::min());
}

TEST(ParseCounter, RefusesWhatHasNoDigitsOrTooMany) {
  for (const char* text :
       {"", " ", "-", "+", "+-1", "-+1", "--1", "++1", "- 1", "a1", ".5", "9223372036854775808",
        "-9223372036854775809", "99999999999999999999999"}) {
    EXPECT_EQ(parse_counter(text), std::nullopt) << text;
  }
}

// ---- compare and set

TEST_F(Table, StoresByCompareSetWhenTheKeyIsAbsentAndNothingIsExpected) {
  EXPECT_EQ(table.compare_set("k", "", "new", outcome), (CompareSet{true, "new"}));
  EXPECT_EQ(value("k"), "new");
}

TEST_F(Table, EchoesTheExpectedValueOfAnAbsentKey) {
  EXPECT_EQ(table.compare_set("k", "old", "new", outcome), (CompareSet{false, "old"}));
  EXPECT_FALSE(table.present("k"));
}

TEST_F(Table, StoresByCompareSetWhenTheValueIsTheExpectedOne) {
  set("k", "old");
  EXPECT_EQ(table.compare_set("k", "old", "new", outcome), (CompareSet{true, "new"}));
  EXPECT_EQ(table.compare_set("k", "new", "", outcome), (CompareSet{true, ""}));
  EXPECT_EQ(table.compare_set("k", "", "again", outcome), (CompareSet{true, "again"}));
  EXPECT_EQ(value("k"), "again");
}

TEST_F(Table, ReturnsTheCurrentValueWhenItIsNotTheExpectedOne) {
  set("k", "theirs");
  EXPECT_EQ(table.compare_set("k", "old", "new", outcome), (CompareSet{false, "theirs"}));
  EXPECT_EQ(table.compare_set("k", "", "new", outcome), (CompareSet{false, "theirs"}));
  EXPECT_EQ(value("k"), "theirs");
}

TEST_F(Table, ReleasesAndTellsByCompareSetExactlyWhenItStored) {
  table.watch_key(7, "k");
  EXPECT_FALSE(wait(1, {"k"}));
  table.compare_set("k", "old", "new", outcome);
  EXPECT_TRUE(released().empty());
  EXPECT_TRUE(notices().empty());
  table.compare_set("k", "", "new", outcome);
  EXPECT_EQ(released(), Ids{1});
  EXPECT_EQ(notices(), (Notices{{7, Kind::Created, "k", "", "new"}}));
  table.compare_set("k", "other", "newer", outcome);
  EXPECT_TRUE(notices().empty());
}

// ---- erase, append, keys

TEST_F(Table, SaysWhetherAnErasedKeyWasThere) {
  set("k", "v");
  EXPECT_TRUE(table.erase("k", outcome));
  EXPECT_FALSE(table.erase("k", outcome));
  EXPECT_EQ(table.key_count(), 0U);
}

TEST_F(Table, ReleasesNobodyByErasingAndLeavesTheQueue) {
  push("k", "item");
  set("k", "v");
  EXPECT_FALSE(wait(1, {"l"}));
  EXPECT_TRUE(table.erase("k", outcome));
  EXPECT_TRUE(released().empty());
  EXPECT_EQ(table.queue_length("k"), 1U);
  EXPECT_EQ(table.waiter_count(), 1U);
}

TEST_F(Table, AppendsCreatesByAppendingAndReleases) {
  EXPECT_FALSE(wait(1, {"k"}));
  table.append("k", "po", outcome);
  EXPECT_EQ(released(), Ids{1});
  table.append("k", "em", outcome);
  EXPECT_EQ(value("k"), "poem");
}

TEST_F(Table, ListsTheKeysOfAPrefixSorted) {
  for (const char* key : {"b", "a/2", "a/1", "a", "a/10"}) set(key, "x");
  push("a/queue", "not a key");
  EXPECT_EQ(table.keys("a/"), (std::vector<std::string>{"a/1", "a/10", "a/2"}));
  EXPECT_EQ(table.keys(""), (std::vector<std::string>{"a", "a/1", "a/10", "a/2", "b"}));
  EXPECT_TRUE(table.keys("c").empty());
}

// ---- queues

TEST_F(Table, PopsInTheOrderOfThePushes) {
  push("q", "1");
  push("q", "");
  EXPECT_EQ(table.queue_length("q"), 2U);
  EXPECT_EQ(pop("q"), "1");
  EXPECT_EQ(pop("q"), "");
  EXPECT_EQ(pop("q"), "(empty)");
  EXPECT_EQ(table.queue_length("q"), 0U);
}

TEST_F(Table, KeepsKeysAndQueuesOfOneNameApart) {
  push("x", "item");
  EXPECT_EQ(table.find("x"), nullptr);
  EXPECT_EQ(table.key_count(), 0U);
  EXPECT_TRUE(table.keys("").empty());
  EXPECT_FALSE(table.erase("x", outcome));
  set("x", "value");
  EXPECT_EQ(pop("x"), "item");
  EXPECT_EQ(value("x"), "value");
}

TEST_F(Table, TakesANonEmptyQueueForPresent) {
  EXPECT_FALSE(table.present("q"));
  push("q", "item");
  EXPECT_TRUE(table.present("q"));
  EXPECT_TRUE(wait(1, {"q"}));
  pop("q");
  EXPECT_FALSE(table.present("q"));
}

TEST_F(Table, ReleasesOneWaiterForAPushTheOldest) {
  for (const WaiterId id : {3U, 1U, 2U}) EXPECT_FALSE(wait(id, {"q"}));
  push("q", "a");
  EXPECT_EQ(released(), Ids{3});
  push("q", "b");
  EXPECT_EQ(released(), Ids{1});
  EXPECT_EQ(pop("q", 3), "a");
  EXPECT_EQ(pop("q", 1), "b");
  EXPECT_EQ(table.waiter_count(), 1U);
}

TEST_F(Table, PassesAWakeUpOnWhenTheReleasedWaiterLeavesWithoutPopping) {
  for (const WaiterId id : {1U, 2U, 3U}) EXPECT_FALSE(wait(id, {"q"}));
  push("q", "item");
  EXPECT_EQ(released(), Ids{1});
  table.forget(1, outcome);
  EXPECT_EQ(released(), Ids{2});
  table.forget(2, outcome);
  EXPECT_EQ(released(), Ids{3});
  EXPECT_EQ(pop("q", 3), "item");
  table.forget(3, outcome);
  EXPECT_TRUE(released().empty());
}

TEST_F(Table, PassesNothingOnAfterThePop) {
  EXPECT_FALSE(wait(1, {"q"}));
  EXPECT_FALSE(wait(2, {"q"}));
  push("q", "item");
  EXPECT_EQ(pop("q", 1), "item");
  outcome.clear();
  table.forget(1, outcome);
  EXPECT_TRUE(released().empty());
}

TEST_F(Table, PassesNothingOnWhenSomeoneElseTookTheItem) {
  EXPECT_FALSE(wait(1, {"q"}));
  EXPECT_FALSE(wait(2, {"q"}));
  push("q", "item");
  EXPECT_EQ(pop("q"), "item");
  outcome.clear();
  EXPECT_EQ(pop("q", 1), "(empty)");
  table.forget(1, outcome);
  EXPECT_TRUE(released().empty());
}

TEST_F(Table, PassesNothingOnWhenWhatIsLeftIsClaimedByOthers) {
  for (const WaiterId id : {1U, 2U, 3U}) EXPECT_FALSE(wait(id, {"q"}));
  push("q", "a");
  push("q", "b");
  EXPECT_EQ(pop("q"), "a");
  outcome.clear();
  table.forget(1, outcome);
  EXPECT_TRUE(released().empty()) << "the item is the second waiter's";
  table.forget(2, outcome);
  EXPECT_EQ(released(), Ids{3});
}

TEST_F(Table, ForgetsAClaimWhenTheQueueRunsEmpty) {
  EXPECT_FALSE(wait(1, {"q"}));
  push("q", "a");
  EXPECT_EQ(pop("q"), "a");
  EXPECT_FALSE(wait(2, {"q"}));
  EXPECT_FALSE(wait(3, {"q"}));
  outcome.clear();
  push("q", "b");
  EXPECT_EQ(released(), Ids{2});
  table.forget(1, outcome);
  EXPECT_TRUE(released().empty()) << "its claim was on an item that is gone";
}

TEST_F(Table, GivesAPushToAWaiterThatWaitsForMoreAndPassesItOnWhenThatOneLeaves) {
  EXPECT_FALSE(wait(1, {"q", "k"}));
  EXPECT_FALSE(wait(2, {"q"}));
  push("q", "item");
  EXPECT_TRUE(released().empty());
  table.forget(1, outcome);
  EXPECT_EQ(released(), Ids{2});
}

TEST_F(Table, ReleasesAWaiterOfAKeyAndAQueueWhenBothCame) {
  EXPECT_FALSE(wait(1, {"q", "k"}));
  push("q", "item");
  set("k", "v");
  EXPECT_EQ(released(), Ids{1});
  EXPECT_EQ(pop("q", 1), "item");
}

TEST_F(Table, LetsAWaiterWaitAgainThatHasAClaim) {
  EXPECT_FALSE(wait(1, {"q"}));
  push("q", "item");
  EXPECT_FALSE(wait(1, {"k"}));
  EXPECT_FALSE(wait(2, {"p"}));
  set("k", "v");
  EXPECT_EQ(released(), (Ids{1, 1}));
  EXPECT_EQ(pop("q", 1), "item");
}

TEST_F(Table, ReleasesAWaiterOfAQueueByAKeyOfThatName) {
  EXPECT_FALSE(wait(1, {"x"}));
  set("x", "v");
  EXPECT_EQ(released(), Ids{1});
}

TEST_F(Table, ReleasesWhoNeedsTheKeyOnlyByAWrite) {
  push("x", "item");
  EXPECT_FALSE(wait(1, {"x"}, Need::Key));
  push("x", "item");
  EXPECT_TRUE(released().empty());
  set("x", "v");
  EXPECT_EQ(released(), Ids{1});
  EXPECT_TRUE(wait(1, {"x"}, Need::Key));
}

TEST_F(Table, ReleasesWhoNeedsTheQueueOnlyByAPush) {
  set("x", "v");
  EXPECT_FALSE(wait(1, {"x"}, Need::Queue));
  set("x", "w");
  EXPECT_TRUE(released().empty());
  push("x", "item");
  EXPECT_EQ(released(), Ids{1});
}

TEST_F(Table, ServesWaitersOfOneQueueByArrivalWhateverTheyNeed) {
  EXPECT_FALSE(wait(4, {"q"}, Need::Queue));
  EXPECT_FALSE(wait(3, {"q"}, Need::Any));
  EXPECT_FALSE(wait(2, {"q"}, Need::Queue));
  EXPECT_FALSE(wait(1, {"q"}, Need::Key));
  for (int i = 0; i < 4; ++i) push("q", "item");
  EXPECT_EQ(released(), (Ids{4, 3, 2}));
}

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

// ---- bytes

TEST_F(Table, CountsItsBytesExactly) {
  constexpr std::size_t kOverhead = store::Table::kEntryOverheadBytes;
  EXPECT_EQ(table.bytes(), 0U);
  set("key", "value");
  EXPECT_EQ(table.bytes(), 8 + kOverhead);
  set("key", "v");
  EXPECT_EQ(table.bytes(), 4 + kOverhead);
  table.append("key", "alue", outcome);
  EXPECT_EQ(table.bytes(), 8 + kOverhead);
  push("queue", "item");
  EXPECT_EQ(table.bytes(), 17 + 3 * kOverhead);
  push("queue", "");
  EXPECT_EQ(table.bytes(), 17 + 4 * kOverhead);
  table.erase("key", outcome);
  pop("queue");
  pop("queue");
  EXPECT_EQ(table.bytes(), 0U);
}

// ---- against a model that looks everything up the slow way

class Model {
 public:
  struct Waiting {
    WaiterId id;
    Need need;
    std::set<std::string> missing;
  };
  struct Watching {
    std::set<std::string> keys;
    std::set<std::string> prefixes;
  };

  std::map<std::string, std::string> entries;
  std::map<std::string, std::vector<std::string>> queues;
  std::vector<Waiting> waiting;  // in the order of arrival
  std::map<std::string, std::set<WaiterId>> claims;
  std::map<WatcherId, Watching> watching;
  Outcome outcome;

  bool waits(WaiterId id) const {
    return std::any_of(waiting.begin(), waiting.end(),
                       [&](const Waiting& one) { return one.id == id; });
  }
  bool there(const std::string& key, Need need) const {
    return (need != Need::Queue && entries.contains(key)) ||
           (need != Need::Key && queues.contains(key));
  }
  void tell(Kind kind, const std::string& key, const std::string& old_value,
            const std::string& new_value) {
    for (const auto& [id, watched] : watching) {
      const bool concerned =
          watched.keys.contains(key) ||
          std::any_of(watched.prefixes.begin(), watched.prefixes.end(),
                      [&](const std::string& prefix) { return key.starts_with(prefix); });
      if (concerned) outcome.notices.push_back({id, kind, key, old_value, new_value});
    }
  }
  void put(const std::string& key, const std::string& value) {
    const bool is_new = !entries.contains(key);
    const std::string old_value = std::exchange(entries[key], value);
    tell(is_new ? Kind::Created : Kind::Updated, key, old_value, value);
  }
  void strike(std::size_t index, const std::string& key) {
    waiting[index].missing.erase(key);
    if (waiting[index].missing.empty()) outcome.released.push_back(waiting[index].id);
  }
  void sweep() {
    std::erase_if(waiting, [](const Waiting& one) { return one.missing.empty(); });
  }
  void release_all(const std::string& key) {
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].need != Need::Queue && waiting[i].missing.contains(key)) strike(i, key);
    }
    sweep();
  }
  void release_one(const std::string& queue) {
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].need == Need::Key || !waiting[i].missing.contains(queue)) continue;
      claims[queue].insert(waiting[i].id);
      strike(i, queue);
      break;
    }
    sweep();
  }
  void set(const std::string& key, const std::string& value) {
    put(key, value);
    release_all(key);
  }
  std::optional<std::int64_t> add(const std::string& key, std::int64_t delta, bool wake) {
    std::int64_t number = 0;
    if (entries.contains(key)) {
      const std::string& text = entries[key];
      char* end = nullptr;
      errno = 0;
      number = std::strtoll(text.c_str(), &end, 10);
      if (end == text.c_str() || errno != 0) return std::nullopt;
    }
    const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(number) +
                                               static_cast<std::uint64_t>(delta));
    put(key, std::to_string(sum));
    if (wake) release_all(key);
    return sum;
  }
  bool wait(WaiterId id, const std::vector<std::string>& keys, Need need) {
    Waiting one{id, need, {}};
    for (const std::string& key : keys) {
      if (!there(key, need)) one.missing.insert(key);
    }
    if (one.missing.empty()) return true;
    waiting.push_back(one);
    return false;
  }
  std::optional<bool> barrier(WaiterId id, const std::string& key, std::int64_t member_count) {
    const std::optional<std::int64_t> count = add(key, 1, false);
    if (!count) return std::nullopt;
    if (*count >= member_count) {
      release_all(key);
      return true;
    }
    waiting.push_back({id, Need::Key, {key}});
    return false;
  }
  std::optional<std::string> pop(const std::string& queue, WaiterId id) {
    if (!queues.contains(queue)) return std::nullopt;
    std::vector<std::string>& items = queues[queue];
    const std::string item = items.front();
    items.erase(items.begin());
    claims[queue].erase(id);
    if (items.empty()) {
      queues.erase(queue);
      claims.erase(queue);
    }
    return item;
  }
  void forget(WaiterId id) {
    std::erase_if(waiting, [&](const Waiting& one) { return one.id == id; });
    std::vector<std::string> passed_on;
    for (auto& [queue, claimants] : claims) {
      if (claimants.erase(id) > 0) passed_on.push_back(queue);
    }
    for (const std::string& queue : passed_on) {
      if (claims[queue].size() < queues[queue].size()) release_one(queue);
    }
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& [key, value] : entries)
      sum += key.size() + value.size() + store::Table::kEntryOverheadBytes;
    for (const auto& [name, items] : queues) {
      sum += name.size() + store::Table::kEntryOverheadBytes;
      for (const std::string& item : items) sum += item.size() + store::Table::kEntryOverheadBytes;
    }
    return sum;
  }
};

class TableModel : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  const std::vector<std::string> names = {"",  "a",   "ab",  "abc",
                                          "b", "q/1", "q/2", std::string("\0x", 2)};
  const std::vector<std::string> values = {"",
                                           "0",
                                           "7",
                                           "-3 and more",
                                           " 41",
                                           "text",
                                           "v1",
                                           "v22",
                                           "v1v",
                                           "9223372036854775807",
                                           std::string(3000, 'z')};

  const std::string& any(const std::vector<std::string>& list) {
    return list[random.below(list.size())];
  }
  WaiterId any_waiter() { return 1 + random.below(12); }

  void step() {
    const std::string& name = any(names);
    const std::string& value = any(values);
    switch (random.below(16)) {
      case 0:
      case 1:
        table.set(name, value, outcome);
        return model.set(name, value);
      case 2: {
        const auto delta = static_cast<std::int64_t>(random.below(100)) - 50;
        const Result<std::int64_t> sum = table.add(name, delta, outcome);
        const std::optional<std::int64_t> expected = model.add(name, delta, true);
        ASSERT_EQ(sum.has_value(), expected.has_value());
        EXPECT_EQ(sum.value_or(0), expected.value_or(0));
        return;
      }
      case 3:
        return compare_set(name, any(values), value);
      case 4:
      case 5: {
        const bool was_there = model.entries.contains(name);
        EXPECT_EQ(table.erase(name, outcome), was_there);
        if (was_there) model.tell(Kind::Deleted, name, model.entries[name], "");
        model.entries.erase(name);
        return;
      }
      case 6:
        table.append(name, value, outcome);
        return model.set(name, (model.entries.contains(name) ? model.entries[name] : "") + value);
      case 7:
      case 8:
        table.push(name, value, outcome);
        model.queues[name].push_back(value);
        return model.release_one(name);
      case 9:
      case 10: {
        const WaiterId id = random.chance(500) ? any_waiter() : 0;
        EXPECT_EQ(table.pop(name, id), model.pop(name, id));
        return;
      }
      case 11:
      case 12:
        return wait(any_waiter());
      case 13:
        return barrier(any_waiter(), name, 1 + static_cast<std::int64_t>(random.below(60)));
      case 14: {
        const WaiterId id = any_waiter();
        table.forget(id, outcome);
        return model.forget(id);
      }
      default:
        return watch(1 + random.below(5), name);
    }
  }

  void compare_set(const std::string& name, std::string expected, const std::string& desired) {
    if (random.chance(500) && model.entries.contains(name)) expected = model.entries[name];
    const CompareSet result = table.compare_set(name, expected, desired, outcome);
    const bool absent = !model.entries.contains(name);
    const bool stored = absent ? expected.empty() : model.entries[name] == expected;
    EXPECT_EQ(result.stored, stored);
    EXPECT_EQ(result.value, stored ? desired : absent ? expected : model.entries[name]);
    if (stored) model.set(name, desired);
  }

  void wait(WaiterId id) {
    if (model.waits(id)) return;
    std::vector<std::string> keys;
    for (std::uint64_t count = random.below(5); count > 0; --count) keys.push_back(any(names));
    const auto need = static_cast<Need>(random.below(3));
    const Names views(keys.begin(), keys.end());
    EXPECT_EQ(table.wait(id, views, need), model.wait(id, keys, need));
  }

  void barrier(WaiterId id, const std::string& name, std::int64_t member_count) {
    if (model.waits(id)) return;
    const Result<bool> complete = table.barrier(id, name, member_count, outcome);
    const std::optional<bool> expected = model.barrier(id, name, member_count);
    ASSERT_EQ(complete.has_value(), expected.has_value());
    EXPECT_EQ(complete.value_or(false), expected.value_or(false));
  }

  void watch(WatcherId id, const std::string& name) {
    switch (random.below(3)) {
      case 0:
        table.watch_key(id, name);
        model.watching[id].keys.insert(name);
        return;
      case 1:
        table.watch_prefix(id, name);
        model.watching[id].prefixes.insert(name);
        return;
      default:
        table.unwatch(id);
        model.watching.erase(id);
    }
  }

  void compare() {
    EXPECT_EQ(outcome.released, model.outcome.released);
    EXPECT_EQ(outcome.notices, model.outcome.notices);
    EXPECT_EQ(table.key_count(), model.entries.size());
    std::vector<std::string> keys;
    for (const auto& [key, value] : model.entries) {
      keys.push_back(key);
      ASSERT_NE(table.find(key), nullptr) << key;
      EXPECT_EQ(*table.find(key), value);
    }
    EXPECT_EQ(table.keys(""), keys);
    for (const std::string& name : names) {
      EXPECT_EQ(table.queue_length(name),
                model.queues.contains(name) ? model.queues[name].size() : 0);
      EXPECT_EQ(table.present(name), model.there(name, Need::Any));
    }
    EXPECT_EQ(table.waiter_count(), model.waiting.size());
    EXPECT_EQ(table.bytes(), model.bytes());
    outcome.clear();
    model.outcome.clear();
  }

  Random random{GetParam()};
  store::Table table;
  Outcome outcome;
  Model model;
};

TEST_P(TableModel, DoesWhatTheModelDoes) {
  for (int i = 0; i < 4000 && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    step();
    compare();
  }
}

TEST_P(TableModel, IsEmptyInTheEnd) {
  for (int i = 0; i < 1000; ++i) step();
  for (WaiterId id = 1; id <= 12; ++id) table.forget(id, outcome);
  for (const std::string& name : names) {
    table.erase(name, outcome);
    while (table.pop(name, 0)) continue;
  }
  EXPECT_EQ(table.bytes(), 0U);
  EXPECT_EQ(table.waiter_count(), 0U);
  EXPECT_EQ(table.key_count(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, TableModel, ::testing::Range<std::uint64_t>(1, 25));

}  // namespace
}  // namespace muster::store::testing
