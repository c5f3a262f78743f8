// Ledger: all that one worker knows about remote references, and what follows from each event.
//
// Pure: no I/O, no clock, no threads, no futures. Owned by one agent's shell, which locks around
// every call and carries out the Effects after the lock is released: sending a message and
// completing a future may both come back here. References and forks are known by their ids; the
// handles and the values live in the shell.
//
// The owner's side. One entry for each reference that is owned here and known elsewhere:
//
//   state     event                                     to        effect
//   -         fork request, fetch, received from a      Expected  (creation is under way; a fetch
//             user, before the creation came                      waits)
//   -, Exp.   begin_creation: Run                       Running
//   Running   created                                   Existing  ready; released at once when all
//                                                                 its forks have ended meanwhile
//   -         create_self, fork_owned                   Existing
//   Existing  its last fork ends                        -         released
//   Expected  its creator lets go, no fork is left      -         failed
//   Expected  its creator is lost                       -         failed, whoever has forks of it
//   Expected  its last fork ends, and nobody waits      -
//
// The user's side. One entry for each handle (fork) here:
//
//   state       event                                   to         effect
//   -           create                                  Creating
//   -           received from its owner                 Confirmed
//   -           received from another user              Requesting fork request
//   Creating    creation_finished, well                 Confirmed  settled
//   Creating    creation_finished, badly                Failed     settled with the error
//   Requesting  fork request: Done                      Confirmed  settled, child accept
//   Requesting  fork request: Ended                     Failed     settled, child accept
//   Requesting  fork request fails for good             Failed     settled, child accept, and a
//                                                                  delete, as only its answer may
//                                                                  be lost
//   any         its owner is lost                       Failed     settled
//   Confirmed,  dropped, and none of its own forks      -          delete, unless the owner cannot
//   Failed      waits to be accepted                               know it
//
// A handle that is dropped earlier lives on here until that can happen, and only then is the owner
// told. A fork that a user gives away is a pending child: it keeps the parent's handle until the
// child accepts it, until it is undone, or until the child's worker is lost.
//
// Nobody acknowledges a response. So forks that went with one are known by its connection, and when
// that is lost the intended child is asked for each of them that still counts.
//
// Workers are known by id. Two processes that have the same id one after the other must be kept
// apart by the shell: it says worker_lost for the old one and then worker_joined, drops what it has
// queued of the old one, and never hands over a message of a process that is not the present one. A
// worker that was cut off and comes back as a new member says worker_lost for all the others and
// goes on with another series of ids before it says worker_joined for any; the others treat it as a
// new process. Whoever is named in fork data and is no member of the group, no more or not yet,
// must count as lost, too, or messages to it wait for ever.
//
// Limits: see EndedIds for what is remembered. A control message that fails for good though its
// destination is not lost (other than a fork request, which fails its handle) is kept and sent
// again with worker_heard or the next control message from there.
#pragma once

#include "muster/rpc/call_error.h"
#include "muster/rpc/freight.h"
#include "muster/rpc/message.h"
#include "muster/rref/control.h"
#include "muster/rref/ended_ids.h"
#include "muster/rref/ids.h"

#include <boost/unordered/unordered_flat_map.hpp>
#include <boost/unordered/unordered_flat_set.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace muster::rref {

// Names one control message from its Send until it is acked or has failed. Never used again.
using Ticket = std::uint64_t;

// What the shell has to do. Several events may write into one. `ready` comes before `released`,
// which may name the same reference; otherwise nothing depends on the order.
struct Effects {
  // To be sent with retries, perhaps to this worker itself; its end is reported with `acked` or
  // `failed`, exactly once.
  struct Send {
    Ticket ticket = 0;
    WorkerId to = 0;
    rpc::MessageType type = rpc::MessageType::Unknown;
    std::string payload;
  };
  // A user's handle is confirmed, or has failed: what waits for it goes on, or fails with the
  // error. A confirmed one may fail later, when its owner is lost.
  struct Settled {
    GlobalId fork;
    std::optional<rpc::CallError> error;
  };
  // The reference will never exist: the fetches and the local handles that wait for it fail, and
  // the shell forgets it.
  struct FailedOwner {
    GlobalId rref;
    rpc::CallError error;
  };

  // Somebody has let go of what is not known here: its creation never came, or the message came
  // before. Only to be logged.
  struct Unknown {
    GlobalId rref;
    GlobalId fork;
  };

  std::vector<Send> sends;
  std::vector<Settled> settled;
  std::vector<GlobalId> ready;      // created: the fetches that wait for it can be answered
  std::vector<FailedOwner> failed;  // see FailedOwner
  std::vector<GlobalId> released;   // the tables no longer hold the value: drop it, unless a
                                    // local handle has it
  std::vector<Ticket> abandoned;    // their destination is lost: not to be sent again; their end
                                    // is still reported
  std::vector<Unknown> unknown;     // see Unknown

  bool empty() const;
};

struct LedgerOptions {
  WorkerId self = 0;
  std::size_t ended_ids_max = kEndedIdsMax;
};

class Ledger {
 public:
  // Requires: `ids` outlives it.
  Ledger(const LedgerOptions& options, IdSource& ids);

  // ---- handles of values that are owned elsewhere -----------------------------------------------

  struct NewReference {
    GlobalId rref;
    GlobalId fork;
  };
  // `remote` to another worker. The handle is pending until creation_finished. Fails when the owner
  // is lost. Requires: owner is not this worker.
  rpc::CallResult<NewReference> create(WorkerId owner);
  // The call that creates it has ended, with this error if there is one. Whatever the error is, the
  // handle has failed; the owner may have created it all the same, or may still do so, and is told
  // of the handle's end as ever.
  void creation_finished(GlobalId fork, const std::optional<rpc::CallError>& error, Effects& out);
  // The last local handle of this fork is gone; to be said of those that have failed, too. Does
  // nothing for one that is not known (any more).
  void dropped(GlobalId fork, Effects& out);

  enum class State { Pending, Confirmed, Failed, Deleted };
  State state_of(GlobalId fork) const;
  // Why a handle cannot be used: it has failed, or was deleted by end_users. `rref` and `operation`
  // ("call to_here() on it") are for the text.
  struct Use {
    GlobalId rref;
    GlobalId fork;
    std::string_view operation;
  };
  std::optional<rpc::CallError> use_error(const Use& use) const;

  // ---- forking
  // ------------------------------------------------------------------------------------

  // Gives a handle of this fork to worker `to`, which may be the owner or this worker. The type in
  // the answer is left empty. Fails when the handle has failed or is deleted, or `to` is lost.
  // `by`: the connection, if it goes with a response.
  rpc::CallResult<ForkData> fork_user(GlobalId rref, GlobalId fork, WorkerId to,
                                      rpc::ConnectionNumber by = rpc::kNoConnection);
  // The same for a value that is owned here, whether or not the tables know it. They hold it from
  // now on, until it is released.
  rpc::CallResult<ForkData> fork_owned(GlobalId rref, WorkerId to,
                                       rpc::ConnectionNumber by = rpc::kNoConnection);
  // The message that carried this fork was never sent. Does nothing for a fork that is settled.
  void undo_fork(GlobalId fork, Effects& out);
  // It is not known whether the message arrived: a timeout, a lost connection, a response that
  // nobody acknowledges. The intended child is asked, and either has it or never will. Harmless for
  // a fork that arrived, but one that is still on its way is then lost; so not too early.
  void fork_uncertain(GlobalId fork, Effects& out);
  // The connection is lost, and nothing that was sent by it can still arrive: all forks that went
  // by it are uncertain.
  void connection_lost(rpc::ConnectionNumber connection, Effects& out);

  enum class Arrival {
    Owner,      // the value is owned here; use it (it may not exist yet)
    Confirmed,  // a handle
    Pending,    // a handle that waits for its owner: `settled` will tell
    Failed,     // a handle that is of no use, for the reason in `error`
  };
  struct Received {
    Arrival arrival = Arrival::Failed;
    std::optional<rpc::CallError> error;
  };
  // A message brought this fork. For Owner, the shell takes its handle of the value before it
  // carries out the effects, which may release it.
  Received received(const ForkData& data, Effects& out);

  // ---- values that are owned here
  // -----------------------------------------------------------------

  // A local reference: only a name. It is in no table until it is forked.
  GlobalId create_local();
  // `remote` to this worker: it exists at once, and stands for its own fork until self_finished.
  GlobalId create_self();
  // The call has ended, well or not. The request that comes later, if it timed out, still runs.
  void self_finished(GlobalId rref, Effects& out);

  enum class Creation {
    Run,
    RunAndDiscard,  // its creator has let go before: nobody will ask for the value
    Refuse,         // answered with `error`
  };
  struct Begin {
    Creation creation = Creation::Refuse;
    std::optional<rpc::CallError> error;
  };
  // A remote call arrived. To be called at once, before its arguments are waited for, so that the
  // ledger knows who loses it when its caller is lost. `fork` is what the call says.
  Begin begin_creation(GlobalId rref, GlobalId fork, WorkerId from);
  // The function that begin_creation told to Run has returned, or could not be run: then that is
  // the error in the reference. Only now do the counters show it.
  void created(GlobalId rref, Effects& out);

  enum class FetchAnswer {
    Ready,    // the reference exists; its value may still be in the making
    Wait,     // until Effects name it as ready or failed
    Refused,  // it has ended, or will never be: answered with `error`
  };
  struct Fetch {
    FetchAnswer answer = FetchAnswer::Refused;
    std::optional<rpc::CallError> error;
  };
  Fetch fetch(const FetchCall& call, WorkerId from);
  // Whether the tables hold this reference.
  bool holds(GlobalId rref) const { return owners_.contains(rref); }

  // ---- control messages
  // ---------------------------------------------------------------------------

  // One arrived. The payload of the RREF_ACK that answers it, or the error for an EXCEPTION: bytes
  // that are none, or a sender that is lost.
  rpc::CallResult<std::string> on_control(WorkerId from, rpc::MessageType type,
                                          std::string_view payload, Effects& out);
  // A Send was answered by RREF_ACK with this payload.
  void acked(Ticket ticket, std::string_view payload, Effects& out);
  // A Send has failed for good.
  void failed(Ticket ticket, const rpc::CallError& error, Effects& out);
  // There is a connection to this worker again.
  void worker_heard(WorkerId worker, Effects& out);

  // ---- workers
  // ------------------------------------------------------------------------------------

  // The worker has died or left. What it held here is released, what it owned has failed, and
  // nothing is sent to it or accepted from it until it joins again. `reason` names it.
  void worker_lost(WorkerId worker, std::string_view reason, Effects& out);
  // A new process has the id. `first_id`: the series it draws its ids from begins there. So
  // references that came from or belong to another process with the same id are told apart: nobody
  // waits for their creation, and handles of them are of no use. Nothing if it is not known.
  // Workers of a group that never changes need not be announced; others must be, with it, from the
  // start.
  void worker_joined(WorkerId worker, std::optional<std::int64_t> first_id = std::nullopt);
  bool is_lost(WorkerId worker) const { return lost_.contains(worker); }

  // ---- the end
  // ------------------------------------------------------------------------------------

  // Ends every handle of values that are owned elsewhere as if it were dropped, though programs may
  // still have it; what is pending ends when it is settled. May be repeated.
  void end_users(Effects& out);
  // Drops the owned references that nobody has a fork of, but for those that are being created.
  void end_unforked_owners(Effects& out);
  // What keeps handles from being ended, for the log of a worker that has waited long enough: a
  // line for each that waits for its owner, and for each fork that waits to be accepted.
  std::string unsettled_report() const;
  // From now on nothing is sent.
  void stop() { is_stopped_ = true; }

  // A fork that another worker has of a reference that is owned here.
  struct HeldFork {
    GlobalId rref;
    GlobalId fork;
    WorkerId holder = 0;

    // By reference, then by fork.
    friend bool operator<(const HeldFork& left, const HeldFork& right) {
      return std::tie(left.rref, left.fork) < std::tie(right.rref, right.fork);
    }
    friend bool operator==(const HeldFork&, const HeldFork&) = default;
  };
  // All of them, in order; those of functions that still run are not among them.
  std::vector<HeldFork> held_forks() const;
  // Whether this fork counts for this reference, which is owned here; the creator's counts from the
  // moment its call begins.
  bool has_fork(GlobalId rref, GlobalId fork) const;
  // One line "Leaking RRef <id> with fork Id <id>" for each; empty when there is none.
  std::string leak_report() const;

  // ---- figures
  // ------------------------------------------------------------------------------------

  struct Counters {
    std::size_t owner_rrefs = 0;
    std::size_t pending_futures = 0;  // control messages under way, but for those that nobody gets
    std::size_t pending_users = 0;
    std::size_t forks = 0;
    std::size_t pending_children = 0;

    friend bool operator==(const Counters&, const Counters&) = default;
  };
  Counters counters() const;
  // Under the names that programs know: num_owner_rrefs and so on.
  std::map<std::string, std::string> debug_info() const;
  // Whether nothing at all is kept here but the memory of what has ended.
  bool is_empty() const;
  // All handles here, dropped ones included: for tests and the debug view.
  std::vector<GlobalId> user_forks() const;
  // Control messages that wait for worker_heard.
  std::size_t parked_count() const;

 private:
  template <typename Value>
  using ById = boost::unordered_flat_map<GlobalId, Value, std::hash<GlobalId>>;

  // The owner's side. The creator's fork is a bit here and not an entry of forks_, since most
  // references never have another one.
  struct Owner {
    std::uint32_t fork_count = 0;  // those in forks_, the creator's and the stand-in
    std::uint8_t flags = 0;
  };
  struct Fork {
    GlobalId rref;
    WorkerId holder = 0;
    rpc::ConnectionNumber by = rpc::kNoConnection;
  };
  struct FlagChange {
    std::uint8_t set = 0;
    std::uint8_t clear = 0;
  };

  // The user's side.
  enum class UserState : std::uint8_t { Creating, Requesting, Confirmed, Failed };
  struct User {
    GlobalId rref;
    std::uint32_t child_count = 0;
    WorkerId owner = 0;
    UserState state = UserState::Creating;
    std::uint8_t flags = 0;
  };
  struct Child {
    GlobalId parent;  // the fork of ours that it was made from
    WorkerId to = 0;
    rpc::ConnectionNumber by = rpc::kNoConnection;
  };
  struct Pending {
    Control control;
    WorkerId to = 0;
    WorkerId parent = 0;        // of a fork request: who is to be told
    bool is_abandoned = false;  // its destination is lost
  };

  // ledger_owner.cpp
  void count_owner(const Owner& owner, bool is_in);
  void change_owner(Owner& owner, const FlagChange& change);
  Owner& owner_entry(GlobalId rref, std::uint8_t flags_if_new);
  // Whether this is the handle that `remote` gave to the creator.
  bool is_creators(GlobalId rref, GlobalId fork) const;
  bool remove_fork(GlobalId rref, GlobalId fork);
  void settle_owner(GlobalId rref, Effects& out);
  void fail_owner(GlobalId rref, const rpc::CallError& error, Effects& out);
  void erase_owner(GlobalId rref);
  // Why a reference that is not known will never be.
  std::optional<rpc::CallError> why_never(GlobalId rref) const;
  // Its creator let go before its creation came, which may still come.
  bool is_given_up(GlobalId rref) const;
  Ack on_fork_request(WorkerId from, const Control& control);
  void on_user_delete(const Control& control, Effects& out);
  Received received_own(const ForkData& data, Effects& out);
  void owners_lose(WorkerId worker, Effects& out);

  // ledger_user.cpp
  static bool is_pending(const User& user);
  void confirm_user(GlobalId fork, Effects& out);
  void fail_user(GlobalId fork, rpc::CallError error, Effects& out);
  void end_user_if_possible(GlobalId fork, Effects& out);
  void release_child(GlobalId fork, Effects& out);
  Received received_foreign(const ForkData& data, Effects& out);
  void fork_request_ended(const Pending& request, const std::optional<rpc::CallError>& error,
                          Effects& out);
  void users_lose(WorkerId worker, Effects& out);

  // ledger.cpp
  GlobalId draw(std::int64_t count = 1);
  // What is known of a control message that has ended; nothing if there is none.
  std::optional<Pending> take_pending(Ticket ticket);
  // Nothing when the destination is lost or the ledger is stopped.
  void send(WorkerId to, const Control& control, Effects& out, WorkerId parent = 0);
  Ack on_fork_cancel(const Control& control);
  rpc::CallError lost_error(WorkerId worker) const;
  // Of the process that has this id now.
  std::int64_t series_of_worker(WorkerId worker) const;
  // Whether an id or a handle that belongs to `series` is of another process than the present one.
  bool is_other_process(WorkerId worker, std::int64_t series) const;

  WorkerId self_;
  IdSource& ids_;
  bool is_stopped_ = false;
  EndedIds ended_;

  ById<Owner> owners_;
  ById<Fork> forks_;
  std::size_t owner_count_ = 0;         // as the counters show them
  std::size_t creator_fork_count_ = 0;  // likewise: the forks that are not in forks_

  ById<User> users_;
  ById<rpc::CallError> failures_;  // of those that have failed
  ById<Child> children_;
  std::size_t pending_user_count_ = 0;

  boost::unordered_flat_map<Ticket, Pending> pending_;
  std::size_t abandoned_count_ = 0;                                   // of them
  boost::unordered_flat_map<WorkerId, std::vector<Control>> parked_;  // by destination
  Ticket next_ticket_ = 1;
  boost::unordered_flat_map<WorkerId, std::string> lost_;     // with the reasons
  boost::unordered_flat_map<WorkerId, std::int64_t> series_;  // of those that are known
};

}  // namespace muster::rref
