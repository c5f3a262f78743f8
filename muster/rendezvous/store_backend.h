// StoreBackend: the state of a run in any Store, such as one hosted by PyTorch or a shared file.
//
//   muster.rendezvous.<run id>                 which write is the present one: the pointer
//   muster.rendezvous.<run id>/state/<write>   what that write wrote: the blob
//   muster.rendezvous.<run id>/signal/<n>      there when the nth write with a signal was made
//   muster.rendezvous.<run id>/alive/<node>    a counter, the node's sign of life
//
// A compare-and-set of the blob itself would move it three times. So a writer first puts its blob
// beside the others, and then compares and sets the pointer, which is small and unique; the pointer
// is the fencing token. Waiting is a wait for the key of the next signal: no polling, on any store.
#pragma once

#include "muster/base/random.h"
#include "muster/rendezvous/backend.h"
#include "muster/store/store.h"

#include <memory>
#include <string>

namespace muster::rendezvous {

// Lives on the store's loop. Requires: `store` and `random` outlive it; the run id is not empty.
std::unique_ptr<Backend> make_store_backend(store::Store& store, Random& random,
                                            std::string run_id);

}  // namespace muster::rendezvous
