// The static backend: every node is told its rank, nobody is waited for beyond that. For schedulers
// that know all nodes from the start.
#pragma once

#include "muster/backends/c10d.h"

namespace muster::backends {

// Options: `rank`, required, and `timeout`. The endpoint names host and port of rank 0, which hosts
// the store. Requires: as for create_c10d.
HandlerTask create_static(Machine& machine, const rendezvous::Parameters& parameters,
                          rendezvous::Environment& environment);

}  // namespace muster::backends
