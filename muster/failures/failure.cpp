#include "muster/failures/failure.h"

#include "muster/base/signal_name.h"
#include "muster/failures/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::failures {
namespace {

// File systems stamp with a clock that ticks every few milliseconds, so a file may seem a little
// older than it is.
constexpr std::int64_t kFileClockSlackNanoseconds = 20'000'000;
constexpr std::size_t kSummaryBytesMax = 300;

std::string first_line(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos) return {};
  text.remove_prefix(start);
  const std::string_view line = text.substr(0, text.find_first_of("\r\n"));
  std::string shown = printable(line.substr(0, kSummaryBytesMax));
  if (line.size() > kSummaryBytesMax) shown += "...";
  return shown;
}

}  // namespace

std::int64_t failed_nanoseconds(const Failure& failure) {
  const bool has_record = failure.recorded_nanoseconds > 0;
  if (!has_record) return failure.exited_nanoseconds;
  if (failure.exited_nanoseconds == 0) return failure.recorded_nanoseconds;
  return std::min(failure.recorded_nanoseconds, failure.exited_nanoseconds);
}

void add_details(Failure& failure, const std::string& error_file, const ErrorDetails& details,
                 std::int64_t started_nanoseconds) {
  if (details.shape == ErrorFileShape::Missing) return;
  const std::int64_t modified = details.modified_nanoseconds;
  const bool is_left_over = modified > 0 && started_nanoseconds > 0 &&
                            modified + kFileClockSlackNanoseconds < started_nanoseconds;
  if (is_left_over) return;

  failure.error_file = error_file;
  if (details.shape == ErrorFileShape::Unreadable) {
    failure.traceback = fmt::format("{}\nThe error file {}.", message_of(failure), details.problem);
    if (!details.raw.empty()) failure.traceback += " It begins:\n" + details.raw;
    return;
  }
  failure.message = details.message;
  failure.traceback = details.traceback;
  // In the structured shape the message stands in for a traceback that is not there.
  const bool is_structured = details.shape == ErrorFileShape::Structured;
  if (is_structured && failure.traceback.empty()) failure.traceback = failure.message;
  if (!details.complete) {
    std::string& last = failure.traceback.empty() ? failure.message : failure.traceback;
    last += fmt::format("\n[the error file {}]", details.problem);
  }
  // The time of the file is finer than what the worker writes into it, which counts whole seconds.
  // A time after the end of the worker is somebody else's.
  const std::int64_t recorded = modified > 0 ? modified : details.timestamp_nanoseconds;
  if (failure.exited_nanoseconds == 0 || recorded <= failure.exited_nanoseconds)
    failure.recorded_nanoseconds = recorded;
}

std::string message_of(const Failure& failure) {
  if (!failure.message.empty()) return failure.message;
  if (failure.exit_code < 0) {
    return fmt::format("Signal {} ({}) received by PID {}", -failure.exit_code,
                       signal_text(-failure.exit_code), failure.pid);
  }
  return fmt::format(
      "The worker wrote no message into the file that {} names; a recorder does that "
      "(Python: torch.distributed.elastic, C and C++: muster/failures/recorder.h).",
      kErrorFileVariable);
}

std::string describe_exit(const Failure& failure) {
  std::string text = failure.exit_code < 0 ? fmt::format("signal {} ({})", -failure.exit_code,
                                                         signal_text(-failure.exit_code))
                                           : fmt::format("exit status {}", failure.exit_code);
  if (failure.out_of_memory) text += ", out of memory";
  return text;
}

std::string summary(const Failure& failure) {
  std::string text =
      fmt::format("rank {} (local rank {}, pid {}) on {}: {}", failure.global_rank,
                  failure.local_rank, failure.pid, failure.host, describe_exit(failure));
  for (const std::string& more : {failure.note, failure.message}) {
    const std::string line = first_line(more);
    if (!line.empty()) text += ": " + line;
  }
  return text;
}

std::string signal_text(int signal) {
  const std::string name = signal_name(signal);
  return name.starts_with("SIG") ? name : "<N/A>";
}

std::string raw_error(const Failure& failure) {
  if (failure.message.empty() && failure.traceback.empty()) return R"({"message":"<NONE>"})";
  ErrorRecord record;
  record.message = failure.message;
  record.traceback = failure.traceback;
  record.timestamp_seconds = failed_nanoseconds(failure) / 1'000'000'000;
  return to_json(record);
}

}  // namespace muster::failures
