// Inspector: looks at a run from outside, for people: who is in it, and whether it goes on. Takes
// no part in it.
//
// Owned by a command; lives on its loop.
#pragma once

#include "muster/backends/machine.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/rendezvous/environment.h"
#include "muster/rendezvous/parameters.h"
#include "muster/rendezvous/snapshot.h"

#include <memory>

namespace muster::backends {

class Inspector {
 public:
  Inspector() = default;
  Inspector(const Inspector&) = delete;
  Inspector& operator=(const Inspector&) = delete;
  virtual ~Inspector() = default;

  virtual Task<Result<rendezvous::Snapshot>> snapshot() = 0;
  // Waits until the run has changed since the last snapshot, or until the deadline.
  virtual Task<Result<>> wait_change(TimePoint deadline) = 0;
  // For everybody and for good. Closes also a run that nobody has joined yet.
  virtual Task<Result<>> close() = 0;
};

// Connects to the store that the parameters name; never hosts one. The backends are those with a
// run to look at: c10d, muster, file, etcd. Requires: `loop`, `machine` and `random` outlive it.
Task<Result<std::unique_ptr<Inspector>>> make_inspector(net::EpollLoop& loop, Machine& machine,
                                                        Random& random,
                                                        rendezvous::Parameters parameters);

}  // namespace muster::backends
