// Weather: how bad the day is on a simulated network.
//
// A value. The default is a fine day: fast, whole and without faults. `draw_weather` takes a day
// from a seed, so that random tests see small windows, torn messages, slow links and resets without
// anybody having thought of them.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/random.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace muster::sim {

struct Weather {
  // How long a segment takes, drawn anew for each. Segments of one direction never overtake each
  // other.
  Duration latency_min = std::chrono::microseconds(50);
  Duration latency_max = std::chrono::microseconds(250);
  // How many bytes of one direction may be on the way or unread; then writes would block.
  std::size_t window_bytes = std::size_t{256} * 1024;
  // The most that arrives at once.
  std::size_t chunk_bytes_max = std::size_t{64} * 1024;
  // How many of 1000 reads, writes and chunks are cut short at an arbitrary byte.
  std::uint64_t torn_per_thousand = 0;
  // How many of a million arriving chunks meet a reset instead.
  std::uint64_t resets_per_million = 0;
  // A connection whose bytes (or a connection attempt that) stay unanswered this long dies with
  // ETIMEDOUT. Negative: it waits for ever.
  Duration silence_max = std::chrono::seconds(60);

  friend bool operator==(const Weather&, const Weather&) = default;
};

Weather draw_weather(Random& random);

// For the message of a test that failed.
std::string describe(const Weather& weather);

}  // namespace muster::sim
