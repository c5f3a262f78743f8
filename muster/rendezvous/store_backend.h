// StoreBackend: the state of a run in any Store, such as one hosted by PyTorch or a shared file.
//
//   muster.rendezvous.<run id>                 which write is the present one: the pointer
//   muster.rendezvous.<run id>/state/<write>   what that write wrote: the blob
//   muster.rendezvous.<run id>/signal/<n>      there when the nth write with a signal was made
//   muster.rendezvous.<run id>/alive/<node>    changes, the node's sign of life
//   muster.rendezvous.<run id>/wish/count      how many wishes there have been
//   muster.rendezvous.<run id>/wish/<n>        the nth wish, until it has been dealt with
//
// A compare-and-set of the blob itself would move it three times. So a writer first puts its blob
// beside the others, and then compares and sets the pointer, which is small and unique; the pointer
// is the fencing token. Waiting is a wait for the key of the next signal: no polling, on any store.
//
// What is removed need not be removable: keys that stay (the store cannot delete, or whoever should
// have done it died) are never looked at again.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/rendezvous/backend.h"
#include "muster/store/store.h"

#include <memory>
#include <string>

namespace muster::rendezvous {

// `loop` is the store's. Requires: `store` and `random` outlive it; the run id is not empty.
std::unique_ptr<Backend> make_store_backend(Loop& loop, store::Store& store, Random& random,
                                            std::string run_id);

}  // namespace muster::rendezvous
