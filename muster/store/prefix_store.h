// PrefixStore: a view of another store in which every key starts with `prefix` + "/", as PyTorch's
// PrefixStore joins them. Counting keys is global, as there: the count is that of the whole store.
#pragma once

#include "muster/store/store.h"

#include <memory>
#include <string>

namespace muster::store {

// Requires: `inner` outlives the view.
std::unique_ptr<Store> make_prefix_store(std::string prefix, Store& inner);

}  // namespace muster::store
