// A Failure is the record of one worker that did not end with success: who it was, how it ended,
// when, and what it had to say. Agents of one round exchange these records as JSON through the
// round's store, so that all of them report the same root cause.
#pragma once

#include "muster/base/error.h"
#include "muster/failures/error_file.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::failures {

// A longer list is refused when it is read, and cut when it is written (real failures stay first).
inline constexpr std::size_t kFailuresMax = 4096;

struct Failure {
  int global_rank = -1;
  int local_rank = -1;
  int node_rank = -1;
  std::string role;
  std::string host;
  int pid = 0;
  int exit_code = 0;  // the exit status, or minus the signal

  // Wall-clock times since the epoch. The first is when the kernel ended the process; the second is
  // when the worker wrote its error file, which comes earlier and is 0 if it wrote none.
  std::int64_t exited_nanoseconds = 0;
  std::int64_t recorded_nanoseconds = 0;
  // How far the clock of that host is ahead of the one that the nodes of the round compare theirs
  // with.
  std::int64_t clock_lead_nanoseconds = 0;
  // The kernel's order of exits on that host; compared only within one node.
  std::uint64_t order = 0;

  bool out_of_memory = false;
  // It was stopped by its agent, or died after the agent had heard of another failure, and had not
  // recorded a failure before. Never a root cause.
  bool collateral = false;

  std::string error_file;  // empty: it wrote none
  std::string message;     // empty: it said nothing
  std::string traceback;   // empty: there is none
  // What the agent knows beyond the exit code, such as "no sign of life for 30s"; often empty.
  std::string note;
  std::vector<std::string> last_lines;  // the end of its stderr

  friend bool operator==(const Failure&, const Failure&) = default;
};

// When the worker failed: when it said so, else when it ended.
std::int64_t failed_nanoseconds(const Failure& failure);

// Puts what its error file says into a failure whose exit is known already. A file older than
// `started_nanoseconds` (wall clock, 0: unknown) is left over from an earlier start and ignored.
// A file that could not be understood leaves the message empty; the traceback then says what is
// wrong with the file and shows its beginning.
void add_details(Failure& failure, const std::string& error_file, const ErrorDetails& details,
                 std::int64_t started_nanoseconds);

// What to show as `message` when the worker said nothing: the signal that ended it, or a hint how a
// worker can say more. Never empty.
std::string message_of(const Failure& failure);

// "exit status 3" or "signal 11 (SIGSEGV)"; with "out of memory" where that is known.
std::string describe_exit(const Failure& failure);

// One line for the log, written when the failure is seen and not only at the end of the job:
// `rank 5 (local rank 1, pid 4712) on node7: exit status 3: ValueError: bad shape`.
std::string summary(const Failure& failure);

// "SIGTERM", or "<N/A>" for one without a name, as torchrun has it.
std::string signal_text(int signal);

// The failure as error-file data, for `raw_error` of events: {"message": "<NONE>"} when the worker
// said nothing.
std::string raw_error(const Failure& failure);

std::string to_json(const Failure& failure);
std::string to_json(const std::vector<Failure>& failures);
// Members that are missing keep their defaults and unknown ones are ignored, so that agents of
// different versions understand each other; a member of the wrong type is an error (Corrupt).
Result<Failure> failure_from_json(std::string_view text);
Result<std::vector<Failure>> failures_from_json(std::string_view text);

}  // namespace muster::failures
