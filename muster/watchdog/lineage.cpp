#include "muster/watchdog/lineage.h"

#include "muster/base/fd.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <fcntl.h>
#include <unistd.h>

namespace muster::watchdog {
namespace {

constexpr std::size_t kStatBytesMax = 4096;
// More than a worker can be started with on a usual system.
constexpr std::size_t kEnvironmentBytesMax = 8 * 1024 * 1024;

std::optional<std::string> read_process_file(pid_t pid, std::string_view name,
                                             std::size_t bytes_max) {
  const std::string path = fmt::format("/proc/{}/{}", pid, name);
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return std::nullopt;
  std::string content;
  char buffer[4096];
  while (content.size() < bytes_max) {
    const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;  // the process ended meanwhile
    if (got == 0) break;
    content.append(buffer, static_cast<std::size_t>(got));
  }
  return content;
}

}  // namespace

std::optional<pid_t> parse_parent(std::string_view stat) {
  // "PID (name) state parent …"; the last closing parenthesis ends the name.
  const std::size_t end = stat.rfind(')');
  if (end == std::string_view::npos || stat.size() < end + 4) return std::nullopt;
  if (stat[end + 1] != ' ' || stat[end + 3] != ' ') return std::nullopt;
  stat.remove_prefix(end + 4);
  pid_t parent = 0;
  const auto [rest, problem] = std::from_chars(stat.data(), stat.data() + stat.size(), parent);
  if (problem != std::errc() || parent < 0) return std::nullopt;
  return parent;
}

std::optional<pid_t> parent_of(pid_t pid) {
  if (pid <= 0) return std::nullopt;
  const auto stat = read_process_file(pid, "stat", kStatBytesMax);
  return stat ? parse_parent(*stat) : std::nullopt;
}

std::optional<pid_t> nearest_ancestor(pid_t pid, pid_t root,
                                      const std::function<bool(pid_t)>& accepts) {
  for (int steps = 0; steps < kAncestorsMax && pid > 1 && pid != root; ++steps) {
    if (accepts(pid)) return pid;
    const auto parent = parent_of(pid);
    if (!parent) return std::nullopt;
    pid = *parent;
  }
  return std::nullopt;
}

std::optional<std::string> environment_of(pid_t pid, std::string_view name) {
  if (pid <= 0 || name.empty()) return std::nullopt;
  const auto content = read_process_file(pid, "environ", kEnvironmentBytesMax);
  if (!content) return std::nullopt;
  std::string_view rest = *content;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\0');
    const std::string_view entry = rest.substr(0, end);
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return std::string(entry.substr(name.size() + 1));
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return std::nullopt;
}

}  // namespace muster::watchdog
