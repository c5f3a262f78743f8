#include "muster/process/cgroup.h"

#include "muster/base/clock.h"
#include "muster/base/fd.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::process {

using namespace std::chrono_literals;

namespace {

constexpr std::size_t kFileBytesMax = std::size_t{1} << 20;
constexpr Duration kRemoveWait = 1s;
constexpr int kPollMilliseconds = 20;
constexpr int kDepthMax = 16;

std::optional<std::string> read_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return std::nullopt;
  std::string text;
  std::array<char, 4096> buffer{};
  while (text.size() < kFileBytesMax) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool contains_word(std::string_view list, std::string_view word) {
  for (const std::string_view part : split(list, ',')) {
    if (part == word) return true;
  }
  return false;
}

// Blanks in mount points are written as \040 and so on.
std::string unescape(std::string_view text) {
  std::string result;
  for (std::size_t index = 0; index < text.size(); ++index) {
    int code = 0;
    if (text[index] == '\\' && index + 3 < text.size()) {
      const char* begin = text.data() + index + 1;
      const auto [end, error] = std::from_chars(begin, begin + 3, code, 8);
      if (error == std::errc() && end == begin + 3) {
        result += static_cast<char>(code);
        index += 3;
        continue;
      }
    }
    result += text[index];
  }
  return result;
}

struct Mount {
  std::string root;   // which folder of the hierarchy is mounted
  std::string point;  // where
};

// The mount of `type` whose options of the file system contain `controller` (any if empty).
std::optional<Mount> find_mount(std::string_view mountinfo, std::string_view type,
                                std::string_view controller) {
  for (const std::string_view line : split(mountinfo, '\n')) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto left = split(line.substr(0, dash), ' ');
    const auto right = split(line.substr(dash + 3), ' ');
    if (left.size() < 5 || right.size() < 3 || right[0] != type) continue;
    if (!controller.empty() && !contains_word(right[2], controller)) continue;
    return Mount{unescape(left[3]), unescape(left[4])};
  }
  return std::nullopt;
}

// Where `path`, as /proc/self/cgroup gives it, is found below the mount; empty when it is not.
std::string below(const Mount& mount, std::string_view path) {
  if (path.starts_with("/..")) return {};
  if (mount.root != "/") {
    if (!path.starts_with(mount.root)) return mount.point;  // a container that sees only its own
    path.remove_prefix(mount.root.size());
    if (!path.empty() && path.front() != '/') return {};
  }
  return path == "/" ? mount.point : mount.point + std::string(path);
}

bool write_one(const std::string& path) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file.is_open() && ::write(file.get(), "1", 1) == 1;
}

void remove_below(const std::string& folder, int depth) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), ::closedir);
  if (listing == nullptr || depth >= kDepthMax) return;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    if (entry->d_type != DT_DIR || name == "." || name == "..") continue;
    remove_below(fmt::format("{}/{}", folder, name), depth + 1);
  }
  ::rmdir(folder.c_str());
}

std::string own_folder() {
  const auto mountinfo = read_file("/proc/self/mountinfo");
  const auto cgroup = read_file("/proc/self/cgroup");
  return mountinfo && cgroup ? find_cgroup(*mountinfo, *cgroup).folder : std::string();
}

std::optional<std::uint64_t> counter_in(const std::string& path, std::string_view key) {
  const auto text = read_file(path);
  return text ? read_counter(*text, key) : std::nullopt;
}

}  // namespace

CgroupPlace find_cgroup(std::string_view mountinfo, std::string_view cgroup) {
  const auto mount = find_mount(mountinfo, "cgroup2", "");
  if (!mount) return {};
  for (const std::string_view line : split(cgroup, '\n')) {
    if (line.starts_with("0::")) return {below(*mount, line.substr(3))};
  }
  return {};
}

std::string find_memory_cgroup_v1(std::string_view mountinfo, std::string_view cgroup) {
  const auto mount = find_mount(mountinfo, "cgroup", "memory");
  if (!mount) return {};
  for (const std::string_view line : split(cgroup, '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    if (!contains_word(line.substr(first + 1, second - first - 1), "memory")) continue;
    return below(*mount, line.substr(second + 1));
  }
  return {};
}

Result<Cgroup> Cgroup::create(const std::string& name) {
  const std::string parent = own_folder();
  if (parent.empty()) return fail(ErrorKind::Unavailable, "no cgroup of version 2 is mounted");
  const std::string folder = parent + "/" + name;
  if (::mkdir(folder.c_str(), 0755) != 0) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot make the cgroup {}: {}", folder, describe_errno(errno)));
  }
  Cgroup made(folder);
  if (::access((folder + "/cgroup.kill").c_str(), W_OK) != 0) {
    return fail(ErrorKind::Unavailable, "cgroups cannot be killed here; Linux 5.14 is needed");
  }
  return made;
}

Cgroup::Cgroup(Cgroup&& other) noexcept : folder_(std::exchange(other.folder_, {})) {}

Cgroup& Cgroup::operator=(Cgroup&& other) noexcept {
  if (this != &other) {
    remove();
    folder_ = std::exchange(other.folder_, {});
  }
  return *this;
}

Cgroup::~Cgroup() { remove(); }

bool Cgroup::kill() { return write_one(folder_ + "/cgroup.kill"); }

bool Cgroup::is_populated() const {
  return counter_in(folder_ + "/cgroup.events", "populated").value_or(0) != 0;
}

void Cgroup::remove() {
  if (folder_.empty()) return;
  const SystemClock clock;
  const TimePoint deadline = clock.now() + kRemoveWait;
  while (is_populated() && clock.now() < deadline) {
    kill();
    const Fd events(::open((folder_ + "/cgroup.events").c_str(), O_RDONLY | O_CLOEXEC));
    // The kernel marks the file when the group has become empty; the time is for a change before
    // we looked.
    pollfd change{events.get(), POLLPRI, 0};
    ::poll(&change, 1, kPollMilliseconds);
  }
  remove_below(folder_, 0);
  folder_.clear();
}

std::optional<std::uint64_t> oom_kill_count(const std::string& folder) {
  if (!folder.empty()) {
    if (const auto count = counter_in(folder + "/memory.events", "oom_kill")) return count;
  }
  const auto mountinfo = read_file("/proc/self/mountinfo");
  const auto cgroup = read_file("/proc/self/cgroup");
  if (!mountinfo || !cgroup) return std::nullopt;
  const std::string own = find_cgroup(*mountinfo, *cgroup).folder;
  if (!own.empty()) {
    if (const auto count = counter_in(own + "/memory.events", "oom_kill")) return count;
  }
  const std::string memory = find_memory_cgroup_v1(*mountinfo, *cgroup);
  if (memory.empty()) return std::nullopt;
  return counter_in(memory + "/memory.oom_control", "oom_kill");
}

std::optional<std::uint64_t> read_counter(std::string_view text, std::string_view key) {
  for (const std::string_view line : split(text, '\n')) {
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ' ') continue;
    const std::string_view digits = line.substr(key.size() + 1);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc() && end == digits.data() + digits.size()) return value;
  }
  return std::nullopt;
}

}  // namespace muster::process
