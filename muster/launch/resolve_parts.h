// Parts of `resolve` that have files of their own.
#pragma once

#include "muster/base/error.h"
#include "muster/launch/resolve.h"

namespace muster::launch {

// Fills in `rendezvous`, `standalone` and `node_rank`; adds warnings.
Result<> resolve_rendezvous(const Options& options, const Facts& facts, LaunchConfig& config);

// Fills in `logs`; adds warnings.
Result<> resolve_logs(const Options& options, const Facts& facts, LaunchConfig& config);

}  // namespace muster::launch
