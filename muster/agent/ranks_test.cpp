#include "muster/agent/ranks.h"

#include <gtest/gtest.h>

namespace muster::agent {
namespace {

TEST(Ranks, FollowTheNodeRanksAcrossRolesAndInsideEachRole) {
  const std::vector<Seat> seats = {
      {"ps", 4}, {"trainer", 1}, {"trainer", 2}, {"trainer", 3}, {"ps", 5}};
  const std::vector<Ranks> expected = {
      {0, 15, 0, 9}, {4, 15, 0, 6}, {5, 15, 1, 6}, {7, 15, 3, 6}, {10, 15, 4, 9}};
  EXPECT_EQ(assign_ranks(seats), expected);
}

TEST(Ranks, AreThoseOfTheWorkersOnASingleNode) {
  const std::vector<Ranks> expected = {{0, 3, 0, 3}};
  EXPECT_EQ(assign_ranks({{"default", 3}}), expected);
}

TEST(Ranks, OfNobodyAreNone) { EXPECT_TRUE(assign_ranks({}).empty()); }

}  // namespace
}  // namespace muster::agent
