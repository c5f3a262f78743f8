// The report at the end of a failed job. Pure, except that times are shown in local time.
//
// The block between the double rules has torchrun's layout, line for line, because people and
// scripts read it. What Muster knows beyond that stands below the closing rule: the last lines of
// the worker that failed first, a word about memory, where the logs are.
#pragma once

#include "muster/failures/failure.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace muster::failures {

struct ReportOptions {
  std::string job_name;    // "<job name> FAILED"
  std::string log_folder;  // empty: there are no logs to point to
  // More failures than this, besides the root cause, are counted instead of shown; collateral ones
  // are left out first.
  std::size_t others_max = 64;
};

// Begins with a blank line and ends with a newline. Empty if there are no failures.
std::string report(const std::vector<Failure>& failures, const ReportOptions& options);

// "2026-01-02_03:04:05", local time.
std::string report_time(std::int64_t wall_nanoseconds);

}  // namespace muster::failures
