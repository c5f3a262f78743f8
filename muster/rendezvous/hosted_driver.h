// HostedDriver: a node's side of a run that the store server hosts.
//
// Keeps one conversation with the server's Host. A join is one message and its answer comes when
// the round is complete; what members must know is pushed. A lost connection is opened again, and
// the node says where it was: within its grace nobody notices, and a server that was restarted
// takes the run over from what its nodes say.
//
// Owned by a DynamicHandler, on its loop.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/rendezvous/driver.h"
#include "muster/rendezvous/events.h"
#include "muster/rendezvous/node.h"
#include "muster/rendezvous/settings.h"
#include "muster/store/service.h"

#include <functional>
#include <memory>
#include <string>

namespace muster::rendezvous {

struct HostedDriverOptions {
  // Told of what happens to this node; may be empty.
  std::function<void(NodeState state, std::string message)> report;
};

// Requires: `loop`, `random` and `services` outlive the driver.
std::unique_ptr<Driver> make_hosted_driver(Loop& loop, Random& random,
                                           store::ServiceClient& services, Settings settings,
                                           Node node, HostedDriverOptions options);

}  // namespace muster::rendezvous
