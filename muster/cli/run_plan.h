// What `muster run --dry-run` prints: the plan, without carrying it out.
#pragma once

#include "muster/launch/resolve.h"

#include <string>

namespace muster::cli {

// Nodes, rendezvous, workers with their command, environment and placement, logs, limits.
std::string describe_plan(const launch::LaunchConfig& config);

}  // namespace muster::cli
