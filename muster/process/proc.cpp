#include "muster/process/proc.h"

#include "muster/base/fd.h"
#include "muster/process/child.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <sys/syscall.h>
#include <unistd.h>
#include <unordered_map>

namespace muster::process {
namespace {

constexpr std::size_t kStatBytesMax = 4096;
constexpr std::size_t kEnvironmentBytesMax = std::size_t{8} << 20;
constexpr std::size_t kChildrenBytesMax = std::size_t{1} << 20;
constexpr std::size_t kStackTextBytesMax = 4096;
constexpr std::size_t kStackDepthMax = 6;
// Of /proc/PID/stat, counted from 1 as in proc(5).
constexpr int kFlagsField = 9;
constexpr int kStartTimeField = 22;
constexpr int kEnvironmentBeginField = 50;
constexpr int kEnvironmentEndField = 51;
constexpr int kLastField = kEnvironmentEndField;
constexpr std::uint64_t kKernelThreadFlag = 0x0020'0000;  // PF_KTHREAD

// What can be read of a file of /proc, at most `bytes_max`; nothing when it cannot be opened (errno
// says why).
std::optional<std::string> read_whole(const std::string& path, std::size_t bytes_max) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return std::nullopt;
  std::string text;
  std::array<char, 16384> buffer{};
  while (text.size() < bytes_max) {
    const std::size_t wanted = std::min(buffer.size(), bytes_max - text.size());
    const ssize_t got = ::read(file.get(), buffer.data(), wanted);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

template <typename Number>
bool parse_number(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// Takes the next word off `text`.
std::string_view next_word(std::string_view& text) {
  const std::size_t begin = text.find_first_not_of(" \n");
  if (begin == std::string_view::npos) return text = {};
  text.remove_prefix(begin);
  const std::string_view word = text.substr(0, text.find_first_of(" \n"));
  text.remove_prefix(word.size());
  return word;
}

template <typename Use>
void for_each_number_in(const std::string& folder, Use use) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), ::closedir);
  if (listing == nullptr) return;
  while (const dirent* entry = ::readdir(listing.get())) {
    pid_t number = 0;
    if (parse_number(std::string_view(entry->d_name), number)) use(number);
  }
}

// False when the kernel keeps no such file.
bool children_of(pid_t pid, std::vector<pid_t>& out) {
  const std::string folder = fmt::format("/proc/{}/task", pid);
  bool supported = true;
  for_each_number_in(folder, [&](pid_t thread) {
    const auto text = read_whole(fmt::format("{}/{}/children", folder, thread), kChildrenBytesMax);
    if (!text) {
      // The thread may have ended just now; only if it has not, the file is missing.
      if (::access(fmt::format("{}/{}/stat", folder, thread).c_str(), F_OK) == 0) supported = false;
      return;
    }
    std::string_view rest = *text;
    pid_t child = 0;
    while (parse_number(next_word(rest), child)) out.push_back(child);
  });
  return supported;
}

// Who descends from whom, asked of every process there is: for kernels without `children` files.
class Families {
 public:
  Families() {
    for (const pid_t pid : all_processes()) {
      if (const auto stat = read_stat(pid)) children_[stat->parent].push_back(pid);
    }
  }
  const std::vector<pid_t>& of(pid_t pid) { return children_[pid]; }

 private:
  std::unordered_map<pid_t, std::vector<pid_t>> children_;
};

}  // namespace

std::optional<Stat> parse_stat(std::string_view line) {
  const std::size_t open = line.find(" (");
  const std::size_t close = line.rfind(") ");
  if (open == std::string_view::npos || close == std::string_view::npos || close < open + 2) {
    return std::nullopt;
  }
  Stat stat;
  if (!parse_number(line.substr(0, open), stat.pid)) return std::nullopt;
  stat.name = std::string(line.substr(open + 2, close - open - 2));
  std::string_view rest = line.substr(close + 2);
  const std::string_view state = next_word(rest);
  if (state.size() != 1) return std::nullopt;
  stat.state = state.front();
  bool good = parse_number(next_word(rest), stat.parent);
  good = parse_number(next_word(rest), stat.group) && good;
  good = parse_number(next_word(rest), stat.session) && good;
  // The session was field 6.
  std::uint64_t flags = 0;
  for (int field = 7; field <= kLastField; ++field) {
    const std::string_view word = next_word(rest);
    if (field == kFlagsField) good = parse_number(word, flags) && good;
    if (field == kStartTimeField) good = parse_number(word, stat.start_time) && good;
    // Old kernels leave these out.
    if (field == kEnvironmentBeginField) parse_number(word, stat.environment_begin);
    if (field == kEnvironmentEndField) parse_number(word, stat.environment_end);
  }
  if (!good) return std::nullopt;
  stat.is_kernel_thread = (flags & kKernelThreadFlag) != 0;
  return stat;
}

std::optional<Stat> read_stat(pid_t pid) {
  const auto text = read_whole(fmt::format("/proc/{}/stat", pid), kStatBytesMax);
  return text ? parse_stat(*text) : std::nullopt;
}

std::string_view find_variable(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
    environment.remove_prefix(std::min(entry.size() + 1, environment.size()));
  }
  return {};
}

bool is_within(std::string_view token, std::string_view ancestor) {
  if (ancestor.empty() || !token.starts_with(ancestor)) return false;
  if (token.size() == ancestor.size()) return true;
  return token[ancestor.size()] == '.' || token[ancestor.size()] == '/';
}

std::optional<std::string> token_of(pid_t pid) {
  const auto text = read_whole(fmt::format("/proc/{}/environ", pid), kEnvironmentBytesMax);
  if (text && !text->empty()) return std::string(find_variable(*text, kTokenVariable));
  if (!text && (errno == EACCES || errno == EPERM)) return std::string();
  // Either there is nothing in it, or not yet (in an exec), or no more (it is about to end).
  const auto stat = read_stat(pid);
  if (!stat || stat->is_dead() || stat->is_kernel_thread) return std::string();
  const bool is_empty =
      stat->environment_end != 0 && stat->environment_begin == stat->environment_end;
  return is_empty ? std::optional<std::string>(std::string()) : std::nullopt;
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> found;
  for_each_number_in("/proc", [&](pid_t pid) { found.push_back(pid); });
  return found;
}

std::vector<Member> descendants(const std::unordered_set<pid_t>& except) {
  std::vector<Member> found;
  std::optional<Families> families;
  std::unordered_set<pid_t> seen = except;
  // What descends from `pid`, whose own token is `token`.
  const auto add_children = [&](pid_t pid, const std::string& token) {
    std::vector<pid_t> children;
    if (families || !children_of(pid, children)) {
      if (!families) families.emplace();
      children = families->of(pid);
    }
    for (const pid_t child : children) {
      if (!seen.insert(child).second) continue;
      auto stat = read_stat(child);
      if (!stat || stat->is_dead()) continue;
      std::optional<std::string> own = token_of(child);
      const bool unknown = !own && token.empty();
      if (!own || own->empty()) own = token;
      found.push_back({std::move(*stat), std::move(*own), unknown});
    }
  };
  add_children(::getpid(), std::string());
  for (std::size_t index = 0; index < found.size(); ++index) {
    const pid_t pid = found[index].stat.pid;
    const std::string token = found[index].token;
    add_children(pid, token);
  }
  return found;
}

bool signal_exactly(const Stat& process, int number) {
  // The descriptor pins the process, so that the comparison still holds when the signal is sent.
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!pidfd.is_open() && errno != EMFILE && errno != ENFILE) return false;
  const auto now = read_stat(process.pid);
  // Without a descriptor to open we cannot see the start time either; then the id has to do.
  if (pidfd.is_open() && (!now || now->start_time != process.start_time)) return false;
  if (!pidfd.is_open()) return ::kill(process.pid, number) == 0;
  return ::syscall(SYS_pidfd_send_signal, pidfd.get(), number, nullptr, 0) == 0;
}

std::optional<Stuck> look_at_stuck(pid_t pid) {
  const auto stat = read_stat(pid);
  if (!stat) return std::nullopt;
  Stuck stuck{pid, stat->name, stat->state, {}};
  const std::string folder = fmt::format("/proc/{}/", pid);
  // Lines such as "[<0>] nfs_wait_bit_killable+0x1e/0x90"; only root may read them.
  const auto stack = read_whole(folder + "stack", kStackTextBytesMax);
  std::string_view rest = stack ? std::string_view(*stack) : std::string_view();
  std::size_t depth = 0;
  while (!rest.empty() && depth < kStackDepthMax) {
    const std::string_view address = next_word(rest);
    const std::string_view call = next_word(rest);
    if (address.empty() || call.empty()) break;
    stuck.where += fmt::format("{}{}", depth == 0 ? "" : " < ", call.substr(0, call.find('+')));
    ++depth;
  }
  if (!stuck.where.empty()) return stuck;
  const auto channel = read_whole(folder + "wchan", kStackTextBytesMax);
  if (channel && *channel != "0") stuck.where = *channel;
  return stuck;
}

std::string describe(const Stuck& stuck) {
  std::string_view meaning;
  switch (stuck.state) {
    case 'D':
      meaning = " (waits in the kernel)";
      break;
    case 'Z':
      meaning = " (has ended)";
      break;
    case 'T':
    case 't':
      meaning = " (stopped)";
      break;
    default:
      break;
  }
  return fmt::format("process {} ({}) does not end after SIGKILL: state {}{}{}{}", stuck.pid,
                     stuck.name, stuck.state, meaning, stuck.where.empty() ? "" : ", in ",
                     stuck.where);
}

}  // namespace muster::process
