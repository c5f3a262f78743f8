// StateHolder: one node's copy of the shared state, and how it gets to and from the backend.
//
// Owned by one SharedDriver, on its loop; one `sync` at a time.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/rendezvous/backend.h"
#include "muster/rendezvous/settings.h"
#include "muster/rendezvous/sightings.h"
#include "muster/rendezvous/state.h"

#include <optional>
#include <vector>

namespace muster::rendezvous {

class StateHolder {
 public:
  struct Options {
    // How long a copy counts as fresh; zero for never.
    Duration cache = std::chrono::seconds(1);
  };
  // Requires: all references outlive the holder.
  StateHolder(Loop& loop, Random& random, Backend& backend, const Settings& settings,
              Sightings& sightings, Options options);

  enum class Outcome {
    Read,  // nothing was to be written
    Won,   // our changes are stored
    // Somebody was faster: the copy is theirs now, and our changes are gone. Or there was no state
    // any more: then our changes are still to be written.
    Lost,
  };
  // Writes our changes if there are some; else reads, unless the copy is fresh. Then drops the
  // nodes that have been silent for too long from the copy; whoever wants that to be known edits.
  Task<Result<Outcome>> sync();

  const State& state() const { return state_; }
  // For changing it; the next `sync` writes.
  State& edit();
  bool dirty() const { return dirty_; }
  // Forgets changes that were not written, of an operation that was given up.
  void discard_edits();
  // The next `sync` reads, however fresh the copy is.
  void expire_cache() { last_sync_.reset(); }

  const std::optional<Token>& token() const { return token_; }
  std::optional<TimePoint> last_sync() const { return last_sync_; }
  // Judges the nodes by what was seen since, and drops the silent ones from the copy.
  void drop_silent();
  // Those dropped from the copy and still in what is stored.
  const std::vector<Node>& dropped() const { return dropped_; }

 private:
  void accept(State state);

  Loop& loop_;
  Random& random_;
  Backend& backend_;
  const Settings& settings_;
  Sightings& sightings_;
  const Options options_;
  State state_;
  State synced_;  // as stored; only while the copy differs
  std::optional<Token> token_;
  bool dirty_ = false;
  std::vector<Node> dropped_;
  std::optional<TimePoint> last_sync_;
};

}  // namespace muster::rendezvous
