// Passing the root cause upward: when the launcher itself was given an error file by whoever
// started it, the reason of the job's failure goes there.
#pragma once

#include "muster/base/error.h"
#include "muster/failures/failure.h"

#include <string>

namespace muster::failures {

struct PassedUpward {
  enum class How {
    Nothing,  // the root cause had no error file, or nobody wants to know (no target)
    Copied,   // with all members that the worker wrote
    Rebuilt,  // from the record, because the file is on another node or makes no sense
  };
  How how = How::Nothing;
  // Something was at the target before; worth a line in the log.
  bool replaced = false;

  friend bool operator==(const PassedUpward&, const PassedUpward&) = default;
};

// Writes the error file of `root` to `target`. In the structured shape the exit code is added as
// `errorCode`. `target` is the launcher's own TORCHELASTIC_ERROR_FILE; empty means unset.
Result<PassedUpward> pass_upward(const Failure& root, const std::string& target);

// Any other reason why the launcher ends with an error, in its own words. Nothing if `target` is
// empty.
Result<PassedUpward> pass_own_error_upward(const Error& error, const std::string& target);

}  // namespace muster::failures
