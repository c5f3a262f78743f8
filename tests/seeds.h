// Which seeds a randomised test runs: a fixed list and some new ones, more with MUSTER_SEEDS=count,
// or one to replay with MUSTER_SEED=seed.
#pragma once

#include "muster/base/random.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace muster::tests {

// Built for a sanitizer, or to be debugged, everything takes many times as long, and few seeds must
// do.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
inline constexpr bool kIsSlow = true;
#else
inline constexpr bool kIsSlow = false;
#endif

// The seeds 1 … `fixed_count`, which are the same for everybody, and `new_count` that nobody has
// tried. With MUSTER_SEEDS there are as many fixed ones as that says, and as many new ones again if
// there are to be some.
inline std::vector<std::uint64_t> seeds_to_run(std::uint64_t fixed_count,
                                               std::uint64_t new_count = 0) {
  if (const char* one = std::getenv("MUSTER_SEED")) return {std::strtoull(one, nullptr, 10)};
  if (const char* many = std::getenv("MUSTER_SEEDS")) {
    fixed_count = std::strtoull(many, nullptr, 10);
    if (new_count > 0) new_count = fixed_count;
  }
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t seed = 1; seed <= fixed_count; ++seed) seeds.push_back(seed);
  Random random = Random::from_system();
  for (std::uint64_t count = 0; count < new_count; ++count) seeds.push_back(random.next());
  return seeds;
}

// The command that runs the present test with one seed again.
inline std::string replay_command(std::uint64_t seed) {
  const ::testing::TestInfo* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("replay with: MUSTER_SEED={} {} --gtest_filter={}.{}", seed,
                     program_invocation_short_name, test->test_suite_name(), test->name());
}

}  // namespace muster::tests
