#include "muster/base/random.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <sys/random.h>

namespace muster {

Random::Random(std::uint64_t seed) {
  for (std::uint64_t& word : state_) {
    seed += 0x9e3779b97f4a7c15U;
    std::uint64_t mixed = seed;
    mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebU;
    word = mixed ^ (mixed >> 31U);
  }
}

Random Random::from_system() {
  std::uint64_t seed = 0;
  MUSTER_ASSERT(::getrandom(&seed, sizeof seed, 0) == sizeof seed);
  return Random(seed);
}

std::uint64_t Random::next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t shifted = state_[1] << 17U;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

std::uint64_t Random::below(std::uint64_t bound) {
  MUSTER_ASSERT(bound > 0);
  // Rejects the few values that would favour small results.
  const std::uint64_t threshold = (0 - bound) % bound;
  for (;;) {
    const std::uint64_t value = next();
    if (value >= threshold) return value % bound;
  }
}

bool Random::chance(std::uint64_t per_thousand) { return below(1000) < per_thousand; }

std::string random_id(Random& random) {
  const std::uint64_t high = random.next();
  const std::uint64_t low = random.next();
  return fmt::format("{:016x}{:016x}", high, low);
}

Duration backoff(const BackoffOptions& options, int attempt, Random& random) {
  const Duration smallest = std::chrono::milliseconds(1);
  const Duration largest = std::max(options.max, smallest);
  const std::int64_t factor = std::int64_t{1} << std::clamp(attempt, 0, 20);
  // Compared before it is multiplied: a long first wait must not overflow into a short one.
  const Duration ceiling =
      options.first > largest / factor ? largest : std::max(options.first * factor, smallest);
  const auto span = static_cast<std::uint64_t>(ceiling.count());
  return std::max(smallest, Duration(static_cast<Duration::rep>(random.below(span) + 1)));
}

}  // namespace muster
