// Which seeds a randomised test runs: a fixed list, more with MUSTER_SEEDS=count, or one to replay
// with MUSTER_SEED=seed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace muster::linearizability {

#if defined(__SANITIZE_THREAD__)
// A simulation has one thread, and is ten times slower when others are looked for.
inline constexpr std::uint64_t kSimulationsByDefault = 100;
#else
inline constexpr std::uint64_t kSimulationsByDefault = 1'000;
#endif

inline std::vector<std::uint64_t> seeds_to_run(std::uint64_t default_count) {
  if (const char* one = std::getenv("MUSTER_SEED")) return {std::strtoull(one, nullptr, 10)};
  const char* many = std::getenv("MUSTER_SEEDS");
  const std::uint64_t count = many != nullptr ? std::strtoull(many, nullptr, 10) : default_count;
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t seed = 1; seed <= count; ++seed) seeds.push_back(seed);
  return seeds;
}

// The command that runs the present test with one seed again.
inline std::string replay_command(std::uint64_t seed) {
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  return "replay with: MUSTER_SEED=" + std::to_string(seed) +
         " linearizability_tests --gtest_filter=" + test->test_suite_name() + "." + test->name();
}

}  // namespace muster::linearizability
