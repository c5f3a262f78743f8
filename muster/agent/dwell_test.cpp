#include "muster/agent/dwell.h"

#include <gtest/gtest.h>

namespace muster::agent {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration time) { return TimePoint(1h) + time; }

TEST(Dwell, FindsAWorkerThatSleepsUninterruptiblyForTooLong) {
  Dwell dwell(10s);
  EXPECT_FALSE(dwell.saw(0, 'D', at(0s)));
  EXPECT_FALSE(dwell.saw(0, 'D', at(9s)));
  EXPECT_TRUE(dwell.saw(0, 'D', at(10s)));
}

TEST(Dwell, BeginsAnewWhenTheWorkerDidAnythingElse) {
  Dwell dwell(10s);
  dwell.saw(0, 'D', at(0s));
  EXPECT_FALSE(dwell.saw(0, 'R', at(5s)));
  EXPECT_FALSE(dwell.saw(0, 'D', at(6s)));
  EXPECT_FALSE(dwell.saw(0, 'D', at(15s)));
  EXPECT_TRUE(dwell.saw(0, 'D', at(16s)));
}

TEST(Dwell, TakesWhatItCannotSeeForNothing) {
  Dwell dwell(10s);
  dwell.saw(0, 'D', at(0s));
  EXPECT_FALSE(dwell.saw(0, std::nullopt, at(20s)));
  EXPECT_TRUE(dwell.saw(0, 'D', at(21s)));
}

TEST(Dwell, TellsWorkersApart) {
  Dwell dwell(10s);
  dwell.saw(0, 'D', at(0s));
  EXPECT_FALSE(dwell.saw(1, 'D', at(20s)));
}

}  // namespace
}  // namespace muster::agent
