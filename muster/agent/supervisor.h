// Supervisor decides what becomes of one node's workers: it is told what happened and answers what
// is to be done.
//
// Pure: no I/O, no clock, no processes. Owned by an Agent, which carries out the answers and feeds
// back what came of them.
//
//            joined            all ended well          everyone confirmed
//  Joining ─────────▶ Running ───────────────▶ Confirming ──────────────▶ Done
//     ▲                  │ a worker or a peer failed,    │ a peer failed or vanished,
//     │                  │ someone came or went          │ someone came
//     │  delay over      ▼                               │
//     └── Delaying ◀── Stopping ◀────────────────────────┘
//                        │ nothing left to try, a signal
//                        ▼
//                       Done
//
// Invariants:
//  1. A worker is started only in Running, and Running is left only through Stopping or with every
//     worker ended.
//     A worker that is replaced alone counts as running until its replacement ends well.
//  2. Nothing but `stopped` leaves Stopping: the agent never goes on, and never ends, with workers
//     alive.
//  3. After the first signal nothing is started any more; the second kills at once.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/observe/group_state.h"
#include "muster/rendezvous/handler.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::agent {

enum class Phase { Joining, Running, Stopping, Delaying, Confirming, Done };
std::string_view name_of(Phase phase);

using observe::GroupState;

// What the members of a round tell one another. The first word of a round is the only one.
enum class News {
  Restart,  // a worker failed, and the job begins again
  Failed,   // a worker failed for the last time
  Done,     // the workers of all nodes ended well
};
std::string_view name_of(News news);

enum class StopCause {
  Failure,      // a worker of this node failed
  PeerFailure,  // one of another node did
  Arrival,      // a node waits to be let in
  Departure,    // a member of the round is gone
  Expulsion,    // the others took this node for dead
  Closed,       // somebody closed the run
  Signal,       // we are to end
};
std::string_view name_of(StopCause cause);

// How it ended.
enum class Outcome {
  Succeeded,    // and so did every other node
  Failed,       // a worker failed, here or elsewhere, and no restart is left
  Unconfirmed,  // the workers of this node ended well; whether the others did is not known
  Signalled,
  Released,  // a spare that was not needed
  Closed,    // somebody closed the run while it was going on
  Error,     // the agent itself could not do its work
};
std::string_view name_of(Outcome outcome);

struct Action {
  enum class Kind {
    Join,      // the next round
    Start,     // all workers, or none
    Announce,  // `news` to the other members
    Replace,   // `worker` alone, after `delay`; the others run on
    Stop,      // all workers: `signal`, grace, SIGKILL; then tell `stopped`
    Escalate,  // SIGKILL now
    Confirm,   // tell the others that the workers of this node ended well; wait for theirs
    Delay,     // then tell `delay_over`
    Close,     // the run, for everybody
    Leave,     // the run, so that others may go on without us
    End,       // with `outcome`
  };
  Kind kind = Kind::End;
  News news = News::Restart;
  StopCause cause = StopCause::Failure;
  int signal = 0;
  Duration delay = Duration::zero();
  Outcome outcome = Outcome::Error;
  int worker = 0;

  friend bool operator==(const Action&, const Action&) = default;
};
using Actions = std::vector<Action>;
std::string describe(const Action& action);
std::string describe(const Actions& actions);

class Supervisor {
 public:
  // `worker_count` workers are started in every round.
  explicit Supervisor(std::int64_t worker_count) : worker_count_(worker_count) {}

  Actions begin();

  // The round is complete and the ranks are known.
  Actions joined(const rendezvous::Status& status);
  Actions join_failed(ErrorKind kind);
  void started();
  Actions start_failed();

  // What a failure of a local worker leads to is the caller's to say: it knows the budget.
  struct Exit {
    int code = 0;
    bool restart_left = false;
    Duration delay = Duration::zero();  // before the restart
    // How long to wait, once the workers are stopped, for the news that a member of the round is
    // gone, before the failure counts as the last one: workers of a node that lost its peer often
    // die faster than that is known.
    Duration hold = Duration::zero();
    // Only this worker is started again, if a restart is left.
    bool alone = false;
    int worker = 0;
  };
  Actions worker_exited(const Exit& exit);
  Actions stopped();
  Actions delay_over();

  // `delay` is how long to wait before a restart.
  Actions heard(News news, Duration delay);
  // `departures_left`: whether the job may go on without a node that is lost.
  Actions membership(const rendezvous::Status& status, bool departures_left = true);
  Actions confirmation_late();
  // The store is gone for good: no round can be joined and nothing confirmed any more. Workers that
  // run may not need it.
  Actions store_lost();
  Actions signalled(int signal);
  // The agent itself met something it cannot go on after.
  Actions broke();

  Phase phase() const { return phase_; }
  GroupState state() const { return state_; }
  // Why workers were stopped last.
  StopCause last_cause() const { return cause_; }
  Outcome outcome() const { return outcome_; }  // once Done
  int signal() const { return signal_; }        // the one that ends us; 0: none

 private:
  // What comes after Stopping.
  enum class Next { Join, End };

  Actions stop(StopCause cause, Next next, Outcome outcome);
  Actions join();
  Actions end(Outcome outcome);

  std::int64_t worker_count_;
  Phase phase_ = Phase::Joining;
  GroupState state_ = GroupState::Init;
  std::int64_t running_count_ = 0;
  StopCause cause_ = StopCause::Failure;
  Next next_ = Next::Join;
  Duration delay_ = Duration::zero();
  bool undecided_ = false;  // a last failure that a departure may still explain
  Outcome outcome_ = Outcome::Error;
  int signal_ = 0;
};

}  // namespace muster::agent
