#include "muster/rendezvous/heartbeat.h"

#include <gtest/gtest.h>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr Duration kInterval = 5s;  // a tick is 50 ms

TEST(Heartbeat, ends_on_the_nearest_tick_of_the_wall_clock) {
  EXPECT_EQ(until_tick(kInterval, kInterval, 1000s + 1ms), kInterval - 1ms);
  EXPECT_EQ(until_tick(kInterval, kInterval, 1000s + 49ms), kInterval + 1ms);
  EXPECT_EQ(until_tick(kInterval, kInterval, 1000s), kInterval);
  EXPECT_EQ(until_tick(1234ms, kInterval, 1000s), 1250ms);
}

TEST(Heartbeat, is_at_most_half_a_tick_from_what_was_asked_whatever_the_clock_says) {
  for (const Duration wall : {Duration(0), Duration(-1), Duration(-7s - 13ms), Duration(1),
                              Duration(1'700'000'000s + 123'456'789ns)}) {
    for (const Duration wait : {Duration(60ms), Duration(1s + 1ns), Duration(kInterval)}) {
      const Duration length = until_tick(wait, kInterval, wall);
      EXPECT_LE(length, wait + 25ms);
      EXPECT_GE(length, wait - 25ms);
      EXPECT_EQ((wall + length) % Duration(50ms), Duration(0));
    }
  }
}

TEST(Heartbeat, does_not_come_at_once_because_a_tick_has_just_passed) {
  EXPECT_EQ(until_tick(10ms, kInterval, 1000s + 10ms), 40ms);
  EXPECT_EQ(until_tick(0ms, kInterval, 1000s), 50ms);
}

TEST(Heartbeat, of_an_interval_too_short_to_have_ticks_waits_as_asked) {
  EXPECT_EQ(until_tick(99ns, 99ns, 1000s + 1ms), 99ns);
}

}  // namespace
}  // namespace muster::rendezvous
