// DynamicHandler: the handler of every elastic backend. A driver decides who is in a round; this
// adds what a complete round comes with: a store of its own, and where the workers find the one
// they begin with.
//
// Owned by the agent; lives on the loop of its environment.
#pragma once

#include "muster/rendezvous/driver.h"
#include "muster/rendezvous/environment.h"
#include "muster/rendezvous/handler.h"
#include "muster/rendezvous/node.h"
#include "muster/rendezvous/settings.h"
#include "muster/store/store.h"

#include <functional>
#include <memory>
#include <string>

namespace muster::rendezvous {

struct DynamicHandlerParts {
  std::string backend;
  Settings settings;
  Node node;
  // Where the workers of this node, if it is rank 0, are to look for the store: the configured
  // local address or this machine's name.
  std::string local_addr;
  std::string master_endpoint;  // of the store, for events
  bool hosts_store = false;     // the store is in this process
  std::string store_on_node;    // its address, if it is in another agent's process

  // What the driver uses besides; destroyed after it.
  std::shared_ptr<void> foundation;
  std::unique_ptr<Driver> driver;
  // The store of one round: a view of the backend's store with this prefix.
  std::function<std::shared_ptr<store::Store>(std::string prefix)> round_store;
  // Whether this agent is to host the store that workers begin with. Asked in every round.
  std::function<bool()> shares_store;
  // Starts the store server for the workers, or empties it for those of a new round; its port.
  std::function<Result<int>()> bootstrap_port;
  // A port on which nothing listens now, where nothing is hosted.
  std::function<Result<int>()> free_port;
};

std::unique_ptr<Handler> make_dynamic_handler(Environment& environment, DynamicHandlerParts parts);

}  // namespace muster::rendezvous
