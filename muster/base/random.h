// Random numbers that replay: the same seed gives the same sequence on every machine and library.
#pragma once

#include "muster/base/clock.h"

#include <cstdint>
#include <string>

namespace muster {

// xoshiro256**, seeded through splitmix64. A value: copy it to replay. Not for secrets.
class Random {
 public:
  explicit Random(std::uint64_t seed);

  // Seeded from the kernel; for programs, never for tests.
  static Random from_system();

  std::uint64_t next();

  // Uniform in 0 … bound-1. Requires: bound > 0.
  std::uint64_t below(std::uint64_t bound);

  // True in `per_thousand` of 1000 calls on average.
  bool chance(std::uint64_t per_thousand);

 private:
  std::uint64_t state_[4];
};

// A random identifier of 128 bits as 32 hexadecimal digits.
std::string random_id(Random& random);

struct BackoffOptions {
  Duration first = std::chrono::milliseconds(50);
  Duration max = std::chrono::seconds(5);
};

// How long to wait before attempt number `attempt` (0 is the first repetition): exponential with
// full jitter, for clients that failed together must not return together. At least a millisecond,
// at most `options.max`.
Duration backoff(const BackoffOptions& options, int attempt, Random& random);

}  // namespace muster
