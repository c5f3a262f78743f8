// Driver: runs the rules for one node. Two implementations: `SharedDriver`, over a state that all
// nodes compare and set, and `HostedDriver`, through the store server, which runs them for all.
//
// Owned by a DynamicHandler, which calls one of join, leave and close at a time; lives on its loop.
// Every method is a task; destroy it to cancel it. After a cancelled join, `leave` takes its traces
// back.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/rendezvous/handler.h"
#include "muster/rendezvous/snapshot.h"

#include <cstdint>

namespace muster::rendezvous {

// A round of a run. Rounds of a run that was forgotten and began again have another birth.
struct RoundId {
  std::uint64_t birth = 0;
  std::uint64_t round = 0;

  friend bool operator==(const RoundId&, const RoundId&) = default;
};

// A node's place in a complete round: frozen when it completed, the same in the eyes of all
// members.
struct Place {
  RoundId id;
  std::int64_t rank = 0;
  std::int64_t world_size = 0;

  friend bool operator==(const Place&, const Place&) = default;
};

class Driver {
 public:
  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  virtual ~Driver() = default;

  // Leaves the round this node is in, if any, and joins the next. From then on this node gives
  // signs of life. Lost connections are opened again until the deadline. A failed join leaves no
  // traces, as far as that can be done in a few seconds.
  virtual Task<Result<Place>> join(TimePoint deadline) = 0;
  virtual Task<Result<>> leave(TimePoint deadline) = 0;
  virtual Task<Result<>> close(TimePoint deadline) = 0;

  // Asks, if what is known is not fresh. While the store cannot be reached the last known status is
  // given, but not for longer than a node may be silent.
  virtual Task<Result<Status>> look() = 0;
  virtual Status status() const = 0;
  virtual Task<Result<Status>> wait_status(Status seen, TimePoint deadline) = 0;
  // For people.
  virtual Task<Result<Snapshot>> snapshot() = 0;

  // No more signs of life, no more news.
  virtual void stop() = 0;
};

}  // namespace muster::rendezvous
