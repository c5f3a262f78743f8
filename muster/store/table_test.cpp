#include "muster/store/table.h"

#include "muster/store/table_test.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace muster::store::testing {
namespace {

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

}  // namespace
}  // namespace muster::store::testing
