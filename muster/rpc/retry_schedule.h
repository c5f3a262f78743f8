// RetrySchedule decides when a message of the framework is sent again, and how its sending ends.
//
// Pure: no I/O, no clock, no threads, no messages. Owned by one agent, which tells it what happened
// and when, sends what it is told to send, and locks around every call. It must send, and complete
// futures, after the lock is released: what completes a future may run a callback that comes back.
//
// A message is known here by a number only. THE AGENT KEEPS its destination (by value), its bytes
// and its future under that number, unchanged by any transmission, until the entry is over:
// `succeeded` was called, `failed` answered with an error, or `stop` named it. So every attempt
// transmits the same bytes.
//
//   state    event                                          to       the caller's future
//   -        add                                            Sent
//   Sent     succeeded                                      over     completes with the response
//   Sent     failed, stopped                                over     fails with that error
//   Sent     failed, Rejected: it cannot even be sent       over     fails with that error
//   Sent     failed, retries left                           Waiting
//   Sent     failed, none left                              over     fails: "max retries (<n>)"
//   Waiting  due, its time has come                         Sent
//   Waiting  stop                                           over     fails: "agent stopped"
//
// There is no limit on the whole: each attempt has the agent's default timeout.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/rpc/call_error.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace muster::rpc {

struct RetryOptions {
  std::int64_t retries_max = 5;
  // Between the first and the second attempt, and between the second and the third; from then on it
  // grows by the factor `backoff` each time.
  Duration delay = std::chrono::milliseconds(1000);
  double backoff = 1.5;
};

// No delay grows beyond it.
inline constexpr Duration kRetryDelayMax = std::chrono::hours(24 * 365);

// Refuses what cannot be meant; the first of retries, backoff, delay that is wrong is named.
Result<> check(const RetryOptions& options);

// From the moment attempt number `attempt_index` (0, 1, ...) was sent until the next one is due:
// delay, delay, delay * backoff, delay * backoff^2, ... in whole milliseconds, rounded down.
// Requires: `check` accepts the options.
Duration retry_delay(const RetryOptions& options, std::int64_t attempt_index);

// Given out once each, 0, 1, 2, ...
using RetryEntry = std::uint64_t;

// How many messages may be on their way or wait at one time.
inline constexpr std::size_t kRetryEntriesMax = std::size_t{1} << 20;

class RetrySchedule {
 public:
  struct Failure {
    // The attempt that failed, for the log; the first is 1.
    std::int64_t attempt_number = 1;
    // When it is sent again, not before `now`; kNever when it is over.
    TimePoint retry_at = kNever;
    // With what the caller's future fails; nothing when the message is sent again.
    std::optional<CallError> error;
  };

  // `entries_max`: for tests.
  explicit RetrySchedule(std::size_t entries_max = kRetryEntriesMax) : entries_max_(entries_max) {}

  // To be called just BEFORE the first attempt is handed to the connection, so that no answer can
  // come first. Invalid for bad options, and Unavailable when the schedule is full: then nothing is
  // to be sent.
  Result<RetryEntry> add(const RetryOptions& options, TimePoint now);

  // The attempt got its answer; the entry is over. Requires: an attempt is on its way.
  void succeeded(RetryEntry entry);

  // The attempt failed: by a timeout, its connection, an EXCEPTION for an answer, or because it
  // could not be sent. What could not be sent but may be later (the table of calls is full) must be
  // Unreachable, since Rejected is for good. Requires: an attempt is on its way.
  [[nodiscard]] Failure failed(RetryEntry entry, const CallError& error, TimePoint now);

  // The entries to be sent again now, in the order in which they are due. They count as sent at
  // `now`.
  [[nodiscard]] std::vector<RetryEntry> due(TimePoint now);

  // The agent stops: no retry from now on. Answers what was waiting for one, oldest first; those
  // are over. What is on its way ends by `succeeded` or `failed` as before.
  [[nodiscard]] std::vector<RetryEntry> stop();

  // When `due` can next answer anything; kNever while nothing waits. To be asked again after each
  // call of `failed`, since that can bring an earlier one.
  TimePoint next_deadline() const;

  std::size_t waiting_count() const { return waiting_.size(); }
  // Those on their way included.
  std::size_t entry_count() const { return entries_.size(); }

 private:
  struct Entry {
    RetryOptions options;
    std::int64_t attempt_index = 0;
    TimePoint sent_at;
    bool is_waiting = false;
    bool was_sent = false;  // some attempt may have left this process
  };

  Entry& on_its_way(RetryEntry number);

  std::size_t entries_max_;
  std::map<RetryEntry, Entry> entries_;
  // By the millisecond in which they are due, so that those of one millisecond go out together.
  std::set<std::pair<TimePoint, RetryEntry>> waiting_;
  RetryEntry next_entry_ = 0;
  bool is_stopped_ = false;
};

}  // namespace muster::rpc
