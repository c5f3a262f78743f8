#include "muster/failures/out_of_memory.h"

#include <charconv>
#include <csignal>
#include <fstream>
#include <string_view>

namespace muster::failures {
namespace {

// The number after `name` in a file of lines "name number".
std::optional<std::uint64_t> counter(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const std::string_view text = line;
    if (!text.starts_with(name) || text.size() <= name.size() || text[name.size()] != ' ') continue;
    const std::string_view number = text.substr(name.size() + 1);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc() && end == number.data() + number.size()) return value;
  }
  return std::nullopt;
}

// The part after the second colon of the line for `controller` in /proc/self/cgroup; the unified
// hierarchy (version 2) has the line "0::/path".
std::optional<std::string> group_path(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_unified = controllers == ",,";
    const bool matches =
        controller.empty()
            ? is_unified
            : controllers.find("," + std::string(controller) + ",") != std::string::npos;
    if (matches) return line.substr(second + 1);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> group_count(const OutOfMemorySources& sources,
                                         const std::string& root) {
  if (!sources.group_folder.empty())
    return counter(sources.group_folder + "/memory.events", "oom_kill");
  const std::string mount = root + "sys/fs/cgroup";
  // In a container the path may be that of the host while the mount shows only our own part of the
  // tree; then the root of the mount is our group.
  if (const auto path = group_path(root, "")) {
    for (const std::string& folder : {mount + *path, mount}) {
      const auto count = counter(folder + "/memory.events", "oom_kill");
      if (count) return count;
    }
  }
  if (const auto path = group_path(root, "memory")) {
    for (const std::string& folder : {mount + "/memory" + *path, mount + "/memory"}) {
      const auto count = counter(folder + "/memory.oom_control", "oom_kill");
      if (count) return count;
    }
  }
  return std::nullopt;
}

bool moved(const std::optional<std::uint64_t>& before, const std::optional<std::uint64_t>& after) {
  return before && after && *after > *before;
}

}  // namespace

OutOfMemoryCounts read_out_of_memory_counts(const OutOfMemorySources& sources) {
  std::string root = sources.root;
  if (!root.ends_with('/')) root += '/';
  OutOfMemoryCounts counts;
  counts.group = group_count(sources, root);
  counts.machine = counter(root + "proc/vmstat", "oom_kill");
  return counts;
}

bool ran_out_of_memory(int exit_code, const OutOfMemoryWindow& window) {
  constexpr int kShellSaysKilled = 128 + SIGKILL;
  if (exit_code != -SIGKILL && exit_code != kShellSaysKilled) return false;
  const bool knows_group = window.before.group && window.after.group;
  return knows_group ? moved(window.before.group, window.after.group)
                     : moved(window.before.machine, window.after.machine);
}

}  // namespace muster::failures
