#include "muster/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>

namespace muster {
namespace {

using namespace std::chrono_literals;

// These numbers are promises: a seed in a bug report or a list of seeds must replay for ever.
TEST(Random, GivesTheSameNumbersForASeedForEver) {
  Random zero(0);
  EXPECT_EQ(zero.next(), 0x99ec5f36cb75f2b4U);
  EXPECT_EQ(zero.next(), 0xbf6e1f784956452aU);
  EXPECT_EQ(zero.next(), 0x1a5f849d4933e6e0U);
  EXPECT_EQ(zero.next(), 0x6aa594f1262d2d2cU);
  Random seeded(20260314);
  EXPECT_EQ(seeded.next(), 0x1d27ec69d829d261U);
  EXPECT_EQ(seeded.next(), 0xdfd2228ceac0011eU);
  EXPECT_EQ(seeded.next(), 0x2bf5a20a4223e3b1U);
  EXPECT_EQ(seeded.next(), 0x6876bdf9aa4c623cU);
}

TEST(Random, GivesTheSameDrawsForASeedForEver) {
  Random random(7);
  std::array<std::uint64_t, 8> draws{};
  for (std::uint64_t& draw : draws) draw = random.below(100);
  EXPECT_EQ(draws, (std::array<std::uint64_t, 8>{94, 74, 38, 64, 64, 21, 16, 96}));
}

TEST(Random, ReplaysFromACopy) {
  Random original(11);
  original.next();
  Random copy = original;
  for (int count = 0; count < 100; ++count) ASSERT_EQ(original.next(), copy.next());
}

TEST(Random, StaysBelowItsBoundAndReachesEveryValue) {
  Random random(1);
  for (const std::uint64_t bound : {1U, 2U, 3U, 7U, 10U, 64U}) {
    std::set<std::uint64_t> seen;
    for (int count = 0; count < 2'000; ++count) seen.insert(random.below(bound));
    EXPECT_EQ(seen.size(), bound);
    EXPECT_LT(*seen.rbegin(), bound);
  }
}

TEST(Random, TakesTheLargestBounds) {
  Random random(2);
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 63U;
  for (int count = 0; count < 1'000; ++count) {
    ASSERT_LT(random.below(UINT64_MAX), UINT64_MAX);
    // Half of all numbers are rejected here; it must end all the same.
    ASSERT_LE(random.below(kHalf + 1), kHalf);
  }
}

TEST(RandomDeathTest, RefusesABoundOfZero) {
  Random random(3);
  EXPECT_DEATH(random.below(0), "assertion failed: bound > 0");
}

TEST(Random, FavoursNoValue) {
  Random random(4);
  std::array<int, 10> counts{};
  for (int count = 0; count < 100'000; ++count) ++counts[random.below(10)];
  for (const int count : counts) {
    EXPECT_GT(count, 9'500);
    EXPECT_LT(count, 10'500);
  }
}

TEST(Random, HasItsChancesInPerThousand) {
  Random random(5);
  int hit_count = 0;
  for (int count = 0; count < 100'000; ++count) hit_count += random.chance(250) ? 1 : 0;
  EXPECT_GT(hit_count, 24'000);
  EXPECT_LT(hit_count, 26'000);
  for (int count = 0; count < 1'000; ++count) {
    ASSERT_FALSE(random.chance(0));
    ASSERT_TRUE(random.chance(1000));
  }
}

TEST(Random, DiffersEachTimeItIsSeededByTheSystem) {
  EXPECT_NE(Random::from_system().next(), Random::from_system().next());
}

TEST(RandomId, IsThirtyTwoHexadecimalDigitsAndReplays) {
  Random random(0);
  const std::string id = random_id(random);
  EXPECT_EQ(id, "99ec5f36cb75f2b4bf6e1f784956452a");
  std::set<std::string> ids;
  for (int count = 0; count < 1'000; ++count) {
    const std::string next = random_id(random);
    ASSERT_EQ(next.size(), 32U);
    ASSERT_EQ(next.find_first_not_of("0123456789abcdef"), std::string::npos);
    ids.insert(next);
  }
  EXPECT_EQ(ids.size(), 1'000U);
}

Duration longest_of(const BackoffOptions& options, int attempt, Random& random) {
  Duration longest{};
  for (int count = 0; count < 2'000; ++count) {
    const Duration length = backoff(options, attempt, random);
    EXPECT_GE(length, 1ms);
    EXPECT_LE(length, options.max);
    longest = std::max(longest, length);
  }
  return longest;
}

TEST(Backoff, DoublesItsCeilingUpToTheMaximum) {
  Random random(6);
  const BackoffOptions options{.first = 50ms, .max = 5s};
  Duration ceiling = options.first;
  for (int attempt = 0; attempt < 40; ++attempt) {
    const Duration longest = longest_of(options, attempt, random);
    EXPECT_LE(longest, ceiling);
    EXPECT_GT(longest, ceiling * 9 / 10);
    ceiling = std::min(ceiling * 2, options.max);
  }
}

TEST(Backoff, IsSpreadOverTheWholeRange) {
  Random random(7);
  std::array<int, 4> quarters{};
  for (int count = 0; count < 4'000; ++count) {
    const Duration length = backoff({.first = 1s, .max = 1s}, 0, random);
    ++quarters[static_cast<std::size_t>(std::min<Duration::rep>(length / 250ms, 3))];
  }
  for (const int count : quarters) EXPECT_GT(count, 900);
}

TEST(Backoff, StaysWithinItsBoundsForOddOptions) {
  Random random(8);
  EXPECT_EQ(backoff({.first = 0ms, .max = 0ms}, 5, random), 1ms);
  EXPECT_EQ(backoff({.first = -1s, .max = 5s}, 5, random), 1ms);
  EXPECT_LE(backoff({.first = 10s, .max = 1s}, 0, random), 1s);
  EXPECT_GE(backoff({.first = 50ms, .max = 5s}, -3, random), 1ms);
  // A first wait of hours, doubled twenty times, does not fit 64 bits; the ceiling is still the
  // maximum.
  EXPECT_GT(longest_of({.first = 10h, .max = 20h}, 1'000, random), 18h);
}

}  // namespace
}  // namespace muster
