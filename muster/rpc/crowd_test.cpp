#include "muster/rpc/crowd.h"

#include <gtest/gtest.h>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart = TimePoint() + 1h;

// How long nobody gives way from `now` on, though the crowd is there.
Duration rest_after(Crowd& crowd, TimePoint now) {
  Duration rest = 0us;
  for (; rest < 10s; rest += 1ms) {
    crowd.notice(now + rest);
    if (crowd.is_there(now + rest)) break;
  }
  return rest;
}

TEST(Crowd, IsThereForAWhileAfterSomebodyWasInIt) {
  Crowd crowd;
  EXPECT_FALSE(crowd.is_there(kStart));
  crowd.notice(kStart);
  EXPECT_TRUE(crowd.is_there(kStart));
  EXPECT_TRUE(crowd.is_there(kStart + Crowd::kStays - 1ns));
  EXPECT_FALSE(crowd.is_there(kStart + Crowd::kStays));
  crowd.notice(kStart + 2ms);
  EXPECT_TRUE(crowd.is_there(kStart + 2ms));
}

TEST(Crowd, GoesOnWhileThoseWhoRunGiveTheProcessorBack) {
  Crowd crowd;
  crowd.notice(kStart);
  for (int times = 0; times < 1000; ++times) crowd.came_back(kStart, Crowd::kLate - 1ns);
  EXPECT_TRUE(crowd.is_there(kStart));
}

// Two slices, one after the other; when the second is over.
TimePoint lose_two_slices(Crowd& crowd, TimePoint now) {
  crowd.came_back(now + 3ms, 3ms);
  crowd.came_back(now + 6ms, 3ms);
  return now + 6ms;
}

TEST(Crowd, RestsWhereOthersTakeSlicesAndLongerEachTime) {
  Crowd crowd;
  TimePoint now = kStart;
  Duration before = 0us;
  for (int times = 0; times < 4; ++times) {
    now = lose_two_slices(crowd, now);
    const Duration rest = rest_after(crowd, now);
    EXPECT_GT(rest, before);
    EXPECT_GE(rest, 30 * 3ms) << "the slices lost cost little";
    before = rest;
    now += rest;
  }
  for (int times = 0; times < 10; ++times) {
    now = lose_two_slices(crowd, now);
    now += rest_after(crowd, now);
  }
  now = lose_two_slices(crowd, now);
  EXPECT_LE(rest_after(crowd, now), 1s) << "the others may have gone";
  now = lose_two_slices(crowd, now + 1h);
  EXPECT_LT(rest_after(crowd, now), before) << "that was long ago";
}

TEST(Crowd, RestsHoweverLongTheSlicesAre) {
  Crowd crowd;
  crowd.came_back(kStart, 5 * Crowd::kSoon);
  const TimePoint end = kStart + 5 * Crowd::kSoon;
  crowd.came_back(end, 5 * Crowd::kSoon);
  EXPECT_GT(rest_after(crowd, end), 100ms);
}

// Two threads take turns with a third that takes slices: each tells of the slice of the other, too.
TEST(Crowd, RestsThoughSlicesAreToldOfAgainAndAgain) {
  Crowd crowd;
  TimePoint now = kStart;
  for (int turns = 0; turns < 4; ++turns) {
    now += 3ms;
    crowd.came_back(now, 3ms);
    crowd.came_back(now + 10us, 3ms);
  }
  EXPECT_GT(rest_after(crowd, now), 50ms);
}

TEST(Crowd, GoesOnThoughASliceIsLostNowAndThen) {
  Crowd crowd;
  for (TimePoint now = kStart; now < kStart + 1s; now += Crowd::kSoon + 4ms) {
    crowd.came_back(now, 3ms);
    crowd.notice(now);
    EXPECT_TRUE(crowd.is_there(now));
  }
}

TEST(Crowd, CountsASliceOnceThoughManyThreadsHaveWaitedForItsEnd) {
  Crowd crowd;
  for (int times = 0; times < 10; ++times) crowd.came_back(kStart + times * 1us, 3ms);
  crowd.notice(kStart);
  EXPECT_TRUE(crowd.is_there(kStart));
}

// Another slice is lost each time that somebody looks.
class SlowClock final : public Clock {
 public:
  TimePoint now() const override { return now_ += 3ms; }

 private:
  mutable TimePoint now_ = kStart;
};

TEST(Crowd, NobodyGivesWayWhereNoneIs) {
  Crowd crowd(std::make_shared<SlowClock>());
  EXPECT_FALSE(crowd.give_way());
}

TEST(Crowd, NobodyGivesWayWhereOthersTakeSlices) {
  Crowd crowd(std::make_shared<SlowClock>());
  crowd.notice(kStart + 1h);
  EXPECT_TRUE(crowd.give_way());
  EXPECT_TRUE(crowd.give_way());
  EXPECT_FALSE(crowd.give_way());
}

}  // namespace
}  // namespace muster::rpc
