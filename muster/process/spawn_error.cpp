// Why a program could not be started, and what to do about it.
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/process/proc.h"
#include "muster/process/spawn.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace muster::process::internal {
namespace {

constexpr std::string_view kPathDefault = "/usr/local/bin:/usr/bin:/bin";
constexpr std::size_t kHeadBytesMax = 256;

bool has_slash(std::string_view text) { return text.find('/') != std::string_view::npos; }

// As the child sees it: from its folder.
std::string seen_from(const std::string& folder, const std::string& path) {
  return folder.empty() || path.starts_with('/') ? path : folder + "/" + path;
}

std::string first_bytes(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::array<char, kHeadBytesMax> bytes{};
  const ssize_t got = file.is_open() ? ::read(file.get(), bytes.data(), bytes.size()) : -1;
  return got > 0 ? std::string(bytes.data(), static_cast<std::size_t>(got)) : std::string();
}

// "/bin/sh" of "#! /bin/sh -e\n..."; empty when the text is no script.
std::string interpreter_of(std::string_view head) {
  if (!head.starts_with("#!")) return {};
  head.remove_prefix(2);
  head = head.substr(0, head.find('\n'));
  const std::size_t begin = head.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  head.remove_prefix(begin);
  return std::string(head.substr(0, head.find_first_of(" \t")));
}

// The file of the search that is there although it could not be executed.
std::string found_file(const Command& command) {
  for (const std::string& path : candidates(command.executable, command.environment)) {
    std::string seen = seen_from(command.folder, path);
    struct stat facts {};
    if (::stat(seen.c_str(), &facts) == 0) return seen;
  }
  return {};
}

std::string why_not_found(const Command& command) {
  const std::string file = found_file(command);
  if (!file.empty()) {
    const std::string head = first_bytes(file);
    const std::string interpreter = interpreter_of(head);
    if (interpreter.ends_with('\r')) {
      return "its first line ends in a carriage return; convert the script to Unix line ends";
    }
    if (!interpreter.empty()) {
      return fmt::format("its interpreter {} does not exist; correct its first line",
                         log::quote(interpreter));
    }
    return "the loader it asks for does not exist; was it built for another system?";
  }
  if (command.executable.empty()) return "no program was named";
  if (has_slash(command.executable)) return "no such file; check the path";
  const std::string here = seen_from(command.folder, "./" + command.executable);
  if (::access(here.c_str(), F_OK) == 0) {
    return fmt::format("not found in PATH; write ./{} for the one in this folder",
                       command.executable);
  }
  return "not found in PATH; install it, or give its path";
}

std::string why_not_permitted(const Command& command) {
  const std::string file = found_file(command);
  struct stat facts {};
  if (!file.empty() && ::stat(file.c_str(), &facts) == 0) {
    if (S_ISDIR(facts.st_mode)) return "it is a folder, not a program";
    if ((facts.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH)) == 0) {
      return fmt::format("it is not executable; run: chmod +x {}", command.executable);
    }
  }
  return "permission denied; check the rights of the file and its folders, and that the file "
         "system is not mounted noexec";
}

std::string why_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return fmt::format(
      "no file descriptor is left (limit {}); raise it with ulimit -n, or start fewer workers",
      limit.rlim_cur);
}

std::string why_processes() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NPROC, &limit);
  const std::string text =
      limit.rlim_cur == RLIM_INFINITY ? std::string("unlimited") : std::to_string(limit.rlim_cur);
  return fmt::format(
      "no process is left (limit {}); raise it with ulimit -u or pids.max of the cgroup, or start "
      "fewer workers",
      text);
}

// Shortages can strike at every stage. Empty: `number` is none.
std::string why_short(int number) {
  if (number == EMFILE) return why_descriptors();
  if (number == ENFILE) return "the system has no file descriptor left (sysctl fs.file-max)";
  if (number == EAGAIN) return why_processes();
  if (number == ENOMEM) return "not enough memory to start a process";
  return {};
}

std::string why_not_executed(const Command& command, int number) {
  switch (number) {
    case ENOENT:
    case ENOTDIR:
      return why_not_found(command);
    case EACCES:
      return why_not_permitted(command);
    case ENOEXEC:
      return "exec format error: neither a program for this machine nor a script that begins with "
             "#!";
    case E2BIG:
      return "its arguments and environment are too large; shorten them, or raise ulimit -s";
    case ETXTBSY:
      return "the file is open for writing; wait until it is complete";
    default:
      return describe_errno(number);
  }
}

std::string join(const std::vector<int>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ","));
}

std::string why(const Command& command, Stage stage, int number) {
  switch (stage) {
    case Stage::Clone:
      if (number == EINVAL) return "the kernel is too old; Linux 5.4 or later is needed";
      return describe_errno(number);
    case Stage::Cpus:
      return fmt::format("cannot run on the CPUs {}: {}; none of them exists or is allowed here",
                         join(command.placement.cpus), describe_errno(number));
    case Stage::Memory:
      return fmt::format("cannot take memory from the NUMA nodes {}: {}{}",
                         join(command.placement.nodes), describe_errno(number),
                         number == EPERM ? "; a container needs CAP_SYS_NICE for that" : "");
    case Stage::Descriptors:
      return fmt::format("cannot arrange its descriptors: {}", describe_errno(number));
    case Stage::Folder:
      return fmt::format("cannot enter its folder {}: {}", log::quote(command.folder),
                         describe_errno(number));
    case Stage::Execute:
      return why_not_executed(command, number);
  }
  return describe_errno(number);
}

}  // namespace

std::vector<std::string> candidates(std::string_view executable,
                                    const std::vector<std::string>& environment) {
  if (executable.empty()) return {};
  if (has_slash(executable)) return {std::string(executable)};
  std::string_view path = kPathDefault;
  for (const std::string& variable : environment) {
    if (!variable.starts_with("PATH=")) continue;
    path = std::string_view(variable).substr(5);
    break;
  }
  std::vector<std::string> found;
  for (;;) {
    const std::size_t end = path.find(':');
    const std::string_view folder = path.substr(0, end);
    // An empty entry is the current folder.
    found.push_back(fmt::format("{}/{}", folder.empty() ? "." : folder, executable));
    if (end == std::string_view::npos) return found;
    path.remove_prefix(end + 1);
  }
}

Error explain(const Command& command, Stage stage, int number) {
  const std::string shortage = why_short(number);
  const ErrorKind kind = shortage.empty() ? ErrorKind::Invalid : ErrorKind::Unavailable;
  const std::string reason = shortage.empty() ? why(command, stage, number) : shortage;
  return Error{kind, fmt::format("cannot start {}: {}", log::quote(command.executable), reason)};
}

}  // namespace muster::process::internal
