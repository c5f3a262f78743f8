// Timers knows by when the processes that workers consist of have promised to be through with
// something, and what is to happen to those that are not.
//
// Pure: no I/O, no clock. A process may hold many timers, one for each scope. Owned by one
// Deadlines, on its loop.
//
// Invariants:
//  1. A process has at most one timer for a scope; setting it again moves it.
//  2. A timer expires once. A process that is to be signalled loses all its timers with that.
//  3. There are never more than kTimersMax timers.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace muster::watchdog {

inline constexpr std::size_t kTimersMax = 16384;
inline constexpr std::size_t kScopeBytesMax = 4096;

struct Timeout {
  pid_t pid = 0;
  std::string scope;
  TimePoint deadline = kNever;
  // What the process gets when it is late; 0: it is only reported.
  int signal = 0;
  // The deadline as the process stated it, in seconds since the epoch, for records; 0 if it stated
  // none.
  double expiration_time = 0;

  friend bool operator==(const Timeout&, const Timeout&) = default;
};

class Timers {
 public:
  // Sets the timer of `timeout.pid` and `timeout.scope`, or moves it. Invalid: the scope is too
  // long. Unavailable: there are too many timers.
  Result<> set(Timeout timeout);

  // False if there is no such timer.
  bool release(pid_t pid, std::string_view scope);

  // Forgets a process; returns how many timers it had.
  std::size_t drop(pid_t pid);
  void clear();

  // Takes out what has expired and returns it, earliest deadline first. For a process the list
  // ends with the first timer that has a signal, for that settles what happens to it: its other
  // timers are dropped. A process whose late timers have no signal keeps the timers that are not
  // late yet.
  std::vector<Timeout> expire(TimePoint now);

  // When `expire` can next return something.
  std::optional<TimePoint> next_deadline() const;

  std::size_t size() const { return by_time_.size(); }
  std::size_t count(pid_t pid) const;

 private:
  // Timers of the same instant expire in the order in which they were set.
  using Place = std::pair<TimePoint, std::uint64_t>;
  using Scopes = std::map<std::string, Place, std::less<>>;

  std::map<pid_t, Scopes> by_process_;
  std::map<Place, Timeout> by_time_;
  std::uint64_t order_ = 0;
};

}  // namespace muster::watchdog
