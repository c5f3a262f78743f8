// What the program's exit status says. Scripts rely on these numbers; docs/cli.md lists them.
#pragma once

#include "muster/base/error.h"

namespace muster::cli {

enum ExitStatus : int {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitTimeout = 3,
  kExitUnreachable = 4,
  kExitNo = 5,  // the answer is no: the key is absent, the value was not stored, the keys are not
                // all there
};

constexpr int exit_status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Timeout:
      return kExitTimeout;
    case ErrorKind::Unavailable:
      return kExitUnreachable;
    default:
      return kExitFailed;
  }
}

}  // namespace muster::cli
