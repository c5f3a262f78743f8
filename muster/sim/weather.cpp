#include "muster/sim/weather.h"

#include <fmt/format.h>

#include <array>

namespace muster::sim {
namespace {

template <typename T, std::size_t kCount>
T pick(const std::array<T, kCount>& choices, Random& random) {
  return choices[random.below(kCount)];
}

}  // namespace

Weather draw_weather(Random& random) {
  using std::chrono::microseconds;
  // Named steps instead of one wide range: the extremes are what finds bugs, and a uniform draw
  // hardly meets them.
  constexpr std::array<microseconds, 5> kLatencies = {microseconds(1), microseconds(200),
                                                      microseconds(5'000), microseconds(80'000),
                                                      microseconds(1'500'000)};
  constexpr std::array<std::size_t, 4> kWindows = {300, 4'096, 65'536, 262'144};
  constexpr std::array<std::size_t, 4> kChunks = {16, 250, 1'460, 65'536};
  constexpr std::array<std::uint64_t, 4> kTorn = {0, 50, 500, 1'000};
  constexpr std::array<std::uint64_t, 5> kResets = {0, 0, 100, 2'000, 10'000};

  Weather weather;
  weather.latency_min = pick(kLatencies, random);
  weather.latency_max = weather.latency_min * static_cast<Duration::rep>(1 + random.below(10));
  weather.window_bytes = pick(kWindows, random);
  weather.chunk_bytes_max = pick(kChunks, random);
  weather.torn_per_thousand = pick(kTorn, random);
  weather.resets_per_million = pick(kResets, random);
  return weather;
}

std::string describe(const Weather& weather) {
  return fmt::format(
      "latency={}..{} window_bytes={} chunk_bytes_max={} torn={}/1000 resets={}/1000000 "
      "silence_max={}",
      muster::describe(weather.latency_min), muster::describe(weather.latency_max),
      weather.window_bytes, weather.chunk_bytes_max, weather.torn_per_thousand,
      weather.resets_per_million, muster::describe(weather.silence_max));
}

}  // namespace muster::sim
