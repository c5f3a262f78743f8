// Environment: what every handler needs from the outside world. A backend that needs more, such as
// sockets, gets it through its creator.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/rendezvous/events.h"

namespace muster::rendezvous {

// Owned by whoever builds the object graph. What it refers to outlives every handler made with it.
struct Environment {
  Loop& loop;
  Random& random;
  EventSink* events = nullptr;  // nothing: events are not built at all
};

}  // namespace muster::rendezvous
