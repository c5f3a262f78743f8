// Whole groups on bad days, with the real drivers, servers and stores; see day.h.
#include "tests/rendezvous_sim/day.h"
#include "tests/rendezvous_sim/sabotage.h"
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

// How many seeds of the fixed list, and how many new ones. A day over a shared store is ten times
// as much work.
struct Days {
  std::uint64_t fixed_count;
  std::uint64_t new_count;
};
constexpr Days kHostedDays = tests::kIsSlow ? Days{100, 20} : Days{2'000, 500};
constexpr Days kSharedDays = tests::kIsSlow ? Days{20, 5} : Days{700, 100};

void run_days(bool hosted) {
  const tests::LogCapture log(log::Level::Error);
  const auto& [fixed_count, new_count] = hosted ? kHostedDays : kSharedDays;
  const auto seeds = seeds_to_run(fixed_count, new_count);
  std::size_t join_count = 0;
  std::size_t round_count = 0;
  Duration longest = Duration::zero();
  for (const std::uint64_t seed : seeds) {
    const Plan plan = draw_plan(seed, hosted);
    Day day(plan);
    // Whoever replays one wants to see it.
    if (seeds.size() == 1) {
      day.set_narrator(
          [](std::string_view line) { std::printf("%s\n", std::string(line).c_str()); });
    }
    const std::string wrong = day.run();
    ASSERT_TRUE(wrong.empty()) << wrong << "\n" << describe(plan) << "\n" << replay_command(seed);
    join_count += day.join_count();
    round_count += day.round_count();
    longest = std::max(longest, day.settled_after());
  }
  std::printf(
      "%zu days, %zu rounds, %zu joins; all had met %s after the last fault at the latest\n",
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
      EXPECT_EQ(first.story(), second.story()) << seed;
    }
  }
}

// Nothing that is decided depends on what a clock shows, only on how long something takes.
TEST(GroupsInSim, DoTheSameWhateverTheClocksShow) {
  const tests::LogCapture log(log::Level::Error);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    for (const bool hosted : {true, false}) {
      Plan plan = draw_plan(seed, hosted);
      plan.has_skew = false;
      Day now(plan);
      EXPECT_EQ(now.run(), "");
      Day later(plan);
      later.set_clocks_ahead(std::chrono::hours(1));
      EXPECT_EQ(later.run(), "");
      EXPECT_EQ(now.story(), later.story()) << seed;
    }
  }
}

// A day on which the fault can show.
Plan draw_plan_for(Fault fault, std::uint64_t seed, bool hosted) {
  Plan plan = draw_plan(seed, hosted);
  plan.world.sabotage = make_sabotage(fault);
  plan.closes = plan.closes || fault == Fault::OpensWhatIsClosed;
  // A broken driver may try the same thing again and again, and each time must take time.
  plan.world.weather.latency_min = plan.world.weather.latency_max = std::chrono::milliseconds(20);
  if (fault == Fault::IgnoresTheToken) {
    // More nodes than seats, and all want them at the same time.
    plan.node_count = 8;
    plan.world.settings.min_nodes = 1;
    plan.world.settings.max_nodes = 2;
  }
  return plan;
}

// Whether one of the first days shows that the drivers have the fault.
bool is_caught(Fault fault, bool hosted) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Day day(draw_plan_for(fault, seed, hosted));
    if (!day.run().empty()) return true;
  }
  return false;
}

TEST(GroupsInSim, ShowEveryFaultOfASharedDriver) {
  const tests::LogCapture log(log::Level::Error);
  for (const Fault fault : kSharedFaults) {
    EXPECT_TRUE(is_caught(fault, false)) << name_of(fault);
  }
}

TEST(GroupsInSim, ShowEveryFaultOfAHostedDriver) {
  const tests::LogCapture log(log::Level::Error);
  for (const Fault fault : kHostedFaults) {
    EXPECT_TRUE(is_caught(fault, true)) << name_of(fault);
  }
}

}  // namespace
}  // namespace muster::rendezvous::testing
