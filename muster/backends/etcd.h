// The etcd backend: a run's state, its nodes' leases and its rounds' stores in etcd v3.
#pragma once

#include "muster/backends/c10d.h"
#include "muster/etcd/client.h"
#include "muster/net/epoll_loop.h"

namespace muster::backends {

// Connection options from parameters: several endpoints, TLS, user and password.
Result<etcd::Options> etcd_options(const rendezvous::Parameters& parameters);

// Requires: as for create_c10d; the environment's loop is `loop`.
HandlerTask create_etcd(net::EpollLoop& loop, Machine& machine,
                        const rendezvous::Parameters& parameters,
                        rendezvous::Environment& environment);

}  // namespace muster::backends
