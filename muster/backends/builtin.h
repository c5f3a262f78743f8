// The backends that come with Muster: c10d, muster, file, etcd (also by PyTorch's name etcd-v2) and
// static.
#pragma once

#include "muster/backends/machine.h"
#include "muster/net/epoll_loop.h"
#include "muster/rendezvous/registry.h"

namespace muster::backends {

// Requires: `loop` and `machine`, on that loop, outlive the registry and the handlers it makes.
void add_builtin_backends(rendezvous::Registry& registry, net::EpollLoop& loop, Machine& machine);

}  // namespace muster::backends
