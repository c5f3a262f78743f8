// Placement: which CPUs a process may run on and where its memory comes from.
//
// Set by the child itself between its birth and the start of its program, so that not even its
// first page lies on the wrong node; no helper program such as numactl is needed.
#pragma once

#include <vector>

namespace muster::process {

struct Placement {
  // Default leaves the policy as it is inherited. Bind fails allocations rather than take memory
  // from other nodes; Prefer falls back to them.
  enum class Memory { Default, Bind, Prefer };

  std::vector<int> cpus;  // empty: as inherited
  Memory memory = Memory::Default;
  std::vector<int> nodes;  // of memory; empty: as inherited, whatever `memory` says

  friend bool operator==(const Placement&, const Placement&) = default;
};

// The most CPUs and memory nodes we can name: one past the highest index.
inline constexpr int kCpuCountMax = 8192;
inline constexpr int kNodeCountMax = 1024;

}  // namespace muster::process
