// Time. Monotonic time decides; wall-clock time is only for people to read.
//
// Code that needs the time takes a `Clock&` (usually its loop's), so that tests can run it on
// virtual time.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace muster {

using Duration = std::chrono::nanoseconds;

// A point on the monotonic time line of one machine (or of one simulation). Never sent to another
// machine.
struct MonotonicTimeline {
  using duration = Duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<MonotonicTimeline, duration>;
  static constexpr bool is_steady = true;
};
using TimePoint = MonotonicTimeline::time_point;

// "Waits for ever": later than every other point in time.
inline constexpr TimePoint kNever = TimePoint::max();

// `start + length`, staying at kNever instead of overflowing. A negative length means for ever, as
// in PyTorch.
constexpr TimePoint after(TimePoint start, Duration length) {
  if (length < Duration::zero()) return kNever;
  if (start > TimePoint() && length > kNever - start) return kNever;
  return start + length;
}

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

// Reads CLOCK_MONOTONIC at every call. Loops have their own clock, which stands still during one
// turn.
class SystemClock final : public Clock {
 public:
  TimePoint now() const override;
};

// The wall clock as text, UTC: "2026-03-14T09:26:53.589Z".
std::string wall_clock_text();

// "250ms", "5s", "2m", "1h30m", "0.5" (seconds), for flags; false if it is not a duration.
// "-1" gives a negative duration, which `after` reads as for ever.
bool parse_duration(std::string_view text, Duration& out);

// For messages: "1.5s", "250ms", "2m", "for ever" when negative.
std::string describe(Duration length);

}  // namespace muster
