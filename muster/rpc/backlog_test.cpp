#include "muster/rpc/backlog.h"

#include <gtest/gtest.h>

#include <vector>

namespace muster::rpc {
namespace {

class BacklogTest : public ::testing::Test {
 protected:
  std::vector<bool> told;
  Backlog backlog{{.requests = 4, .bytes = 100}, [this](bool holds) { told.push_back(holds); }};
  using Told = std::vector<bool>;
};

TEST_F(BacklogTest, HoldsOneRequestPastTheLimitAndReleasesAtHalf) {
  for (int request = 0; request < 4; ++request) backlog.add(1);
  EXPECT_EQ(told, Told());
  backlog.add(1);
  EXPECT_EQ(told, Told({true}));
  backlog.remove(1);
  backlog.remove(1);
  EXPECT_EQ(told, Told({true})) << "three are left";
  backlog.remove(1);
  EXPECT_EQ(told, Told({true, false}));
}

TEST_F(BacklogTest, HoldsOneBytePastTheLimitAndReleasesAtHalf) {
  backlog.add(50);
  backlog.add(50);
  EXPECT_EQ(told, Told());
  backlog.add(1);
  EXPECT_EQ(told, Told({true}));
  backlog.remove(50);
  EXPECT_EQ(told, Told({true})) << "51 are left";
  backlog.remove(1);
  EXPECT_EQ(told, Told({true, false}));
}

TEST_F(BacklogTest, TakesOneThatIsLargerThanTheLimit) {
  backlog.add(1000);
  EXPECT_EQ(told, Told({true})) << "but nothing behind it";
  backlog.remove(1000);
  EXPECT_EQ(told, Told({true, false}));
}

TEST_F(BacklogTest, HoldsAgainOnceThatIsNeeded) {
  for (int round = 0; round < 2; ++round) {
    for (int request = 0; request < 6; ++request) backlog.add(0);
    for (int request = 0; request < 6; ++request) backlog.remove(0);
  }
  EXPECT_EQ(told, Told({true, false, true, false}));
}

}  // namespace
}  // namespace muster::rpc
