// The exit status of `muster run`.
//
//   0  all workers of the job ended with success; or this node was a spare that nobody needed
//   1  a worker failed for good; or the job was refused, or the launcher itself failed; or a signal
//      ended it after workers had been started
//   2  wrong usage
//   3  our workers ended with success, but other nodes did not confirm the same: outcome unknown
//
// A signal before the first worker was started ends the program as that signal would have: see
// end_by_signal. With --propagate-exit-code, 1 becomes the root cause's own status where there is
// one.
#pragma once

#include "muster/failures/failure.h"

namespace muster::failures {

enum class Outcome {
  Succeeded,    // all workers of all nodes
  Released,     // a spare node: the job ended without it
  Failed,       // workers failed, here or on another node, and the budget is used up
  Refused,      // validation, rendezvous or internal error
  Usage,        // the command line cannot be understood
  Signalled,    // by a signal after workers were started
  Unconfirmed,  // success here, silence elsewhere
};

inline constexpr int kStatusUnconfirmed = 3;

struct Ending {
  Outcome outcome = Outcome::Succeeded;
  const Failure* root = nullptr;     // for Failed, if it is known
  int signal = 0;                    // for Signalled
  bool propagate_exit_code = false;  // the option
};

// Between 0 and 255, and 0 only for Succeeded and Released.
int exit_status(const Ending& ending);

// What a shell would see of a worker: its exit status, or 128 + the signal.
int shell_status(int exit_code);

// Ends this process as if `signal` had not been handled, so that its parent sees the signal.
[[noreturn]] void end_by_signal(int signal);

}  // namespace muster::failures
