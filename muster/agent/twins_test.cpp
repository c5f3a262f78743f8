#include "muster/agent/twins.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>

namespace muster::agent {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart = TimePoint(1h);

TEST(Twins, ASignalThatComesBothWaysCountsOnce) {
  for (const bool guard_first : {true, false}) {
    Twins twins;
    EXPECT_TRUE(twins.is_new(SIGTERM, guard_first, kStart));
    EXPECT_FALSE(twins.is_new(SIGTERM, !guard_first, kStart + 500ms));
  }
}

TEST(Twins, ASecondSignalByTheSameWayCounts) {
  Twins twins;
  EXPECT_TRUE(twins.is_new(SIGTERM, true, kStart));
  EXPECT_TRUE(twins.is_new(SIGTERM, true, kStart + 1ms));
}

TEST(Twins, APairAfterAPairCountsAgain) {
  Twins twins;
  EXPECT_TRUE(twins.is_new(SIGTERM, false, kStart));
  EXPECT_FALSE(twins.is_new(SIGTERM, true, kStart));
  EXPECT_TRUE(twins.is_new(SIGTERM, true, kStart + 1ms));
  EXPECT_FALSE(twins.is_new(SIGTERM, false, kStart + 1ms));
}

TEST(Twins, OtherSignalsAndLaterOnesAreNoTwins) {
  Twins twins;
  EXPECT_TRUE(twins.is_new(SIGTERM, false, kStart));
  EXPECT_TRUE(twins.is_new(SIGINT, true, kStart));
  EXPECT_TRUE(twins.is_new(SIGTERM, true, kStart + 3s));
}

}  // namespace
}  // namespace muster::agent
