#include "muster/rref/ids.h"

#include <gtest/gtest.h>

#include <limits>
#include <unordered_set>

namespace muster::rref {
namespace {

TEST(GlobalId, KeepsItsWorkerAndItsNumber) {
  constexpr WorkerId kWorkers[] = {0, 1, 32767, -1, std::numeric_limits<WorkerId>::min()};
  for (const WorkerId worker : kWorkers) {
    for (const std::int64_t local : {std::int64_t{0}, std::int64_t{22}, kLocalIdMax}) {
      const GlobalId id(worker, local);
      EXPECT_EQ(id.created_on(), worker);
      EXPECT_EQ(id.local(), local);
    }
  }
}

TEST(GlobalId, IsOrderedByWorkerAndThenByNumber) {
  EXPECT_LT(GlobalId(0, kLocalIdMax), GlobalId(1, 0));
  EXPECT_LT(GlobalId(-1, kLocalIdMax), GlobalId(0, 0));
  EXPECT_LT(GlobalId(3, 4), GlobalId(3, 5));
  EXPECT_EQ(GlobalId(3, 4), GlobalId(3, 4));
}

TEST(GlobalId, HashesToTheWorkerAboveTheNumber) {
  EXPECT_EQ(std::hash<GlobalId>()(GlobalId(3, 7)), (std::uint64_t{3} << 48) | 7);
}

TEST(GlobalId, IsShownAsProgramsKnowIt) {
  EXPECT_EQ(GlobalId(0, 22).text(), "GloballyUniqueId(created_on=0, local_id=22)");
  EXPECT_EQ(owner_text(GlobalId(0, 24)), "OwnerRRef(GloballyUniqueId(created_on=0, local_id=24))");
  EXPECT_EQ(user_text(GlobalId(1, 2), GlobalId(1, 3)),
            "UserRRef(RRefId = GloballyUniqueId(created_on=1, local_id=2), "
            "ForkId = GloballyUniqueId(created_on=1, local_id=3))");
  EXPECT_EQ(owner_error_text(GlobalId(0, 24)),
            "OwnerRRef(rref_id=GloballyUniqueId(created_on=0, local_id=24))");
  EXPECT_EQ(user_error_text(GlobalId(1, 2), GlobalId(1, 3)),
            "UserRRef(rref_id=GloballyUniqueId(created_on=1, local_id=2), "
            "fork_id=GloballyUniqueId(created_on=1, local_id=3))");
}

TEST(IdSource, CountsFromZero) {
  IdSource ids;
  EXPECT_EQ(ids.draw(), 0);
  EXPECT_EQ(ids.draw(2), 1);
  EXPECT_EQ(ids.draw(), 3);
}

TEST(IdSource, DrawsAnotherSeriesForEachMember) {
  const std::int64_t first = first_of_incarnation(0x123456789abcdef0);
  EXPECT_EQ(series_of(first), 0xef0);
  EXPECT_LE(first, kLocalIdMax);
  IdSource ids(first);
  EXPECT_EQ(ids.draw(), first);
  ids.begin_at(first_of_incarnation(7));
  EXPECT_EQ(series_of(ids.draw()), 7);
  EXPECT_EQ(series_of(GlobalId(3, ids.draw())), 7);
  EXPECT_EQ(first_of_incarnation(0), 0);
}

TEST(CreationFork, IsTheIdAfterTheReference) {
  EXPECT_EQ(creation_fork(GlobalId(3, 4)), GlobalId(3, 5));
  EXPECT_EQ(creation_fork(GlobalId(3, kLocalIdMax)).created_on(), 3);
}

}  // namespace
}  // namespace muster::rref
