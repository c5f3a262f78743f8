// A Store in etcd, for the processes of one round. Everything is under one root:
//
//   <root>k/<key>                        a key and its value, as they are
//   <root>q/<length>/<queue>/<item>      an item of a queue; their order is that of their creation
//   <root>b/<key>, <root>d/<key>         a barrier: its version counts arrivals; there when
//   complete <root>w/<store>, <root>f/<write>     which writes were carried out, and which must not
//   be any
//                                        more; both on a lease
//
// Waiting is by watch. Every write is carried out exactly once, even if the member that was asked
// dies before it answers: each puts its own random id into a key of this store object, in the same
// transaction, and the history of that key tells whether it happened. A write whose outcome cannot
// be found out is Closed.
//
// Limits are etcd's: a value of at most about 1 MiB with its default settings. Nothing is deleted
// when the round is over; `clear_store` does that.
#pragma once

#include "muster/etcd/client.h"
#include "muster/store/store.h"

#include <memory>
#include <string>

namespace muster::etcd {

// Lives on the client's loop. `root` is the whole beginning of its keys. Requires: `client`
// outlives it.
std::unique_ptr<store::Store> make_store(Client& client, std::string root);

// Deletes everything under `root`.
Task<Result<>> clear_store(Client& client, std::string root);

}  // namespace muster::etcd
