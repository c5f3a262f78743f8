// What the guard does from the fork of the agent to its own end; see guard.h.
#include "muster/base/clock.h"
#include "muster/process/guard_table.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <optional>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <unordered_set>

namespace muster::process::internal {

using namespace std::chrono_literals;

namespace {

constexpr Duration kScanFor = 2s;
constexpr int kCleanLookCount = 2;
constexpr long kNapNanoseconds = 2'000'000;
// How long a sender of signals may take until it is through with them.
constexpr int kSenderNapCount = 50;
constexpr std::size_t kFolderCountMax = 100'000;
constexpr int kSignalBase = 128;

void nap() {
  const timespec length{0, kNapNanoseconds};
  ::nanosleep(&length, nullptr);
}

void write_file(const std::string& path, std::string_view text) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.is_open()) return;
  [[maybe_unused]] const ssize_t written = ::write(file.get(), text.data(), text.size());
}

sigset_t only(int number) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, number);
  return set;
}

// -- signals -----------------------------------------------------------------------------------

// Stops with the agent, as a shell expects it, until somebody lets us go on. If nobody could (the
// process group is orphaned), the kernel does not stop us, and the agent goes on as well.
void stop_together(pid_t agent, int number) {
  ::kill(agent, SIGSTOP);
  struct sigaction as_default {};
  as_default.sa_handler = SIG_DFL;
  ::sigaction(number, &as_default, nullptr);
  const sigset_t set = only(number);
  ::raise(number);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);  // here we are stopped
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::kill(agent, SIGCONT);
}

// Some send a signal to the process and at once again to its whole group, timeout(1) for example,
// and mean it once. So the sender gets the moment it needs to be through with it: as long as it
// runs. Whoever has waited for anything in between means a second one.
void await_twin(const siginfo_t& info) {
  if (info.si_code != SI_USER || info.si_signo >= SIGRTMIN || info.si_pid == ::getpid()) return;
  for (int look = 0; look < kSenderNapCount; ++look) {
    const auto sender = read_stat(info.si_pid);
    if (!sender || sender->state != 'R') break;
    nap();
  }
  const sigset_t same = only(info.si_signo);
  const timespec at_once{};
  ::sigtimedwait(&same, nullptr, &at_once);
}

void pass_on(pid_t agent, const siginfo_t& info, const GuardTable& table) {
  const int number = info.si_signo;
  const bool stops = number == SIGTSTP || number == SIGTTIN || number == SIGTTOU;
  const bool wanted = (table.passed_on.load() >> (number - 1) & 1U) != 0;
  if (stops && !wanted) return stop_together(agent, number);
  await_twin(info);
  ::kill(agent, number);
}

// -- the end -----------------------------------------------------------------------------------

// Reaps all that have ended; how the agent did, if it is among them.
std::optional<siginfo_t> reap(pid_t agent) {
  std::optional<siginfo_t> found;
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) return found;
    if (info.si_pid == agent) found = info;
  }
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

// Kills all that descends from us, strangers excepted. True when there was nobody.
bool kill_descendants(const std::vector<Stat>& strangers) {
  std::unordered_set<pid_t> except;
  for (const Stat& stranger : strangers) {
    const auto now = read_stat(stranger.pid);
    if (now && now->start_time == stranger.start_time) except.insert(stranger.pid);
  }
  const std::vector<Member> left = descendants(except);
  for (const Member& member : left) signal_exactly(member.stat, SIGKILL);
  return left.empty();
}

// Kills whoever carries a token of the agent. True when there was nobody, and nobody whose token
// cannot be told yet.
bool kill_carriers(std::string_view host_id) {
  bool clean = true;
  for (const pid_t pid : all_processes()) {
    if (pid == ::getpid()) continue;
    const auto token = token_of(pid);
    if (token && !is_within(*token, host_id)) continue;
    const auto stat = read_stat(pid);
    if (!stat || stat->is_dead()) continue;
    clean = false;
    if (token) signal_exactly(*stat, SIGKILL);
  }
  return clean;
}

void end_all(const GuardTable& table, const std::vector<Stat>& strangers) {
  const std::string_view cgroup = table.cgroup.get();
  if (!cgroup.empty()) write_file(fmt::format("{}/cgroup.kill", cgroup), "1");
  const std::string_view host_id = table.token.get();
  const SystemClock clock;
  const TimePoint deadline = clock.now() + kScanFor;
  // Again until whole looks find nobody: one may have forked behind our back.
  for (int clean_count = 0; clean_count < kCleanLookCount && clock.now() < deadline;) {
    bool clean = kill_descendants(strangers);
    clean = (host_id.empty() || kill_carriers(host_id)) && clean;
    clean_count = clean ? clean_count + 1 : 0;
    if (!clean) nap();
    reap(0);
  }
}

// It stays busy until the last of its processes is really gone.
void remove_cgroup(const std::string& folder) {
  const SystemClock clock;
  const TimePoint deadline = clock.now() + kScanFor;
  while (::rmdir(folder.c_str()) != 0 && errno == EBUSY && clock.now() < deadline) nap();
}

// What the agent would have removed itself.
void tidy_up(const GuardTable& table) {
  const std::string cgroup(table.cgroup.get());
  if (!cgroup.empty()) remove_cgroup(cgroup);
  const std::string scratch(table.scratch.get());
  std::error_code ignored;
  if (!scratch.empty()) std::filesystem::remove_all(scratch, ignored);
  const std::string logs(table.logs.get());
  if (logs.empty()) return;
  // Deepest first; a folder with a file in it stays, and so do those above it.
  std::vector<std::filesystem::path> folders = {logs};
  for (std::size_t index = 0; index < folders.size() && folders.size() < kFolderCountMax; ++index) {
    for (const auto& entry : std::filesystem::directory_iterator(folders[index], ignored)) {
      if (entry.is_directory(ignored) && !entry.is_symlink(ignored))
        folders.push_back(entry.path());
    }
  }
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    ::rmdir(folder->c_str());
  }
}

[[noreturn]] void end_by_signal(int number) {
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  // the core that matters is the agent's
  struct sigaction as_default {};
  as_default.sa_handler = SIG_DFL;
  ::sigaction(number, &as_default, nullptr);
  ::raise(number);
  const sigset_t set = only(number);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  // The first process of a container cannot end so; then as shells say it.
  ::_exit(kSignalBase + number);
}

[[noreturn]] void end_as(const siginfo_t& agent, const GuardTable& table,
                         const std::vector<Stat>& strangers) {
  if (agent.si_code == CLD_EXITED) {
    // It has seen to everything itself, if there was time.
    if (has_children()) end_all(table, strangers);
    ::_exit(agent.si_status);
  }
  end_all(table, strangers);
  tidy_up(table);
  end_by_signal(agent.si_status);
}

}  // namespace

void guard(pid_t agent, const GuardTable& table, const std::vector<Stat>& strangers) {
  // The last one that the kernel should kill when memory runs out; needs privileges.
  write_file("/proc/self/oom_score_adj", "-1000");
  sigset_t all;
  ::sigfillset(&all);
  for (;;) {
    siginfo_t info{};
    const int number = ::sigwaitinfo(&all, &info);
    if (number == SIGCHLD) {
      if (const auto end = reap(agent)) end_as(*end, table, strangers);
    } else if (number > 0) {
      pass_on(agent, info, table);
    }
  }
}

}  // namespace muster::process::internal
