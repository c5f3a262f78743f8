// The share of CPU time that cgroups leave to this process.
#pragma once

#include <optional>
#include <string>

namespace muster::launch {

struct FactsRoots;

// The quota of this process' cgroup and of those above it, v2 or v1, whichever is smallest, in
// CPUs; nothing if there is none.
std::optional<double> read_cpu_quota(const FactsRoots& roots);

}  // namespace muster::launch
