#include "muster/base/clock.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <ctime>

namespace muster {
namespace {

bool seconds_in(std::string_view unit, double& seconds) {
  if (unit == "us") {
    seconds = 1e-6;
  } else if (unit == "ms") {
    seconds = 1e-3;
  } else if (unit == "s" || unit.empty()) {
    seconds = 1;
  } else if (unit == "m") {
    seconds = 60;
  } else if (unit == "h") {
    seconds = 3600;
  } else {
    return false;
  }
  return true;
}

}  // namespace

TimePoint SystemClock::now() const {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return TimePoint(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

std::string wall_clock_text() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  tm parts{};
  ::gmtime_r(&time.tv_sec, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     time.tv_nsec / 1'000'000);
}

bool parse_duration(std::string_view text, Duration& out) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  if (text.empty()) return false;
  double seconds = 0;
  bool first = true;
  while (!text.empty()) {
    double number = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (error != std::errc() || std::signbit(number)) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    const std::string_view unit = text.substr(0, text.find_first_of("0123456789."));
    text.remove_prefix(unit.size());
    double unit_seconds = 0;
    if (!seconds_in(unit, unit_seconds)) return false;
    // Only a number that stands alone may leave the unit out: "1.5.5" and "1h30" are slips of the
    // pen.
    if (unit.empty() && (!text.empty() || !first)) return false;
    first = false;
    seconds += number * unit_seconds;
  }
  constexpr double kSecondsMax = 9e9;  // about 285 years; fits the nanosecond count
  if (!(seconds <= kSecondsMax)) return false;
  // Rounded, since most decimal fractions have no exact binary form and would come out a nanosecond
  // short.
  const auto length = Duration(std::llround(seconds * 1e9));
  out = negative ? -length : length;
  return true;
}

std::string describe(Duration length) {
  if (length < Duration::zero()) return "for ever";
  const double seconds = std::chrono::duration<double>(length).count();
  if (seconds >= 120 && std::fmod(seconds, 60) == 0) return fmt::format("{}m", seconds / 60);
  if (seconds >= 1 || seconds == 0) return fmt::format("{}s", std::round(seconds * 1000) / 1000);
  return fmt::format("{}ms", std::round(seconds * 1'000'000) / 1000);
}

}  // namespace muster
