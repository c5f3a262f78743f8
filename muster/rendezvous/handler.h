// Handler: one node's seat in a rendezvous, whatever the backend.
//
// Every method is a task on the handler's loop; destroy it to cancel it. Errors: Closed (the run is
// closed), Timeout, Unavailable (the store cannot be reached), Corrupt (what it holds cannot be
// read), Finished (this node was a spare of a run that is over: end, and with success), Invalid
// (the arguments are wrong, or another call of next_rendezvous is still running).
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/store/store.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace muster::rendezvous {

// Where workers find the store they begin with.
struct StoreInfo {
  std::string master_addr = {};
  int master_port = 0;

  friend bool operator==(const StoreInfo&, const StoreInfo&) = default;
};

// What a completed round means for one of its members. All members see the same world size and
// different ranks 0 … world_size-1; both count nodes.
struct Info {
  // Scoped to the round. Shared by the handler, which stays connected through it, and the agent,
  // whose exit barrier may still use the store of a round that the handler has left.
  std::shared_ptr<store::Store> store = {};
  std::int64_t rank = 0;
  std::int64_t world_size = 0;
  std::uint64_t round = 0;
  StoreInfo bootstrap = {};
};

// What an agent reacts to while its workers run.
struct Status {
  std::uint64_t round = 0;
  std::int64_t waiting = 0;  // nodes that wait for a new round
  bool closed = false;
  bool lost = false;    // a member of the complete round is gone
  bool member = false;  // this node belongs to the round; false if the others gave it up for dead
  // The server cannot be reached just now, so the rest may be old. Known by some backends only.
  bool away = false;

  friend bool operator==(const Status&, const Status&) = default;
};

// Owned by the agent; lives on the loop of its environment. Destroying it stops its heartbeats and
// neither closes the run nor leaves it.
class Handler {
 public:
  Handler() = default;
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;
  virtual ~Handler() = default;

  // The name it was asked for by.
  virtual std::string_view backend() const = 0;
  virtual const std::string& run_id() const = 0;
  // Whether the store that `Info::bootstrap` names is hosted by the agents and outlives the
  // workers.
  virtual bool use_agent_store() const { return false; }
  // Whether the store of the rendezvous is in this process, so that the other nodes need it to stay
  // until they are through.
  virtual bool hosts_store() const { return false; }
  // Where the store of the rendezvous is, if the agent of another node hosts it: it ends with that
  // one. Empty otherwise, also if it is not known.
  virtual std::string store_on_node() const { return {}; }

  // Leaves the present round, if any, and waits until a new one is complete with this node in it.
  // One call at a time.
  virtual Task<Result<Info>> next_rendezvous() = 0;
  virtual Task<Result<bool>> is_closed() = 0;
  // Closes the run for everybody and for good. May be repeated.
  virtual Task<Result<>> set_closed() = 0;
  // Positive: stop the workers and call next_rendezvous.
  virtual Task<Result<std::int64_t>> num_nodes_waiting() = 0;
  // Stops background activity and closes the run. False if that could not be done, which is logged.
  // May be repeated.
  virtual Task<Result<bool>> shutdown() = 0;

  // Gives up membership without closing the run, so that the others may go on: for an agent that
  // was ended by a signal.
  virtual Task<Result<>> leave() = 0;

  // Rank 0 of a round calls this when the workers of all members have ended and before those of the
  // round are started: the store that workers begin with holds nothing of theirs afterwards.
  // Nothing to do where every round has a store of its own.
  virtual Task<Result<>> renew_bootstrap() { co_return Result<>(); }

  // What is known now, without asking anyone.
  virtual Status status() const = 0;
  // Waits until the status differs from `seen`, so that an agent need not poll; returns the status,
  // which at the deadline is still the old one.
  virtual Task<Result<Status>> wait_status(Status seen, TimePoint deadline) = 0;
};

}  // namespace muster::rendezvous
