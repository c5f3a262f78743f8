#include "muster/base/suggest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster {
namespace {

TEST(EditDistance, CountsChangedAddedAndRemovedLetters) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("serve", "serve"), 0U);
  EXPECT_EQ(edit_distance("serve", "verse"), 2U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("join_timeuot", "join_timeout"), 2U);
}

TEST(Nearest, IsTheNameThatNeedsTheFewestChanges) {
  const std::vector<std::string> names = {"join_timeout", "close_timeout", "rank"};
  EXPECT_EQ(nearest("join_timeuot", names), "join_timeout");
  EXPECT_EQ(nearest("clos_timeout", names), "close_timeout");
  EXPECT_EQ(nearest("rnk", names), "rank");
}

TEST(Nearest, IsTheFirstOfSeveralThatAreEquallyNear) {
  EXPECT_EQ(nearest("gat", {"get", "set", "gut"}), "get");
}

TEST(Nearest, IsNothingWhenNoNameIsNear) {
  EXPECT_EQ(nearest("completely_different", {"rank", "grace"}), "");
  EXPECT_EQ(nearest("rank", {}), "");
}

TEST(Nearest, DoesNotCompareWhatIsFarTooLongToBeAName) {
  const std::string name(200, 'a');
  EXPECT_EQ(nearest(name, {name}), name);
  EXPECT_EQ(nearest(name + "a", {name}), "");
}

}  // namespace
}  // namespace muster
