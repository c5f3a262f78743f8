// NUMA binding: which CPUs and which memory each worker of this host gets.
//
// Pure, from a Topology that read_topology takes from sysfs. Whoever starts the workers applies the
// result between fork and exec; no `numactl` is needed.
#pragma once

#include "muster/base/error.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::launch {

enum class NumaMode {
  Node,         // all CPUs of the worker's NUMA node
  Socket,       // all CPUs of all nodes of that node's socket
  Exclusive,    // the node's physical cores, divided evenly among those who share the node
  CoreComplex,  // CPUs of the node that share one last-level cache
};
std::optional<NumaMode> parse_numa_mode(std::string_view text);
std::string_view name_of(NumaMode mode);

enum class NumaMemory { Default, Bind, Prefer };
std::optional<NumaMemory> parse_numa_memory(std::string_view text);
std::string_view name_of(NumaMemory memory);

// All lists are sorted.
struct Topology {
  struct Node {
    int id = 0;
    std::vector<int> cpus = {};
    bool has_memory = true;
  };
  struct Cpu {
    int id = 0;
    int package = 0;                      // the socket
    std::vector<int> siblings = {};       // the hardware threads of its core, itself included
    std::vector<int> cache_sharers = {};  // who shares its last data or unified cache
  };
  std::vector<Node> nodes = {};
  std::vector<Cpu> cpus = {};  // those that are online
};

// Reads `<sysfs>/devices/system`. A kernel without NUMA has one node with all CPUs. Unavailable if
// the CPUs cannot be read.
Result<Topology> read_topology(const std::string& sysfs);
// The NUMA node of the device at a PCI address such as 0000:3b:00.0; a negative one counts as 0.
// Unavailable if there is no such device.
Result<int> read_device_node(const std::string& sysfs, const std::string& pci_address);

// "0-3,8,10-11" as the kernel writes it; nothing if it is no such list.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);
std::string describe_cpus(const std::vector<int>& cpus);

struct NumaRequest {
  NumaMode mode = NumaMode::Node;
  int worker_count = 1;
  std::vector<int> allowed_cpus = {};  // our own affinity
  // The NUMA node of each visible GPU; the worker of local rank i has GPU i. Empty: there are no
  // GPUs, and the nodes are divided among the workers.
  std::vector<int> gpu_nodes = {};
};

// Of the same shape as what the process library wants.
struct Binding {
  std::vector<int> cpus = {};
  std::vector<int> nodes = {};  // those of them that have memory

  friend bool operator==(const Binding&, const Binding&) = default;
};

// One for each local rank. Invalid, saying what to do: when a worker would get no CPU, when there
// are fewer cores than workers to divide them among, when there are more workers than GPUs.
Result<std::vector<Binding>> bind_workers(const NumaRequest& request, const Topology& topology);

}  // namespace muster::launch
