#include "tests/store/contract.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#define MUSTER_NEEDS(capability, reason) \
  if (!can().capability) GTEST_SKIP() << "not applicable: " << GetParam().name << " " << (reason)

namespace muster::store::testing {

using Kind = Change::Kind;

// ---- set and get

TEST_P(StoreContract, ReturnsWhatWasSet) {
  ASSERT_TRUE(await(store().set("k", "v")));
  expect_value("k", "v");
  EXPECT_TRUE(gives(await(store().get("k", patience())), "v"));
}

TEST_P(StoreContract, OverwritesAValue) {
  ASSERT_TRUE(await(store().set("k", "a longer first value")));
  ASSERT_TRUE(await(store().set("k", "v2")));
  expect_value("k", "v2");
}

TEST_P(StoreContract, TellsAnEmptyValueFromAnAbsentOne) {
  expect_absent("k");
  ASSERT_TRUE(await(store().set("k", "")));
  expect_value("k", "");
  EXPECT_TRUE(gives(await(store().get("k", patience())), ""));
  EXPECT_TRUE(gives(await(store().check({"k"})), true));
}

TEST_P(StoreContract, TakesAnyBytesInKeysAndValues) {
  std::string every_byte;
  for (int byte = 0; byte < 256; ++byte) every_byte.push_back(static_cast<char>(byte));
  const std::string cut("a\0b", 3);
  ASSERT_TRUE(await(store().set(every_byte, every_byte)));
  ASSERT_TRUE(await(store().set(cut, "cut")));
  ASSERT_TRUE(await(store().set("a", "whole")));
  ASSERT_TRUE(await(store().set("", "no name")));
  expect_value(every_byte, every_byte);
  expect_value(cut, "cut");
  expect_value("a", "whole");
  expect_value("", "no name");
}

TEST_P(StoreContract, TakesAKeyOf4KibibytesAndAValueOfAMebibyte) {
  const std::string key(4096, 'k');
  std::string value(1 << 20, '\0');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 31 + i / 256);
  ASSERT_TRUE(await(store().set(key, value)));
  const Result<std::string> found = await(other().get(key, patience()));
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_TRUE(*found == value);
}

TEST_P(StoreContract, LetsGetWaitUntilTheKeyIsWritten) {
  const auto waiting = begin(store().get("k", patience()));
  settle();
  EXPECT_FALSE(waiting->done());
  set("another", "x");
  settle();
  EXPECT_FALSE(waiting->done());
  set("k", "v");
  EXPECT_TRUE(gives(finish(*waiting), "v"));
}

TEST_P(StoreContract, ReleasesEveryGetOfAKey) {
  std::vector<std::unique_ptr<Call<std::string>>> waiting;
  for (int i = 0; i < 20; ++i) {
    waiting.push_back(begin((i % 2 == 0 ? store() : other()).get("k", patience())));
  }
  settle();
  set("k", "v");
  for (const auto& call : waiting) EXPECT_TRUE(gives(finish(*call), "v"));
}

TEST_P(StoreContract, LetsGetWaitForEverWhenTold) {
  const auto waiting = begin(store().get("k", kNever));
  settle();
  set("k", "v");
  EXPECT_TRUE(gives(finish(*waiting), "v"));
}

TEST_P(StoreContract, TimesOutAGetWhoseKeyDoesNotCome) {
  const Result<std::string> result = await(store().get("lonely", shortly()));
  expect_error(result, ErrorKind::Timeout);
  EXPECT_NE(result.error().message.find("lonely"), std::string::npos) << result.error().message;
}

TEST_P(StoreContract, TimesOutAtOnceWhenTheDeadlineHasPassed) {
  expect_error(await(store().get("k", already_passed())), ErrorKind::Timeout);
  expect_error(await(store().wait({"k"}, already_passed())), ErrorKind::Timeout);
}

TEST_P(StoreContract, DeliversWhatIsThereThoughTheDeadlineHasPassed) {
  MUSTER_NEEDS(serves_past_deadline, "does not look before it times out");
  set("k", "v");
  EXPECT_TRUE(gives(await(store().get("k", already_passed())), "v"));
  EXPECT_TRUE(await(store().wait({"k"}, already_passed())));
  EXPECT_TRUE(await(store().multi_get({"k", "k"}, already_passed())));
}

TEST_P(StoreContract, WorksOnAfterATimeout) {
  expect_error(await(store().get("k", shortly())), ErrorKind::Timeout);
  ASSERT_TRUE(await(store().set("k", "v")));
  EXPECT_TRUE(gives(await(store().get("k", patience())), "v"));
  EXPECT_TRUE(gives(await(store().add("n", 7)), 7));
}

TEST_P(StoreContract, ForgetsACallThatIsDestroyed) {
  auto waiting = begin(store().get("k", kNever));
  settle();
  waiting.reset();
  settle();
  set("k", "v");
  EXPECT_TRUE(gives(await(store().get("k", patience())), "v"));
  EXPECT_TRUE(gives(await(store().add("n", 1)), 1));
}

TEST_P(StoreContract, ForgetsACallThatIsDestroyedBeforeItsFirstTurn) {
  for (int i = 0; i < 10; ++i) {
    auto waiting = begin(store().get("k", kNever));
    auto writing = begin(store().set("cancelled or not", "x"));
  }
  EXPECT_TRUE(gives(await(store().add("n", 1)), 1));
}

TEST_P(StoreContract, DoesNothingForATaskThatIsNeverStarted) {
  {
    const Task<Result<>> never = store().set("k", "v");
    const Task<Result<std::int64_t>> neither = store().add("n", 1);
  }
  settle();
  expect_absent("k");
  EXPECT_TRUE(gives(await(store().add("n", 1)), 1));
}

TEST_P(StoreContract, KeepsTheOthersWaitingWhenOneOfThemIsDestroyed) {
  const auto first = begin(store().get("k", patience()));
  auto second = begin(store().get("k", patience()));
  const auto third = begin(store().get("k", patience()));
  settle();
  second.reset();
  settle();
  set("k", "v");
  EXPECT_TRUE(gives(finish(*first), "v"));
  EXPECT_TRUE(gives(finish(*third), "v"));
}

TEST_P(StoreContract, AppliesTheCallsOfOneCallerInOrder) {
  for (int i = 0; i < 50; ++i) {
    const std::string value = std::to_string(i);
    ASSERT_TRUE(await(store().set("k", value)));
    EXPECT_TRUE(gives(await(store().try_get("k")), value));
    expect_value("k", value);
  }
}

// ---- counters

TEST_P(StoreContract, CountsFromZero) {
  EXPECT_TRUE(gives(await(store().add("n", 5)), 5));
  EXPECT_TRUE(gives(await(other().add("n", -7)), -2));
  expect_value("n", "-2");
}

TEST_P(StoreContract, CreatesACounterByAddingZero) {
  EXPECT_TRUE(gives(await(store().add("n", 0)), 0));
  expect_value("n", "0");
}

TEST_P(StoreContract, AddsToANumberThatWasSetAsText) {
  set("n", "41");
  EXPECT_TRUE(gives(await(store().add("n", 1)), 42));
}

TEST_P(StoreContract, IgnoresWhatFollowsTheDigitsOfACounter) {
  set("n", "12abc");
  EXPECT_TRUE(gives(await(store().add("n", 1)), 13));
  expect_value("n", "13");
  set("n", "  7");
  EXPECT_TRUE(gives(await(store().add("n", 1)), 8));
}

TEST_P(StoreContract, WrapsACounterAtTheEndsOfItsRange) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(gives(await(store().add("n", kMax)), kMax));
  EXPECT_TRUE(gives(await(store().add("n", 1)), kMin));
  expect_value("n", "-9223372036854775808");
  EXPECT_TRUE(gives(await(store().add("n", -1)), kMax));
}

TEST_P(StoreContract, RefusesToAddToAText) {
  set("n", "text");
  expect_invalid(await(store().add("n", 1)));
  expect_value("n", "text");
}

TEST_P(StoreContract, RefusesToAddToANumberBeyond64Bits) {
  set("n", "9223372036854775808");
  expect_invalid(await(store().add("n", 1)));
  expect_value("n", "9223372036854775808");
}

TEST_P(StoreContract, RefusesToAddToAnEmptyValue) {
  MUSTER_NEEDS(empty_is_no_number, "takes an empty value for 0");
  set("n", "");
  expect_invalid(await(store().add("n", 1)));
  expect_value("n", "");
}

TEST_P(StoreContract, ReleasesAWaiterByAdding) {
  const auto waiting = begin(store().get("n", patience()));
  settle();
  EXPECT_TRUE(gives(await(other().add("n", 3)), 3));
  EXPECT_TRUE(gives(finish(*waiting), "3"));
}

// ---- compare and set

TEST_P(StoreContract, CreatesAKeyWhenNothingIsExpected) {
  EXPECT_TRUE(gives(await(store().compare_set("k", "", "first")), CompareSet{true, "first"}));
  expect_value("k", "first");
}

TEST_P(StoreContract, EchoesWhatWasExpectedOfAnAbsentKey) {
  EXPECT_TRUE(gives(await(store().compare_set("k", "old", "new")), CompareSet{false, "old"}));
  expect_absent("k");
}

TEST_P(StoreContract, ReplacesTheExpectedValue) {
  set("k", "old");
  EXPECT_TRUE(gives(await(store().compare_set("k", "old", "new")), CompareSet{true, "new"}));
  expect_value("k", "new");
}

TEST_P(StoreContract, LeavesAnUnexpectedValueAndReturnsIt) {
  set("k", "theirs");
  EXPECT_TRUE(gives(await(store().compare_set("k", "old", "new")), CompareSet{false, "theirs"}));
  EXPECT_TRUE(gives(await(store().compare_set("k", "", "new")), CompareSet{false, "theirs"}));
  expect_value("k", "theirs");
}

TEST_P(StoreContract, MatchesAnEmptyValueWithAnEmptyExpectation) {
  set("k", "");
  EXPECT_TRUE(gives(await(store().compare_set("k", "", "new")), CompareSet{true, "new"}));
  EXPECT_TRUE(gives(await(store().compare_set("k", "new", "")), CompareSet{true, ""}));
  expect_value("k", "");
}

TEST_P(StoreContract, LetsExactlyOneOfManyCreateAKey) {
  std::vector<std::unique_ptr<Call<CompareSet>>> calls;
  for (int i = 0; i < 10; ++i) {
    Store& from = i % 2 == 0 ? store() : other();
    calls.push_back(begin(from.compare_set("leader", "", std::to_string(i))));
  }
  std::vector<std::string> answers;
  for (const auto& call : calls) {
    const Result<CompareSet> result = finish(*call);
    ASSERT_TRUE(result) << result.error().message;
    answers.push_back(result->value);
  }
  EXPECT_EQ(std::count(answers.begin(), answers.end(), answers.front()), 10);
  expect_value("leader", answers.front());
}

TEST_P(StoreContract, ReleasesAWaiterByAComparedSetThatStores) {
  MUSTER_NEEDS(compare_set_releases, "lets waiters sleep when compare_set creates their key");
  const auto waiting = begin(store().get("k", patience()));
  settle();
  ASSERT_TRUE(await(other().compare_set("k", "something", "v")));
  settle();
  EXPECT_FALSE(waiting->done());
  ASSERT_TRUE(await(other().compare_set("k", "", "v")));
  EXPECT_TRUE(gives(finish(*waiting), "v"));
}

// ---- check and wait

TEST_P(StoreContract, ChecksThatEveryKeyExists) {
  EXPECT_TRUE(gives(await(store().check({})), true));
  EXPECT_TRUE(gives(await(store().check({"a", "b"})), false));
  set("a", "1");
  EXPECT_TRUE(gives(await(store().check({"a", "b"})), false));
  EXPECT_TRUE(gives(await(store().check({"a", "a"})), true));
  set("b", "2");
  EXPECT_TRUE(gives(await(store().check({"a", "b"})), true));
}

TEST_P(StoreContract, WaitsForNothingWithoutWaiting) {
  EXPECT_TRUE(await(store().wait({}, patience())));
}

TEST_P(StoreContract, WaitsForEveryKey) {
  set("b", "here already");
  const auto waiting = begin(store().wait({"a", "b", "c"}, patience()));
  settle();
  set("a", "1");
  settle();
  EXPECT_FALSE(waiting->done());
  set("c", "3");
  EXPECT_TRUE(finish(*waiting));
}

TEST_P(StoreContract, WaitsOnceForAKeyListedTwice) {
  const auto waiting = begin(store().wait({"a", "a"}, patience()));
  settle();
  set("a", "1");
  EXPECT_TRUE(finish(*waiting));
  EXPECT_TRUE(gives(await(store().add("n", 1)), 1));
}

TEST_P(StoreContract, WaitsForManyKeys) {
  std::vector<std::string> keys;
  std::vector<KeyValue> pairs;
  for (int i = 0; i < 1000; ++i) {
    keys.push_back("key-" + std::to_string(i));
    pairs.push_back({keys.back(), std::to_string(i)});
  }
  const auto waiting = begin(store().wait(keys, patience()));
  settle();
  ASSERT_TRUE(await(other().multi_set(pairs)));
  EXPECT_TRUE(finish(*waiting));
}

TEST_P(StoreContract, TimesOutAWaitAndNamesAMissingKey) {
  set("here", "x");
  const Result<> result = await(store().wait({"here", "absentee"}, shortly()));
  expect_error(result, ErrorKind::Timeout);
  EXPECT_NE(result.error().message.find("absentee"), std::string::npos) << result.error().message;
}

// ---- delete, count, append

TEST_P(StoreContract, SaysWhetherADeletedKeyWasThere) {
  set("k", "v");
  EXPECT_TRUE(gives(await(store().delete_key("k")), true));
  expect_absent("k");
  EXPECT_TRUE(gives(await(store().delete_key("k")), false));
}

TEST_P(StoreContract, LetsGetWaitForADeletedKeyAgain) {
  set("k", "old");
  ASSERT_TRUE(await(store().delete_key("k")));
  const auto waiting = begin(store().get("k", patience()));
  settle();
  EXPECT_FALSE(waiting->done());
  set("k", "new");
  EXPECT_TRUE(gives(finish(*waiting), "new"));
}

TEST_P(StoreContract, ReleasesNobodyByDeleting) {
  const auto waiting = begin(store().get("k", patience()));
  settle();
  EXPECT_TRUE(gives(await(other().delete_key("k")), false));
  settle();
  EXPECT_FALSE(waiting->done());
}

TEST_P(StoreContract, CountsItsKeys) {
  const Result<std::int64_t> before = await(store().num_keys());
  ASSERT_TRUE(before) << before.error().message;
  set("a", "1");
  set("b", "");
  set("a", "2");
  EXPECT_TRUE(gives(await(store().num_keys()), *before + 2));
  ASSERT_TRUE(await(store().delete_key("b")));
  EXPECT_TRUE(gives(await(store().num_keys()), *before + 1));
}

TEST_P(StoreContract, AppendsAndCreatesByAppending) {
  ASSERT_TRUE(await(store().append("k", "po")));
  ASSERT_TRUE(await(other().append("k", "em")));
  ASSERT_TRUE(await(store().append("k", "")));
  expect_value("k", "poem");
}

TEST_P(StoreContract, LosesNothingThatTwoAppendAtOnce) {
  std::vector<std::unique_ptr<Call<void>>> calls;
  for (int i = 0; i < 10; ++i) {
    calls.push_back(begin(
        (i % 2 == 0 ? store() : other()).append("k", std::string(1, static_cast<char>('a' + i)))));
  }
  for (const auto& call : calls) EXPECT_TRUE(finish(*call));
  Result<std::string> value = await(store().get("k", patience()));
  ASSERT_TRUE(value) << value.error().message;
  std::sort(value->begin(), value->end());
  EXPECT_EQ(*value, "abcdefghij");
}

TEST_P(StoreContract, ReleasesAWaiterByAppending) {
  const auto waiting = begin(store().wait({"k"}, patience()));
  settle();
  ASSERT_TRUE(await(other().append("k", "x")));
  EXPECT_TRUE(finish(*waiting));
}

// ---- many at once

TEST_P(StoreContract, GetsManyValuesInTheOrderOfTheKeys) {
  const std::vector<KeyValue> pairs = {{"a", "1"}, {"b", ""}, {"c", "3"}};
  ASSERT_TRUE(await(store().multi_set(pairs)));
  const std::vector<std::string> expected = {"3", "1", "", "1"};
  EXPECT_TRUE(gives(await(other().multi_get({"c", "a", "b", "a"}, patience())), expected));
  EXPECT_TRUE(gives(await(other().multi_get({}, patience())), std::vector<std::string>()));
}

TEST_P(StoreContract, SetsManyInOrderSoThatTheLastCounts) {
  const std::vector<KeyValue> pairs = {{"a", "1"}, {"a", "2"}};
  ASSERT_TRUE(await(store().multi_set(pairs)));
  ASSERT_TRUE(await(store().multi_set({})));
  expect_value("a", "2");
}

TEST_P(StoreContract, LetsMultiGetWaitUntilEveryKeyIsThere) {
  set("a", "1");
  const auto waiting = begin(store().multi_get({"a", "b"}, patience()));
  settle();
  EXPECT_FALSE(waiting->done());
  set("b", "2");
  const std::vector<std::string> expected = {"1", "2"};
  EXPECT_TRUE(gives(finish(*waiting), expected));
}

TEST_P(StoreContract, TimesOutAMultiGet) {
  set("a", "1");
  expect_error(await(store().multi_get({"a", "b"}, shortly())), ErrorKind::Timeout);
}

// ---- queues

TEST_P(StoreContract, PopsInTheOrderOfThePushes) {
  MUSTER_NEEDS(queues, "has no queues");
  ASSERT_TRUE(await(store().queue_push("q", "1")));
  ASSERT_TRUE(await(store().queue_push("q", "")));
  ASSERT_TRUE(await(store().queue_push("q", "3")));
  EXPECT_TRUE(gives(await(other().queue_length("q")), 3));
  EXPECT_TRUE(gives(await(other().queue_pop("q", patience())), "1"));
  EXPECT_TRUE(gives(await(other().queue_pop("q", patience())), ""));
  EXPECT_TRUE(gives(await(other().try_queue_pop("q")), "3"));
  EXPECT_TRUE(gives(await(other().try_queue_pop("q")), std::nullopt));
  EXPECT_TRUE(gives(await(other().queue_length("q")), 0));
}

TEST_P(StoreContract, KeepsKeysAndQueuesOfOneNameApart) {
  MUSTER_NEEDS(queues, "has no queues");
  const Result<std::int64_t> before = await(store().num_keys());
  ASSERT_TRUE(await(store().queue_push("x", "item")));
  expect_absent("x");
  EXPECT_TRUE(gives(await(store().num_keys()), *before));
  EXPECT_TRUE(gives(await(store().delete_key("x")), false));
  set("x", "value");
  EXPECT_TRUE(gives(await(store().delete_key("x")), true));
  EXPECT_TRUE(gives(await(store().queue_length("x")), 1));
}

TEST_P(StoreContract, TakesAQueueThatHoldsSomethingForPresent) {
  MUSTER_NEEDS(queues, "has no queues");
  EXPECT_TRUE(gives(await(store().check({"q"})), false));
  const auto waiting = begin(store().wait({"q"}, patience()));
  settle();
  ASSERT_TRUE(await(other().queue_push("q", "item")));
  EXPECT_TRUE(finish(*waiting));
  EXPECT_TRUE(gives(await(store().check({"q"})), true));
  EXPECT_TRUE(await(store().wait({"q"}, patience())));
  EXPECT_TRUE(gives(await(store().try_queue_pop("q")), "item"));
  EXPECT_TRUE(gives(await(store().check({"q"})), false));
}

TEST_P(StoreContract, LetsAPopWaitForAPush) {
  MUSTER_NEEDS(queues, "has no queues");
  const auto waiting = begin(store().queue_pop("q", patience()));
  settle();
  EXPECT_FALSE(waiting->done());
  ASSERT_TRUE(await(other().queue_push("q", "item")));
  EXPECT_TRUE(gives(finish(*waiting), "item"));
  EXPECT_TRUE(gives(await(store().queue_length("q")), 0));
}

TEST_P(StoreContract, ServesWaitingPopsInTheOrderOfTheirArrival) {
  MUSTER_NEEDS(queues, "has no queues");
  std::vector<std::unique_ptr<Call<std::string>>> waiting;
  for (int i = 0; i < 5; ++i) {
    waiting.push_back(begin(store().queue_pop("q", patience())));
    settle();
  }
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    ASSERT_TRUE(await(other().queue_push("q", std::to_string(i))));
    EXPECT_TRUE(gives(finish(*waiting[i]), std::to_string(i)));
    settle();
    for (std::size_t later = i + 1; later < waiting.size(); ++later)
      EXPECT_FALSE(waiting[later]->done());
  }
}

TEST_P(StoreContract, GivesEachItemToExactlyOneOfManyPops) {
  MUSTER_NEEDS(queues, "has no queues");
  std::vector<std::unique_ptr<Call<std::string>>> waiting;
  for (int i = 0; i < 10; ++i)
    waiting.push_back(begin((i % 2 == 0 ? store() : other()).queue_pop("q", patience())));
  settle();
  for (int i = 0; i < 10; ++i)
    ASSERT_TRUE(await(store().queue_push("q", std::string(1, static_cast<char>('0' + i)))));
  std::string items;
  for (const auto& call : waiting) {
    const Result<std::string> item = finish(*call);
    ASSERT_TRUE(item) << item.error().message;
    items += *item;
  }
  std::sort(items.begin(), items.end());
  EXPECT_EQ(items, "0123456789");
}

TEST_P(StoreContract, GivesTheItemToTheNextWhenAWaitingPopIsDestroyed) {
  MUSTER_NEEDS(queues, "has no queues");
  auto first = begin(store().queue_pop("q", patience()));
  settle();
  const auto second = begin(store().queue_pop("q", patience()));
  settle();
  first.reset();
  settle();
  ASSERT_TRUE(await(other().queue_push("q", "item")));
  EXPECT_TRUE(gives(finish(*second), "item"));
}

TEST_P(StoreContract, LeavesTheItemWhenAPopTimedOutBefore) {
  MUSTER_NEEDS(queues, "has no queues");
  const Result<std::string> result = await(store().queue_pop("q", shortly()));
  expect_error(result, ErrorKind::Timeout);
  ASSERT_TRUE(await(other().queue_push("q", "item")));
  EXPECT_TRUE(gives(await(store().queue_length("q")), 1));
  EXPECT_TRUE(gives(await(store().queue_pop("q", patience())), "item"));
}

// ---- listing

TEST_P(StoreContract, ListsTheKeysOfAPrefixSorted) {
  MUSTER_NEEDS(list_keys, "cannot list its keys");
  for (const char* key : {"list/b", "list/a", "list", "lis", "other", "list/"}) set(key, "x");
  ASSERT_TRUE(await(store().delete_key("list/b")));
  set("list/c", "");
  const std::vector<std::string> expected = {"list/", "list/a", "list/c"};
  EXPECT_TRUE(gives(await(store().list_keys("list/")), expected));
  EXPECT_TRUE(gives(await(store().list_keys("nothing")), std::vector<std::string>()));
  const Result<std::vector<std::string>> all = await(store().list_keys(""));
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_TRUE(std::is_sorted(all->begin(), all->end()));
  EXPECT_TRUE(std::binary_search(all->begin(), all->end(), "other"));
}

// ---- barrier

TEST_P(StoreContract, HoldsEverybodyAtABarrierUntilTheLastComes) {
  MUSTER_NEEDS(barrier, "has no barrier");
  const auto first = begin(store().barrier("b", 3, patience()));
  const auto second = begin(other().barrier("b", 3, patience()));
  settle();
  EXPECT_FALSE(first->done());
  EXPECT_FALSE(second->done());
  EXPECT_TRUE(await(store().barrier("b", 3, patience())));
  EXPECT_TRUE(finish(*first));
  EXPECT_TRUE(finish(*second));
}

TEST_P(StoreContract, LetsLateComersPassABarrier) {
  MUSTER_NEEDS(barrier, "has no barrier");
  EXPECT_TRUE(await(store().barrier("b", 1, patience())));
  EXPECT_TRUE(await(other().barrier("b", 1, patience())));
}

TEST_P(StoreContract, CountsAMemberThatTimedOutAtABarrier) {
  MUSTER_NEEDS(barrier, "has no barrier");
  expect_error(await(store().barrier("b", 2, shortly())), ErrorKind::Timeout);
  EXPECT_TRUE(await(other().barrier("b", 2, patience())));
}

// ---- watching

TEST_P(StoreContract, ReportsTheChangesOfAWatchedKey) {
  MUSTER_NEEDS(key_watch, "cannot watch keys");
  const auto changes = watch("k", Store::WatchScope::Key);
  ASSERT_NE(changes, nullptr);
  expect_change(*changes, {Kind::Absent, "k", ""});
  set("k", "1");
  expect_change(*changes, {Kind::Created, "k", "1"});
  set("k2", "not ours");
  set("k", "1");
  expect_change(*changes, {Kind::Updated, "k", "1"});
  ASSERT_TRUE(await(other().add("k", 4)));
  expect_change(*changes, {Kind::Updated, "k", "5"});
  ASSERT_TRUE(await(other().append("k", "0")));
  expect_change(*changes, {Kind::Updated, "k", "50"});
  ASSERT_TRUE(await(other().compare_set("k", "not this", "x")));
  ASSERT_TRUE(await(other().compare_set("k", "50", "")));
  expect_change(*changes, {Kind::Updated, "k", ""});
  ASSERT_TRUE(await(other().delete_key("k")));
  expect_change(*changes, {Kind::Deleted, "k", ""});
}

TEST_P(StoreContract, BeginsAWatchWithThePresentValue) {
  MUSTER_NEEDS(key_watch, "cannot watch keys");
  set("k", "v");
  const auto changes = watch("k", Store::WatchScope::Key);
  ASSERT_NE(changes, nullptr);
  set("k", "w");
  expect_change(*changes, {Kind::Present, "k", "v"});
  expect_change(*changes, {Kind::Updated, "k", "w"});
}

TEST_P(StoreContract, ReportsTheChangesOfAPrefix) {
  MUSTER_NEEDS(prefix_watch, "cannot watch prefixes");
  set("node/b", "2");
  set("node/a", "1");
  set("other", "x");
  const auto changes = watch("node/", Store::WatchScope::Prefix);
  ASSERT_NE(changes, nullptr);
  expect_change(*changes, {Kind::Present, "node/a", "1"});
  expect_change(*changes, {Kind::Present, "node/b", "2"});
  set("node", "too short");
  set("node/c", "3");
  ASSERT_TRUE(await(other().delete_key("node/a")));
  expect_change(*changes, {Kind::Created, "node/c", "3"});
  expect_change(*changes, {Kind::Deleted, "node/a", ""});
}

TEST_P(StoreContract, LetsNextWaitForAChange) {
  MUSTER_NEEDS(key_watch, "cannot watch keys");
  const auto changes = watch("k", Store::WatchScope::Key);
  ASSERT_NE(changes, nullptr);
  expect_change(*changes, {Kind::Absent, "k", ""});
  const auto waiting = begin(changes->next(patience()));
  settle();
  EXPECT_FALSE(waiting->done());
  set("k", "v");
  const Result<Change> change = finish(*waiting);
  ASSERT_TRUE(change) << change.error().message;
  EXPECT_EQ(*change, (Change{Kind::Created, "k", "v"}));
}

TEST_P(StoreContract, KeepsAWatchAfterATimeoutAndAfterADestroyedNext) {
  MUSTER_NEEDS(key_watch, "cannot watch keys");
  const auto changes = watch("k", Store::WatchScope::Key);
  ASSERT_NE(changes, nullptr);
  expect_change(*changes, {Kind::Absent, "k", ""});
  expect_error(await(changes->next(shortly())), ErrorKind::Timeout);
  auto waiting = begin(changes->next(kNever));
  settle();
  waiting.reset();
  set("k", "v");
  expect_change(*changes, {Kind::Created, "k", "v"});
}

TEST_P(StoreContract, ServesSeveralWatchersOfOneKey) {
  MUSTER_NEEDS(key_watch, "cannot watch keys");
  const auto first = watch("k", Store::WatchScope::Key);
  auto second = watch("k", Store::WatchScope::Key);
  ASSERT_TRUE(first && second);
  set("k", "1");
  expect_change(*second, {Kind::Absent, "k", ""});
  expect_change(*second, {Kind::Created, "k", "1"});
  second.reset();
  set("k", "2");
  expect_change(*first, {Kind::Absent, "k", ""});
  expect_change(*first, {Kind::Created, "k", "1"});
  expect_change(*first, {Kind::Updated, "k", "2"});
}

TEST_P(StoreContract, ReportsEveryOneOfManyChangesInOrder) {
  MUSTER_NEEDS(key_watch, "cannot watch keys");
  const auto changes = watch("k", Store::WatchScope::Key);
  ASSERT_NE(changes, nullptr);
  expect_change(*changes, {Kind::Absent, "k", ""});
  for (int i = 0; i < 100; ++i) set("k", std::to_string(i));
  expect_change(*changes, {Kind::Created, "k", "0"});
  for (int i = 1; i < 100; ++i) expect_change(*changes, {Kind::Updated, "k", std::to_string(i)});
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoreContract);

}  // namespace muster::store::testing
