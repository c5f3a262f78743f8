// How a Topology is read from sysfs.

#include "muster/launch/files.h"
#include "muster/launch/numa.h"
#include "muster/launch/numbers.h"
#include "muster/rendezvous/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::launch {
namespace {

using rendezvous::trim;

// No machine has more; a list that names more is no CPU list.
constexpr int kCpusMax = 1 << 16;

// Sets of CPUs as files have them; nothing if there is no such file or it has no list.
std::optional<std::vector<int>> read_list(const std::string& path) {
  const auto text = read_small_file(path);
  if (!text) return std::nullopt;
  return parse_cpu_list(*text);
}

std::optional<int> read_int(const std::string& path) {
  const auto text = read_small_file(path);
  if (!text) return std::nullopt;
  const auto number = parse_integer(*text);
  if (!number || *number < -1 || *number > kCpusMax) return std::nullopt;
  return static_cast<int>(*number);
}

// The numbers at the ends of the names "<prefix><number>" in a folder, sorted.
std::vector<int> numbered(const std::string& folder, std::string_view prefix) {
  std::vector<int> numbers;
  for (const std::string& name : list_folder(folder)) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    const bool digits = !rest.empty() && std::ranges::all_of(rest, [](char letter) {
      return letter >= '0' && letter <= '9';
    });
    const auto number = digits ? parse_integer(rest) : std::nullopt;
    if (number && *number <= kCpusMax) numbers.push_back(static_cast<int>(*number));
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::vector<int> last_cache_sharers(const std::string& cpu_folder) {
  std::vector<int> sharers;
  int highest = 0;
  for (const int index : numbered(cpu_folder + "/cache", "index")) {
    const std::string folder = fmt::format("{}/cache/index{}", cpu_folder, index);
    const auto type = read_small_file(folder + "/type");
    if (!type || (trim(*type) != "Data" && trim(*type) != "Unified")) continue;
    const auto level = read_int(folder + "/level");
    if (!level || *level <= highest) continue;
    if (auto list = read_list(folder + "/shared_cpu_list")) {
      sharers = std::move(*list);
      highest = *level;
    }
  }
  return sharers;
}

Topology::Cpu read_cpu(const std::string& folder, int id) {
  Topology::Cpu cpu;
  cpu.id = id;
  cpu.package = read_int(folder + "/topology/physical_package_id").value_or(0);
  cpu.siblings = read_list(folder + "/topology/thread_siblings_list").value_or(std::vector{id});
  cpu.cache_sharers = last_cache_sharers(folder);
  // A machine that does not tell its caches: a core is the least that shares one.
  if (cpu.cache_sharers.empty()) cpu.cache_sharers = cpu.siblings;
  return cpu;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  text = trim(text);
  std::vector<int> cpus;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::size_t dash = item.find('-');
    const auto first = parse_integer(item.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_integer(item.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= kCpusMax) return std::nullopt;
    for (auto cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  std::ranges::sort(cpus);
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

std::string describe_cpus(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t index = 0; index < cpus.size();) {
    std::size_t end = index + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += end - index == 1 ? fmt::to_string(cpus[index])
                             : fmt::format("{}-{}", cpus[index], cpus[end - 1]);
    index = end;
  }
  return text;
}

Result<Topology> read_topology(const std::string& sysfs) {
  const std::string cpu_root = sysfs + "/devices/system/cpu";
  const std::string node_root = sysfs + "/devices/system/node";
  const auto online = read_list(cpu_root + "/online");
  if (!online || online->empty()) {
    return fail(ErrorKind::Unavailable,
                fmt::format("--numa-binding: {}/online cannot be read, so the CPUs of this machine "
                            "are not known; run without --numa-binding",
                            cpu_root));
  }
  Topology topology;
  for (const int id : *online)
    topology.cpus.push_back(read_cpu(fmt::format("{}/cpu{}", cpu_root, id), id));
  const auto with_memory = read_list(node_root + "/has_memory");
  for (const int id : numbered(node_root, "node")) {
    auto cpus = read_list(fmt::format("{}/node{}/cpulist", node_root, id));
    if (!cpus) {
      return fail(ErrorKind::Unavailable,
                  fmt::format("--numa-binding: {}/node{}/cpulist cannot be read; run without "
                              "--numa-binding",
                              node_root, id));
    }
    const bool has_memory =
        !with_memory || std::ranges::find(*with_memory, id) != with_memory->end();
    topology.nodes.push_back({id, std::move(*cpus), has_memory});
  }
  if (topology.nodes.empty()) topology.nodes.push_back({0, *online, true});
  return topology;
}

Result<int> read_device_node(const std::string& sysfs, const std::string& pci_address) {
  const std::string path = fmt::format("{}/bus/pci/devices/{}/numa_node", sysfs, pci_address);
  const auto node = read_int(path);
  if (!node) {
    return fail(ErrorKind::Unavailable,
                fmt::format("--numa-binding: {} cannot be read, so the NUMA node of the GPU is not "
                            "known; run without --numa-binding",
                            path));
  }
  return std::max(*node, 0);
}

}  // namespace muster::launch
