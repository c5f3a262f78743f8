// What the elastic backends have in common when they make a handler.
#pragma once

#include "muster/backends/machine.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/rendezvous/driver.h"
#include "muster/rendezvous/dynamic_handler.h"
#include "muster/rendezvous/environment.h"
#include "muster/rendezvous/handler.h"
#include "muster/rendezvous/parameters.h"
#include "muster/store/store.h"

#include <memory>
#include <string>

namespace muster::backends {

// Checks the options, logs what is odd about them, and fills in all but the driver, its foundation
// and the round's store. Requires: everything outlives the handler.
Task<Result<rendezvous::DynamicHandlerParts>> begin_parts(Machine& machine,
                                                          const rendezvous::Parameters& parameters,
                                                          rendezvous::Environment& environment);

// Makes the driver that the store allows, and the views of it for the rounds. `owner` is what the
// store belongs to; it lives as long as the handler and the rounds' stores.
void drive_over_store(rendezvous::Environment& environment, std::shared_ptr<void> owner,
                      store::Store& store, rendezvous::DynamicHandlerParts& parts);

// A view that keeps its owner alive.
std::shared_ptr<store::Store> view_of(std::shared_ptr<void> owner, store::Store& store,
                                      std::string prefix);

// For the driver's options: what happens to this node, as events.
std::function<void(rendezvous::NodeState, std::string)> reporter(
    rendezvous::Environment& environment, const rendezvous::DynamicHandlerParts& parts);

}  // namespace muster::backends
