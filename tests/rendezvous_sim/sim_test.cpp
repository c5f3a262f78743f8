// Whole groups on bad days, with the real drivers, servers and stores; see day.h.
#include "tests/rendezvous_sim/day.h"
#include "tests/seeds.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace muster::rendezvous::testing {
namespace {

using tests::replay_command;
using tests::seeds_to_run;

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kDaysByDefault = 100;
constexpr std::uint64_t kNewDaysByDefault = 20;
#else
constexpr std::uint64_t kDaysByDefault = 1'000;
constexpr std::uint64_t kNewDaysByDefault = 200;
#endif

void run_days(bool hosted) {
  const tests::LogCapture log(log::Level::Error);
  const auto seeds = seeds_to_run(kDaysByDefault, kNewDaysByDefault);
  std::size_t join_count = 0;
  std::size_t round_count = 0;
  Duration longest = Duration::zero();
  for (const std::uint64_t seed : seeds) {
    const Plan plan = draw_plan(seed, hosted);
    Day day(plan);
    const std::string wrong = day.run();
    ASSERT_TRUE(wrong.empty()) << wrong << "\n" << describe(plan) << "\n" << replay_command(seed);
    join_count += day.join_count();
    round_count += day.round_count();
    longest = std::max(longest, day.settled_after());
  }
  std::printf("%zu days, %zu rounds, %zu joins; all had met %s after the last fault at the latest\n",
              seeds.size(), round_count, join_count, muster::describe(longest).c_str());
}

TEST(GroupsInSim, HostedByAServerComeTogetherOnEveryDayOfASeed) { run_days(true); }

TEST(GroupsInSim, OverASharedStoreComeTogetherOnEveryDayOfASeed) { run_days(false); }

TEST(GroupsInSim, DoTheSameEveryTime) {
  const tests::LogCapture log(log::Level::Error);
  for (const std::uint64_t seed : {3U, 17U, 99U}) {
    for (const bool hosted : {true, false}) {
      Day first(draw_plan(seed, hosted));
      EXPECT_EQ(first.run(), "");
      Day second(draw_plan(seed, hosted));
      EXPECT_EQ(second.run(), "");
      EXPECT_EQ(first.trace_hash(), second.trace_hash()) << seed;
    }
  }
}

// Nothing that is decided depends on what a clock shows, only on how long something takes.
TEST(GroupsInSim, DoTheSameWhateverTheClocksShow) {
  const tests::LogCapture log(log::Level::Error);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const bool hosted : {true, false}) {
      Plan plan = draw_plan(seed, hosted);
      plan.has_skew = false;
      Day now(plan);
      EXPECT_EQ(now.run(), "");
      Day later(plan);
      later.set_clocks_ahead(std::chrono::hours(1));
      EXPECT_EQ(later.run(), "");
      EXPECT_EQ(now.trace_hash(), later.trace_hash()) << seed;
    }
  }
}

}  // namespace
}  // namespace muster::rendezvous::testing
