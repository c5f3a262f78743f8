// Facts: what the launcher has to know about the machine. Given as a value, so that every decision
// can be tested without the machine; read_facts makes the real one.
#pragma once

#include "muster/launch/numa.h"
#include "muster/launch/options.h"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::launch {

struct Gpu {
  std::string pci_address = {};  // 0000:3b:00.0; empty: not known
  std::string uuid = {};         // GPU-…; empty: not known

  friend bool operator==(const Gpu&, const Gpu&) = default;
};

struct FileFacts {
  enum class Kind { Missing, Regular, Folder, NullDevice, Other };
  Kind kind = Kind::Missing;
  bool executable = false;  // by us
};

// What costs time to find out is a function and is called only when it is needed.
struct Facts {
  Variables variables = {};
  std::vector<int> cpus = {};            // that we may run on, sorted; never empty
  std::optional<double> cpu_quota = {};  // of our cgroups, in CPUs
  // The GPUs that CUDA would show, in its order: those of CUDA_VISIBLE_DEVICES, else all. Devices
  // are numbered by PCI address.
  std::function<std::vector<Gpu>()> visible_gpus;
  std::function<int()> xpu_count;
  std::function<Result<Topology>()> topology;
  std::function<Result<int>(const std::string& pci_address)> device_node;
  std::function<FileFacts(const std::string& path)> look_at;
  std::function<std::string()> make_run_id;  // a random UUID
  // The names that --rdzv-backend may have. Plugins add theirs.
  std::vector<std::string> backends = {"static", "c10d", "etcd", "etcd-v2", "muster", "file"};
};

// Where the machine is described; tests have their own.
struct FactsRoots {
  std::string proc = "/proc";
  std::string sys = "/sys";
  std::string dev = "/dev";
};

Facts read_facts(Variables variables, FactsRoots roots = {});

// How many workers can run at once: the CPUs we may use, at most the whole CPUs of the quota, at
// least one.
int usable_cpu_count(const Facts& facts);

// -- the parts, for tests ----------------------------------------------------------------------

// The NVIDIA devices of this machine (of this container), sorted by PCI address.
std::vector<Gpu> read_gpus(const FactsRoots& roots);
// What CUDA_VISIBLE_DEVICES leaves of them: it lists numbers or beginnings of UUIDs, and the first
// one that is not there ends the list. MIG devices count, with nothing known of them.
std::vector<Gpu> select_visible_gpus(const std::vector<Gpu>& gpus, std::string_view list);
// Intel's GPUs that are not part of the processor. ZE_AFFINITY_MASK restricts them.
int read_xpu_count(const FactsRoots& roots, const Variables& variables);

}  // namespace muster::launch
