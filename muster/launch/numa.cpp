#include "muster/launch/numa.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace muster::launch {
namespace {

using Cpus = std::vector<int>;

Cpus common(const Cpus& left, const Cpus& right) {
  Cpus both;
  std::ranges::set_intersection(left, right, std::back_inserter(both));
  return both;
}

Cpus merged(const Cpus& left, const Cpus& right) {
  Cpus all;
  std::ranges::set_union(left, right, std::back_inserter(all));
  return all;
}

// Part `index` of `count` parts of a list of `size`; the first parts get what is left over.
std::pair<std::size_t, std::size_t> share(std::size_t size, std::size_t count, std::size_t index) {
  const std::size_t whole = size / count;
  const std::size_t rest = size % count;
  const std::size_t begin = index * whole + std::min(index, rest);
  return {begin, begin + whole + (index < rest ? 1 : 0)};
}

// One who wants a place: a GPU, or a worker where there are no GPUs.
struct Slot {
  std::vector<int> nodes = {};  // where it is at home
  std::size_t position = 0;     // among those of the same home
  std::size_t neighbours = 1;   // how many those are, itself included
};

class Binder {
 public:
  Binder(const NumaRequest& request, const Topology& topology)
      : request_(request), topology_(topology) {
    for (const Topology::Cpu& cpu : topology.cpus) cpus_.emplace(cpu.id, &cpu);
  }

  Result<std::vector<Binding>> bind() const {
    const auto slots = request_.gpu_nodes.empty() ? worker_slots() : gpu_slots();
    if (!slots) return fail(slots.error());
    std::vector<Binding> bindings;
    for (int rank = 0; rank < request_.worker_count; ++rank) {
      auto binding = bind_one(rank, (*slots)[static_cast<std::size_t>(rank)]);
      if (!binding) return fail(std::move(binding.error()));
      bindings.push_back(std::move(*binding));
    }
    return bindings;
  }

 private:
  // Among all GPUs that we see, not only those in use: another job may have the others.
  Result<std::vector<Slot>> gpu_slots() const {
    const auto count = static_cast<int>(request_.gpu_nodes.size());
    if (request_.worker_count > count) {
      return fail(
          ErrorKind::Invalid,
          fmt::format("--numa-binding needs a GPU for each worker, but there are {} workers "
                      "and {} GPUs; lower --nproc-per-node, or set CUDA_VISIBLE_DEVICES to "
                      "nothing to divide the CPUs among the workers",
                      request_.worker_count, count));
    }
    std::map<int, std::size_t> seen;
    std::vector<Slot> slots;
    for (const int node : request_.gpu_nodes) slots.push_back({{node}, seen[node]++, 1});
    for (Slot& slot : slots) slot.neighbours = seen[slot.nodes.front()];
    return slots;
  }

  // Nodes and workers are both divided evenly: several workers to a node, or several nodes to a
  // worker.
  Result<std::vector<Slot>> worker_slots() const {
    std::vector<int> nodes;
    for (const Topology::Node& node : topology_.nodes) {
      if (!common(node.cpus, request_.allowed_cpus).empty()) nodes.push_back(node.id);
    }
    if (nodes.empty()) {
      return fail(ErrorKind::Invalid,
                  "--numa-binding: none of the CPUs that we may use belongs to a NUMA node; run "
                  "without --numa-binding");
    }
    const auto workers = static_cast<std::size_t>(request_.worker_count);
    std::vector<Slot> slots(workers);
    if (workers <= nodes.size()) {
      for (std::size_t rank = 0; rank < workers; ++rank) {
        const auto [begin, end] = share(nodes.size(), workers, rank);
        slots[rank].nodes.assign(nodes.begin() + static_cast<std::ptrdiff_t>(begin),
                                 nodes.begin() + static_cast<std::ptrdiff_t>(end));
      }
      return slots;
    }
    for (std::size_t index = 0; index < nodes.size(); ++index) {
      const auto [begin, end] = share(workers, nodes.size(), index);
      for (std::size_t rank = begin; rank < end; ++rank)
        slots[rank] = {{nodes[index]}, rank - begin, end - begin};
    }
    return slots;
  }

  Result<Binding> bind_one(int rank, const Slot& slot) const {
    Binding binding;
    const std::vector<int> nodes =
        request_.mode == NumaMode::Socket ? nodes_of_sockets(slot.nodes) : slot.nodes;
    const Cpus near = cpus_of(nodes);
    if (near.empty()) {
      return fail(ErrorKind::Invalid,
                  fmt::format("--numa-binding: local rank {} belongs to NUMA node {}, of which we "
                              "may use no CPU; run without --numa-binding or allow CPUs {}",
                              rank, slot.nodes.front(), describe_cpus(all_cpus_of(nodes))));
    }
    switch (request_.mode) {
      case NumaMode::Node:
      case NumaMode::Socket:
        binding.cpus = near;
        break;
      case NumaMode::Exclusive: {
        const std::vector<Cpus> cores = groups(near, &Topology::Cpu::siblings);
        if (cores.size() < slot.neighbours) {
          return fail(ErrorKind::Invalid,
                      fmt::format("--numa-binding=exclusive: {} workers or GPUs share the {} cores "
                                  "of NUMA node {}; use --numa-binding=node or fewer workers",
                                  slot.neighbours, cores.size(), slot.nodes.front()));
        }
        const auto [begin, end] = share(cores.size(), slot.neighbours, slot.position);
        for (std::size_t index = begin; index < end; ++index)
          binding.cpus = merged(binding.cpus, cores[index]);
        break;
      }
      case NumaMode::CoreComplex: {
        std::vector<Cpus> complexes = groups(near, &Topology::Cpu::cache_sharers);
        std::ranges::stable_sort(complexes, [](const Cpus& left, const Cpus& right) {
          return left.size() > right.size();
        });
        binding.cpus = complexes[slot.position % complexes.size()];
        break;
      }
    }
    for (const Topology::Node& node : topology_.nodes) {
      if (node.has_memory && std::ranges::find(nodes, node.id) != nodes.end())
        binding.nodes.push_back(node.id);
    }
    return binding;
  }

  Cpus all_cpus_of(const std::vector<int>& nodes) const {
    Cpus cpus;
    for (const Topology::Node& node : topology_.nodes) {
      if (std::ranges::find(nodes, node.id) != nodes.end()) cpus = merged(cpus, node.cpus);
    }
    return cpus;
  }

  Cpus cpus_of(const std::vector<int>& nodes) const {
    return common(all_cpus_of(nodes), request_.allowed_cpus);
  }

  std::vector<int> nodes_of_sockets(const std::vector<int>& homes) const {
    std::set<int> sockets;
    for (const int id : all_cpus_of(homes)) {
      if (const auto found = cpus_.find(id); found != cpus_.end())
        sockets.insert(found->second->package);
    }
    std::vector<int> nodes;
    for (const Topology::Node& node : topology_.nodes) {
      const bool shares = std::ranges::any_of(node.cpus, [&](int id) {
        const auto found = cpus_.find(id);
        return found != cpus_.end() && sockets.contains(found->second->package);
      });
      if (shares || std::ranges::find(homes, node.id) != homes.end()) nodes.push_back(node.id);
    }
    return nodes;
  }

  // Divides `cpus` by what they share, ordered by the lowest CPU.
  std::vector<Cpus> groups(const Cpus& cpus, Cpus Topology::Cpu::*sharers) const {
    std::vector<Cpus> result;
    std::set<int> done;
    for (const int id : cpus) {
      if (done.contains(id)) continue;
      const auto found = cpus_.find(id);
      Cpus group;
      if (found != cpus_.end()) group = common(found->second->*sharers, cpus);
      if (group.empty()) group = {id};
      done.insert(group.begin(), group.end());
      result.push_back(std::move(group));
    }
    return result;
  }

  const NumaRequest& request_;
  const Topology& topology_;
  std::map<int, const Topology::Cpu*> cpus_;
};

constexpr std::pair<std::string_view, NumaMode> kModes[] = {
    {"node", NumaMode::Node},
    {"socket", NumaMode::Socket},
    {"exclusive", NumaMode::Exclusive},
    {"core-complex", NumaMode::CoreComplex},
};

constexpr std::pair<std::string_view, NumaMemory> kMemory[] = {
    {"default", NumaMemory::Default},
    {"bind", NumaMemory::Bind},
    {"prefer", NumaMemory::Prefer},
};

template <typename T, std::size_t kCount>
std::optional<T> find_value(const std::pair<std::string_view, T> (&table)[kCount],
                            std::string_view name) {
  for (const auto& [each, value] : table) {
    if (each == name) return value;
  }
  return std::nullopt;
}

template <typename T, std::size_t kCount>
std::string_view find_name(const std::pair<std::string_view, T> (&table)[kCount], T value) {
  for (const auto& [name, each] : table) {
    if (each == value) return name;
  }
  return {};
}

}  // namespace

std::optional<NumaMode> parse_numa_mode(std::string_view text) { return find_value(kModes, text); }
std::string_view name_of(NumaMode mode) { return find_name(kModes, mode); }
std::optional<NumaMemory> parse_numa_memory(std::string_view text) {
  return find_value(kMemory, text);
}
std::string_view name_of(NumaMemory memory) { return find_name(kMemory, memory); }

Result<std::vector<Binding>> bind_workers(const NumaRequest& request, const Topology& topology) {
  MUSTER_ASSERT(request.worker_count > 0);
  return Binder(request, topology).bind();
}

}  // namespace muster::launch
