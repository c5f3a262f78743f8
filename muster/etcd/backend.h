// Backend: a run's state in etcd, with leases for signs of life and watches for signals.
//
//   <prefix>/rendezvous/<run id>/state         the blob behind a header with a random write id; the
//                                              token is its mod revision
//   <prefix>/rendezvous/<run id>/signal        put in the same transaction as a state with signal
//   <prefix>/rendezvous/<run id>/alive/<node>  on the lease of the backend object that beats for it
//   <prefix>/rendezvous/<run id>/wish/<node>   what a node that joins wants, on the same lease
//
// "/" and "%" in a run id are written as %2F and %25. A write without an answer (a member died) is
// sent again: it is bound to the token, so it counts once, and the write id in the history of the
// key tells whether it was ours. The state stays until somebody deletes it.
#pragma once

#include "muster/etcd/client.h"
#include "muster/rendezvous/backend.h"

#include <memory>
#include <string>

namespace muster::etcd {

// Lives on the client's loop. Requires: `client` outlives it; the run id is not empty.
std::unique_ptr<rendezvous::Backend> make_backend(Client& client, std::string run_id);

// The key under which a run's state is kept, for messages and tests.
std::string state_key(const Client& client, std::string_view run_id);

}  // namespace muster::etcd
