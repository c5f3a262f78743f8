#include "muster/rendezvous/wishes.h"

#include "tests/rendezvous/states.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster::rendezvous {
namespace {

using testing::check_invariants;
using testing::node;
using testing::settings;

Wish written(std::uint64_t number) { return {number, "text"}; }
Wish missing(std::uint64_t number) { return {number, std::nullopt}; }

Hello join_of(const char* name, Settings its_settings) {
  Hello hello;
  hello.run_id = its_settings.run_id;
  hello.joins = true;
  hello.node = node(name);
  hello.settings = std::move(its_settings);
  return hello;
}

TEST(Wishes, AreOpenUntilTheyAreTaken) {
  WishMarks marks;
  EXPECT_TRUE(is_open(marks, 1));
  EXPECT_TRUE(open_wishes(marks, 0).empty());
  EXPECT_EQ(open_wishes(marks, 2), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(take_wishes({written(1), written(2)}, marks).size(), 2U);
  EXPECT_EQ(marks, (WishMarks{2, {}}));
  EXPECT_FALSE(is_open(marks, 1));
  EXPECT_FALSE(is_open(marks, 2));
  EXPECT_TRUE(is_open(marks, 3));
  EXPECT_TRUE(open_wishes(marks, 2).empty());
}

TEST(Wishes, AreTakenPastOneThatIsMissing) {
  WishMarks marks;
  const auto taken = take_wishes({written(1), missing(2), written(3)}, marks);
  EXPECT_EQ(taken, (std::vector<Wish>{written(1), written(3)}));
  EXPECT_EQ(marks, (WishMarks{3, {2}}));
  EXPECT_TRUE(is_open(marks, 2));
  EXPECT_EQ(open_wishes(marks, 4), (std::vector<std::uint64_t>{2, 4}));
}

TEST(Wishes, ThatWereMissingAreTakenWhenTheyCome) {
  WishMarks marks{5, {2, 4}};
  const auto taken = take_wishes({written(2), missing(4), written(6)}, marks);
  EXPECT_EQ(taken, (std::vector<Wish>{written(2), written(6)}));
  EXPECT_EQ(marks, (WishMarks{6, {4}}));
}

TEST(Wishes, ThatFindNoRoomAmongTheMissingStayOpen) {
  std::vector<Wish> wishes;
  for (std::uint64_t number = 1; number <= kWishesMissingMax + 2; ++number) {
    wishes.push_back(missing(number));
  }
  wishes.push_back(written(kWishesMissingMax + 3));
  WishMarks marks;
  EXPECT_TRUE(take_wishes(wishes, marks).empty());
  EXPECT_EQ(marks.taken, kWishesMissingMax);
  EXPECT_EQ(marks.missing.size(), kWishesMissingMax);
  EXPECT_TRUE(is_open(marks, kWishesMissingMax + 3));
}

// Sixty-four nodes that die before they have said what they want must not hold up the others.
TEST(Wishes, ThatAreMissingForTheSecondTimeMakeRoomOldestFirst) {
  WishMarks marks;
  std::vector<Wish> wishes;
  for (std::uint64_t number = 1; number <= kWishesMissingMax; ++number) {
    marks.missing.insert(number);
    wishes.push_back(missing(number));
  }
  marks.taken = kWishesMissingMax;
  wishes.push_back(missing(kWishesMissingMax + 1));
  wishes.push_back(written(kWishesMissingMax + 2));
  const auto taken = take_wishes(wishes, marks);
  EXPECT_EQ(taken, (std::vector<Wish>{written(kWishesMissingMax + 2)}));
  EXPECT_EQ(marks.taken, kWishesMissingMax + 2);
  EXPECT_EQ(marks.missing.size(), kWishesMissingMax);
  EXPECT_FALSE(is_open(marks, 1));
  EXPECT_TRUE(is_open(marks, 2));
  EXPECT_TRUE(is_open(marks, kWishesMissingMax + 1));
}

TEST(Wishes, AreReadInBoundedNumber) {
  const auto numbers = open_wishes({}, 1'000'000);
  EXPECT_EQ(numbers.size(), kWishesReadMax);
  EXPECT_EQ(numbers.back(), 1'000'000U);
}

TEST(Wishes, WithoutNumbersAreAllTaken) {
  WishMarks marks;
  EXPECT_EQ(take_wishes({written(0), written(0)}, marks).size(), 2U);
  EXPECT_EQ(marks, WishMarks());
}

TEST(Wishes, ThatAreGrantedFillTheRound) {
  State state;
  const Settings limits = settings(2, 3);
  for (const char* name : {"a", "b", "c", "d"}) grant(join_of(name, limits), TimePoint(), state);
  EXPECT_TRUE(state.complete);
  EXPECT_EQ(state.world_size, 3);
  EXPECT_TRUE(state.redundancy_list.contains(node("d")));
  check_invariants(state, limits);
}

TEST(Wishes, OfANodeThatIsInAlreadyChangeNothing) {
  State state;
  const Settings limits = settings(2, 3);
  grant(join_of("a", limits), TimePoint(), state);
  const State before = state;
  grant(join_of("a", limits), TimePoint(), state);
  EXPECT_EQ(state, before);
}

TEST(Wishes, OfAllMembersOfARoundLeadToTheNext) {
  State state;
  const Settings limits = settings(2, 2);
  for (const char* name : {"a", "b"}) grant(join_of(name, limits), TimePoint(), state);
  ASSERT_TRUE(state.complete);
  Hello again = join_of("a", limits);
  again.place = Place{{state.birth, state.round}, 0, 2};
  grant(again, TimePoint(), state);
  EXPECT_TRUE(state.lost);
  EXPECT_TRUE(state.wait_list.contains(node("a")));
  again.node = node("b");
  again.place->rank = 1;
  grant(again, TimePoint(), state);
  EXPECT_EQ(state.round, 1U);
  EXPECT_TRUE(state.participants.contains(node("b")));
}

TEST(Wishes, WithOtherLimitsThanTheRunAreNotGranted) {
  State state;
  grant(join_of("a", settings(2, 3)), TimePoint(), state);
  const State before = state;
  grant(join_of("b", settings(2, 4)), TimePoint(), state);
  EXPECT_EQ(state, before);
}

}  // namespace
}  // namespace muster::rendezvous
