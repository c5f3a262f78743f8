#include "muster/launch/facts.h"

#include "muster/base/random.h"
#include "muster/launch/cpu_quota.h"
#include "muster/launch/files.h"
#include "muster/launch/numbers.h"
#include "muster/rendezvous/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <limits.h>
#include <memory>
#include <sched.h>
#include <set>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <utility>

namespace muster::launch {
namespace {

using rendezvous::trim;

// The kernel refuses a mask that is too small for its CPUs; no kernel has more than this.
constexpr std::size_t kMaskCpusMax = std::size_t{1} << 18;

std::vector<int> read_affinity() {
  for (std::size_t count = 1024; count <= kMaskCpusMax; count *= 2) {
    const auto free_mask = [](cpu_set_t* mask) { CPU_FREE(mask); };
    const std::unique_ptr<cpu_set_t, decltype(free_mask)> mask(CPU_ALLOC(count), free_mask);
    const std::size_t bytes = CPU_ALLOC_SIZE(count);
    if (::sched_getaffinity(0, bytes, mask.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    std::vector<int> cpus;
    for (std::size_t cpu = 0; cpu < count; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, mask.get())) cpus.push_back(static_cast<int>(cpu));
    }
    if (!cpus.empty()) return cpus;
  }
  std::vector<int> cpus;
  const long online = std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN));
  for (long cpu = 0; cpu < online; ++cpu) cpus.push_back(static_cast<int>(cpu));
  return cpus;
}

FileFacts look_at_file(const std::string& path) {
  FileFacts facts;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return facts;
  if (S_ISREG(status.st_mode)) {
    facts.kind = FileFacts::Kind::Regular;
  } else if (S_ISDIR(status.st_mode)) {
    facts.kind = FileFacts::Kind::Folder;
  } else if (S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 3)) {
    facts.kind = FileFacts::Kind::NullDevice;
  } else {
    facts.kind = FileFacts::Kind::Other;
  }
  facts.executable = ::faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0;
  return facts;
}

// Version 4: random.
std::string random_uuid() {
  Random random = Random::from_system();
  std::string digits = random_id(random);
  digits[12] = '4';
  digits[16] = "89ab"[random.below(4)];
  return fmt::format("{}-{}-{}-{}-{}", digits.substr(0, 8), digits.substr(8, 4),
                     digits.substr(12, 4), digits.substr(16, 4), digits.substr(20));
}

// The value of "Name:   value" in the text of a driver's file.
std::string_view field_of(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    if (line.starts_with(':')) return trim(line.substr(1));
  }
  return {};
}

// The minor numbers of the device files that this container has.
std::set<std::int64_t> read_gpu_minors(const std::string& dev) {
  constexpr std::string_view kPrefix = "nvidia";
  std::set<std::int64_t> minors;
  for (const std::string& name : list_folder(dev)) {
    if (!name.starts_with(kPrefix) || name.size() == kPrefix.size()) continue;
    const std::string_view rest = std::string_view(name).substr(kPrefix.size());
    if (rest[0] < '0' || rest[0] > '9') continue;
    if (const auto minor = parse_integer(rest)) minors.insert(*minor);
  }
  return minors;
}

// One item of CUDA_VISIBLE_DEVICES; nothing if there is no such device.
std::optional<Gpu> find_gpu(const std::vector<Gpu>& gpus, std::string_view item) {
  if (item.starts_with("MIG-")) return Gpu{"", std::string(item)};
  if (item.starts_with("GPU-")) {
    for (const Gpu& gpu : gpus) {
      if (gpu.uuid.starts_with(item)) return gpu;
    }
    const bool known = std::ranges::any_of(gpus, [](const Gpu& gpu) { return !gpu.uuid.empty(); });
    if (known || gpus.empty()) return std::nullopt;
    return Gpu{"", std::string(item)};
  }
  const auto index = parse_integer(item);
  if (!index || *index < 0 || *index >= static_cast<std::int64_t>(gpus.size())) return std::nullopt;
  return gpus[static_cast<std::size_t>(*index)];
}

}  // namespace

std::vector<Gpu> read_gpus(const FactsRoots& roots) {
  const std::set<std::int64_t> minors = read_gpu_minors(roots.dev);
  const std::string folder = roots.proc + "/driver/nvidia/gpus";
  std::vector<Gpu> gpus;
  for (const std::string& address : list_folder(folder)) {
    const auto information = read_small_file(fmt::format("{}/{}/information", folder, address));
    if (!information || field_of(*information, "GPU Excluded") == "Yes") continue;
    // A container sees all devices here, but has the files only of those that are its own.
    const auto minor = parse_integer(field_of(*information, "Device Minor"));
    if (minor && !minors.empty() && !minors.contains(*minor)) continue;
    gpus.push_back({address, std::string(field_of(*information, "GPU UUID"))});
  }
  // Sandboxes may hide the driver's folder, but then they have the device that controls it.
  const bool hidden =
      list_folder(folder).empty() && ::access((roots.dev + "/nvidiactl").c_str(), F_OK) == 0;
  if (hidden) gpus.resize(minors.size());
  return gpus;
}

std::vector<Gpu> select_visible_gpus(const std::vector<Gpu>& gpus, std::string_view list) {
  std::vector<Gpu> visible;
  std::set<std::string, std::less<>> seen;
  while (!trim(list).empty()) {
    const std::string_view item = trim(list.substr(0, list.find(',')));
    const std::size_t comma = list.find(',');
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    const auto gpu = find_gpu(gpus, item);
    if (!gpu) break;
    // CUDA shows no device at all if one is named twice.
    if (!seen.emplace(item).second) return {};
    visible.push_back(*gpu);
  }
  return visible;
}

int read_xpu_count(const FactsRoots& roots, const Variables& variables) {
  int count = 0;
  const std::string folder = roots.sys + "/class/drm";
  for (const std::string& name : list_folder(folder)) {
    if (!name.starts_with("renderD")) continue;
    const std::string device = fmt::format("{}/{}/device", folder, name);
    const auto vendor = read_small_file(device + "/vendor");
    if (!vendor || trim(*vendor) != "0x8086") continue;
    char target[PATH_MAX];
    const ssize_t size = ::readlink(device.c_str(), target, sizeof target);
    const std::string_view path(target, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    // Where Intel's processors have their own graphics.
    if (!path.ends_with("0000:00:02.0")) ++count;
  }
  const auto mask = find_variable(variables, "ZE_AFFINITY_MASK");
  if (!mask || trim(*mask).empty()) return count;
  int chosen = 0;
  std::string_view list = *mask;
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), item.size() + 1));
    const auto index = parse_integer(item.substr(0, item.find('.')));
    if (index && *index >= 0 && *index < count) ++chosen;
  }
  return chosen;
}

int usable_cpu_count(const Facts& facts) {
  auto count = static_cast<double>(facts.cpus.size());
  if (facts.cpu_quota) count = std::min(count, *facts.cpu_quota);
  return std::max(1, static_cast<int>(count));
}

Facts read_facts(Variables variables, FactsRoots roots) {
  Facts facts;
  facts.cpus = read_affinity();
  facts.cpu_quota = read_cpu_quota(roots);
  const auto visible = find_variable(variables, "CUDA_VISIBLE_DEVICES");
  facts.visible_gpus = [roots, visible] {
    const std::vector<Gpu> gpus = read_gpus(roots);
    return visible ? select_visible_gpus(gpus, *visible) : gpus;
  };
  facts.xpu_count = [roots, variables] { return read_xpu_count(roots, variables); };
  facts.topology = [roots] { return read_topology(roots.sys); };
  facts.device_node = [roots](const std::string& address) {
    return read_device_node(roots.sys, address);
  };
  facts.look_at = look_at_file;
  facts.make_run_id = random_uuid;
  facts.variables = std::move(variables);
  return facts;
}

}  // namespace muster::launch
