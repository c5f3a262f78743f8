// MemoryStore: a Store inside one process, on one loop. The reference the other stores are compared
// with, and what tests of everything above use.
#pragma once

#include "muster/base/loop.h"
#include "muster/store/store.h"

#include <memory>

namespace muster::store {

// Requires: `loop` outlives the store.
std::unique_ptr<Store> make_memory_store(Loop& loop);

}  // namespace muster::store
