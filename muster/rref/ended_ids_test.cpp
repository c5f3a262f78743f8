#include "muster/rref/ended_ids.h"

#include <gtest/gtest.h>

namespace muster::rref {
namespace {

using How = EndedIds::How;

GlobalId id(std::int64_t local) { return {0, local}; }

TEST(EndedIds, TellsHowAnIdEnded) {
  EndedIds ended(4);
  ended.remember(id(1), How::Over);
  ended.remember(id(2), How::Cancelled);
  EXPECT_EQ(ended.find(id(1)), How::Over);
  EXPECT_EQ(ended.find(id(2)), How::Cancelled);
  EXPECT_EQ(ended.find(id(3)), std::nullopt);
}

TEST(EndedIds, KeepsToTheFirstWord) {
  EndedIds ended(4);
  ended.remember(id(1), How::Cancelled);
  ended.remember(id(1), How::Over);
  EXPECT_EQ(ended.find(id(1)), How::Cancelled);
  EXPECT_EQ(ended.size(), 1U);
}

TEST(EndedIds, ForgetsTheOldestPastItsLimit) {
  EndedIds ended(3);
  for (std::int64_t local = 0; local < 3; ++local) ended.remember(id(local), How::Over);
  EXPECT_TRUE(ended.contains(id(0)));
  ended.remember(id(3), How::Over);
  EXPECT_FALSE(ended.contains(id(0)));
  EXPECT_TRUE(ended.contains(id(1)));
  EXPECT_EQ(ended.size(), 3U);
}

TEST(EndedIds, DoesNotForgetAnIdForItsFormerPlace) {
  EndedIds ended(3);
  ended.remember(id(0), How::Over);
  ended.forget(id(0));
  EXPECT_FALSE(ended.contains(id(0)));
  ended.remember(id(1), How::Over);
  ended.remember(id(0), How::Over);
  ended.remember(id(2), How::Over);  // the former place of 0 goes
  EXPECT_TRUE(ended.contains(id(0)));
  EXPECT_TRUE(ended.contains(id(1)));
}

}  // namespace
}  // namespace muster::rref
