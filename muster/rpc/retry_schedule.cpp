#include "muster/rpc/retry_schedule.h"

#include "muster/base/assert.h"
#include "muster/rpc/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace muster::rpc {
namespace {

using std::chrono::milliseconds;

// With what the caller's future fails when no retry is left. It has no code, as in
// torch.distributed.rpc: the call as a whole did not time out, it was given up.
CallError exhausted(std::int64_t retries_max, const CallError& last) {
  CallError error;
  error.kind =
      last.kind == CallErrorKind::Remote ? CallErrorKind::Remote : CallErrorKind::Unreachable;
  error.message = retries_exhausted_text(retries_max, last.message);
  error.type = last.type;
  return error;
}

}  // namespace

Result<> check(const RetryOptions& options) {
  if (options.retries_max < 0) return fail(ErrorKind::Invalid, "maxRetries cannot be negative.");
  // The text speaks of the wrong option, but programs know it. Written so that what is not a number
  // is refused, too.
  if (!(options.backoff >= 1)) {
    return fail(ErrorKind::Invalid, "maxRetries cannot be exponentially decaying.");
  }
  if (options.delay < Duration::zero()) {
    return fail(ErrorKind::Invalid, "rpcRetryDuration cannot be negative.");
  }
  return {};
}

Duration retry_delay(const RetryOptions& options, std::int64_t attempt_index) {
  // Nothing stays nothing, even when the factor has grown beyond all numbers.
  if (options.delay == Duration::zero()) return Duration::zero();
  const auto growth_count = static_cast<double>(std::max<std::int64_t>(0, attempt_index - 1));
  const double length = std::chrono::duration<double, std::milli>(options.delay).count() *
                        std::pow(options.backoff, growth_count);
  constexpr auto kLengthMax = std::chrono::duration_cast<milliseconds>(kRetryDelayMax).count();
  if (length >= static_cast<double>(kLengthMax)) return kRetryDelayMax;
  return milliseconds(static_cast<std::int64_t>(length));
}

Result<RetryEntry> RetrySchedule::add(const RetryOptions& options, TimePoint now) {
  const Result<> good = check(options);
  if (!good) return fail(good.error());
  if (entries_.size() >= entries_max_) {
    return fail(ErrorKind::Unavailable,
                fmt::format("too many messages wait to be sent again: {}", entries_max_));
  }
  const RetryEntry number = next_entry_++;
  Entry entry;
  entry.options = options;
  entry.sent_at = now;
  entries_.emplace_hint(entries_.end(), number, entry);
  return number;
}

void RetrySchedule::succeeded(RetryEntry entry) {
  on_its_way(entry);
  entries_.erase(entry);
}

RetrySchedule::Failure RetrySchedule::failed(RetryEntry entry, const CallError& error,
                                             TimePoint now) {
  Entry& state = on_its_way(entry);
  state.was_sent = state.was_sent || error.sent;
  Failure failure;
  failure.attempt_number = state.attempt_index + 1;

  const bool is_final = is_stopped_ || error.kind == CallErrorKind::Rejected;
  if (!is_final && state.attempt_index < state.options.retries_max) {
    const TimePoint due_at = after(state.sent_at, retry_delay(state.options, state.attempt_index));
    const TimePoint key = std::chrono::floor<milliseconds>(due_at);
    waiting_.emplace(key, entry);
    state.is_waiting = true;
    failure.retry_at = std::max(key, now);
    return failure;
  }

  failure.error = is_final ? error : exhausted(state.options.retries_max, error);
  failure.error->sent = state.was_sent;
  entries_.erase(entry);
  return failure;
}

std::vector<RetryEntry> RetrySchedule::due(TimePoint now) {
  std::vector<RetryEntry> to_send;
  while (!waiting_.empty() && waiting_.begin()->first <= now) {
    const RetryEntry number = waiting_.begin()->second;
    waiting_.erase(waiting_.begin());
    const auto found = entries_.find(number);
    MUSTER_ASSERT(found != entries_.end());
    Entry& state = found->second;
    state.is_waiting = false;
    state.sent_at = now;
    ++state.attempt_index;
    to_send.push_back(number);
  }
  return to_send;
}

std::vector<RetryEntry> RetrySchedule::stop() {
  is_stopped_ = true;
  std::vector<RetryEntry> over;
  over.reserve(waiting_.size());
  for (const auto& [when, number] : waiting_) over.push_back(number);
  for (const RetryEntry number : over) entries_.erase(number);
  waiting_.clear();
  std::sort(over.begin(), over.end());
  return over;
}

TimePoint RetrySchedule::next_deadline() const {
  return waiting_.empty() ? kNever : waiting_.begin()->first;
}

RetrySchedule::Entry& RetrySchedule::on_its_way(RetryEntry number) {
  const auto found = entries_.find(number);
  MUSTER_ASSERT(found != entries_.end());
  MUSTER_ASSERT(!found->second.is_waiting);
  return found->second;
}

}  // namespace muster::rpc
