// SharedDriver: runs the rules at every node, over a state that all nodes compare and set.
//
// For stores that are not Muster's own: one hosted by PyTorch, etcd, a shared file. A node reads
// the state, decides, changes its copy and writes it back with the token of what it read; whoever
// loses the race decides anew on the winner's state. What keeps a crowd from trampling itself:
// several decisions in a row are one write; one writes for all who have made known what they want
// (wishes.h); a lost write is followed by a random pause that grows with the number of contenders;
// waiting is for signals, which only changes that matter give; signs of life are keys of their own.
//
// Owned by a DynamicHandler, on its loop.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/rendezvous/backend.h"
#include "muster/rendezvous/driver.h"
#include "muster/rendezvous/events.h"
#include "muster/rendezvous/node.h"
#include "muster/rendezvous/settings.h"

#include <functional>
#include <memory>

namespace muster::rendezvous {

struct SharedDriverOptions {
  Duration cache = std::chrono::seconds(1);
  // Before the first join, so that nodes started together do not all read the same state.
  Duration jitter_max = std::chrono::milliseconds(300);
  // Told of every write and every action; may be empty.
  std::function<void(NodeState state, std::string message)> report;
};

// Requires: `loop`, `random` and `backend` outlive the driver.
std::unique_ptr<Driver> make_shared_driver(Loop& loop, Random& random, Backend& backend,
                                           Settings settings, Node node,
                                           SharedDriverOptions options);

}  // namespace muster::rendezvous
