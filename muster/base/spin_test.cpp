#include "muster/base/spin.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart = TimePoint() + 1h;

TEST(SpinBudget, SleepsAtOnceUntilItHasPaid) {
  SpinBudget spin;
  EXPECT_EQ(spin.at(kStart), 0us);
  spin.came(80us, false);
  EXPECT_GT(spin.at(kStart), 0us);
}

TEST(SpinBudget, LooksLongerWhileItMissesByLittle) {
  SpinBudget spin;
  Duration before = 0us;
  for (int wait = 0; wait < 3; ++wait) {
    spin.came(90us, false);
    EXPECT_GT(spin.at(kStart), before);
    before = spin.at(kStart);
  }
  EXPECT_LE(before, SpinBudget::kLongest);
  for (int wait = 0; wait < 1000; ++wait) spin.came(15us, true);
  EXPECT_EQ(spin.at(kStart), before) << "it pays";
}

TEST(SpinBudget, StopsWhenWhatItWaitsForTakesLong) {
  SpinBudget spin;
  for (int wait = 0; wait < 3; ++wait) spin.came(90us, false);
  spin.came(5ms, false);
  EXPECT_EQ(spin.at(kStart), 0us);
}

TEST(SpinBudget, GivesUpOnWhatAlwaysTakesALittleLonger) {
  SpinBudget spin;
  int looks = 0;
  for (int wait = 0; wait < 1000; ++wait) {
    if (spin.at(kStart) > 0us) ++looks;
    spin.came(200us, false);
  }
  EXPECT_LT(looks, 150);
  EXPECT_GT(looks, 5) << "it is tried again now and then";
}

TEST(SpinBudget, RestsWhenOthersNeedTheProcessorAndLongerEachTime) {
  SpinBudget spin;
  for (int wait = 0; wait < 3; ++wait) spin.came(90us, false);
  TimePoint now = kStart;
  Duration before = 0us;
  for (int time = 0; time < 20; ++time) {
    spin.preempted(now);
    EXPECT_EQ(spin.at(now), 0us);
    Duration rest = 0us;
    while (spin.at(now + rest) == 0us && rest < 10s) rest += 1ms;
    EXPECT_GE(rest, before);
    EXPECT_LE(rest, 1s);
    before = rest;
    now += rest;
  }
  EXPECT_EQ(before, 1s);
  for (int wait = 0; wait < 20; ++wait) spin.came(10us, true);
  spin.preempted(now);
  EXPECT_GT(spin.at(now + 10ms), 0us) << "forgotten after it has paid for a while";
}

}  // namespace
}  // namespace muster
