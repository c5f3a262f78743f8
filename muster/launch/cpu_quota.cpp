#include "muster/launch/cpu_quota.h"

#include "muster/launch/facts.h"
#include "muster/launch/files.h"
#include "muster/launch/numbers.h"
#include "muster/rendezvous/text.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace muster::launch {
namespace {

using rendezvous::trim;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool lists(std::string_view text, std::string_view name) {
  const auto parts = split(text, ',');
  return std::ranges::find(parts, name) != parts.end();
}

// The two versions side by side: where our group is, and where its tree is mounted.
struct Hierarchy {
  bool found = false;
  std::string_view group = {};       // as /proc/self/cgroup names it
  std::string_view mount_root = {};  // which group the mount point shows
  std::string_view mount_point = {};
};

// `mountinfo` has: id parent device root mount-point options [tags] - type source super-options.
void find_mounts(std::string_view mountinfo, Hierarchy& unified, Hierarchy& legacy) {
  for (const std::string_view line : split(mountinfo, '\n')) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto left = split(line.substr(0, dash), ' ');
    const auto right = split(line.substr(dash + 3), ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    Hierarchy* hierarchy = nullptr;
    if (right[0] == "cgroup2") hierarchy = &unified;
    if (right[0] == "cgroup" && lists(right[2], "cpu")) hierarchy = &legacy;
    if (hierarchy == nullptr || !hierarchy->mount_point.empty()) continue;
    hierarchy->mount_root = left[3];
    hierarchy->mount_point = left[4];
  }
}

// Lines are: number:controllers:group. That of version 2 has number 0 and no controllers.
void find_groups(std::string_view text, Hierarchy& unified, Hierarchy& legacy) {
  for (const std::string_view line : split(text, '\n')) {
    const std::size_t first = line.find(':');
    if (first == std::string_view::npos) continue;
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    Hierarchy* hierarchy = nullptr;
    if (controllers.empty()) hierarchy = &unified;
    if (lists(controllers, "cpu")) hierarchy = &legacy;
    if (hierarchy == nullptr) continue;
    hierarchy->found = true;
    hierarchy->group = line.substr(second + 1);
  }
}

// The folders from our group up to the mount point. A group that the mount does not show (a
// container without a name space of its own) is taken to be the mount point itself.
std::vector<std::string> folders_of(const Hierarchy& hierarchy) {
  std::vector<std::string> folders;
  if (!hierarchy.found || hierarchy.mount_point.empty()) return folders;
  std::string_view below = hierarchy.group;
  if (hierarchy.mount_root != "/") {
    const bool inside = below.starts_with(hierarchy.mount_root);
    below = inside ? below.substr(hierarchy.mount_root.size()) : std::string_view();
    if (!below.starts_with('/')) below = {};
  }
  if (below.find("..") != std::string_view::npos) below = {};
  while (below.ends_with('/')) below.remove_suffix(1);
  while (true) {
    folders.push_back(std::string(hierarchy.mount_point).append(below));
    if (below.empty()) return folders;
    below = below.substr(0, below.rfind('/'));
  }
}

std::optional<double> quotient(std::string_view quota, std::string_view period) {
  const auto upper = parse_decimal(quota);
  const auto lower = parse_decimal(period);
  // "max" and -1 stand for no limit.
  if (!upper || !lower || *upper <= 0 || *lower <= 0) return std::nullopt;
  return *upper / *lower;
}

void take_smaller(std::optional<double>& smallest, std::optional<double> other) {
  if (other && (!smallest || *other < *smallest)) smallest = other;
}

}  // namespace

std::optional<double> read_cpu_quota(const FactsRoots& roots) {
  const auto groups = read_small_file(roots.proc + "/self/cgroup");
  const auto mounts = read_small_file(roots.proc + "/self/mountinfo");
  if (!groups || !mounts) return std::nullopt;
  Hierarchy unified;
  Hierarchy legacy;
  find_groups(*groups, unified, legacy);
  find_mounts(*mounts, unified, legacy);
  std::optional<double> smallest;
  for (const std::string& folder : folders_of(unified)) {
    if (const auto limit = read_small_file(folder + "/cpu.max")) {
      const auto parts = split(trim(*limit), ' ');
      if (parts.size() == 2) take_smaller(smallest, quotient(parts[0], parts[1]));
    }
  }
  for (const std::string& folder : folders_of(legacy)) {
    const auto quota = read_small_file(folder + "/cpu.cfs_quota_us");
    const auto period = read_small_file(folder + "/cpu.cfs_period_us");
    if (quota && period) take_smaller(smallest, quotient(*quota, *period));
  }
  return smallest;
}

}  // namespace muster::launch
