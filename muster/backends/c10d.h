// The backends that keep a run in a key-value store:
//
//   c10d    what torchrun users type: the node that the endpoint names starts the store server, all
//           connect to it. Served by a Muster node, the server hosts the run; a store of PyTorch's
//           is only compared and set. With store_type=file, the endpoint is a file.
//   muster  connects to a `muster store serve`, which hosts the run.
//   file    a file that all nodes share.
#pragma once

#include "muster/backends/machine.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/rendezvous/environment.h"
#include "muster/rendezvous/handler.h"
#include "muster/rendezvous/parameters.h"
#include "muster/store/tcp_store.h"

#include <memory>

namespace muster::backends {

inline constexpr int kC10dPort = 29400;
inline constexpr int kMusterPort = 29500;

// Requires: all arguments outlive the task, and `machine` and what the environment refers to also
// the handler.
using HandlerTask = Task<Result<std::unique_ptr<rendezvous::Handler>>>;
HandlerTask create_c10d(Machine& machine, const rendezvous::Parameters& parameters,
                        rendezvous::Environment& environment);
HandlerTask create_muster(Machine& machine, const rendezvous::Parameters& parameters,
                          rendezvous::Environment& environment);
HandlerTask create_file(Machine& machine, const rendezvous::Parameters& parameters,
                        rendezvous::Environment& environment);

}  // namespace muster::backends
