#include "bench/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

namespace muster::bench {

Result<Operation> parse_operation(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, Operation>, 5> kNames = {{
      {"get", Operation::Get},
      {"set", Operation::Set},
      {"add", Operation::Add},
      {"compare_set", Operation::CompareSet},
      {"wake", Operation::Wake},
  }};
  for (const auto& [text, operation] : kNames) {
    if (text == name) return operation;
  }
  return fail(ErrorKind::Invalid, fmt::format("there is no operation '{}'", name));
}

std::string key_of(int client) { return fmt::format("bench/{:06}", client); }

void Latencies::add(Duration length, std::uint32_t count) {
  constexpr auto kLongest = static_cast<Duration::rep>(std::numeric_limits<std::uint32_t>::max());
  const auto nanoseconds = std::clamp<Duration::rep>(length.count(), 0, kLongest);
  entries_.push_back({static_cast<std::uint32_t>(nanoseconds), count});
  count_ += count;
  longest_ = std::max(longest_, length);
  sorted_ = false;
}

Duration Latencies::percentile(double fraction) {
  if (count_ == 0) return Duration::zero();
  if (!sorted_) {
    std::sort(entries_.begin(), entries_.end(), [](const Entry& left, const Entry& right) {
      return left.nanoseconds < right.nanoseconds;
    });
    sorted_ = true;
  }
  const auto rank = static_cast<std::uint64_t>(std::ceil(fraction * static_cast<double>(count_)));
  std::uint64_t seen = 0;
  for (const Entry& entry : entries_) {
    seen += entry.count;
    if (seen >= rank) return Duration(entry.nanoseconds);
  }
  return longest_;
}

double Measurement::rate() const {
  const double seconds = std::chrono::duration<double>(elapsed).count();
  return seconds > 0 ? static_cast<double>(latencies.count()) / seconds : 0;
}

std::string Measurement::json() {
  const auto microseconds = [](Duration length) {
    return std::chrono::duration<double, std::micro>(length).count();
  };
  return fmt::format(
      R"({{"operations": {}, "all_operations": {}, "seconds": {:.6f}, "rate": {:.1f}, )"
      R"("p50": {:.3f}, "p99": {:.3f}, "longest": {:.3f}}})",
      latencies.count(), all_count, std::chrono::duration<double>(elapsed).count(), rate(),
      microseconds(latencies.percentile(0.50)), microseconds(latencies.percentile(0.99)),
      microseconds(latencies.longest()));
}

TimePoint steady_now() {
  return TimePoint(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

}  // namespace muster::bench
