#include "muster/failures/exit_status.h"

#include <csignal>
#include <unistd.h>

namespace muster::failures {

int shell_status(int exit_code) {
  constexpr int kSignalBase = 128;
  const int status = exit_code < 0 ? kSignalBase - exit_code : exit_code;
  return status & 0xFF;
}

int exit_status(const Ending& ending) {
  switch (ending.outcome) {
    case Outcome::Succeeded:
    case Outcome::Released:
      return 0;
    case Outcome::Usage:
      return 2;
    case Outcome::Unconfirmed:
      return kStatusUnconfirmed;
    case Outcome::Refused:
      return 1;
    case Outcome::Failed:
      if (ending.propagate_exit_code && ending.root != nullptr) {
        // A worker that counts as failed although its status is 0 (it was late, or gone) may not
        // turn the job into a success.
        const int status = shell_status(ending.root->exit_code);
        return status == 0 ? 1 : status;
      }
      return 1;
    case Outcome::Signalled:
      return ending.propagate_exit_code && ending.signal > 0 ? shell_status(-ending.signal) : 1;
  }
  return 1;
}

void end_by_signal(int signal) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ::raise(signal);
  // If it was blocked it is delivered here.
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  // A signal whose default is not to end the process.
  ::_exit(shell_status(-signal));
}

}  // namespace muster::failures
