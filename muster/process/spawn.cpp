#include "muster/process/spawn.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// Code that runs in the child while it shares memory with us: the kernel's calls and nothing else.
// Sanitizers keep their books in that memory, so they must not look.
#define MUSTER_CHILD_CODE __attribute__((noinline, no_sanitize("address", "undefined", "thread")))

namespace muster::process::internal {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} * 1024;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
constexpr int kSignalLast = 64;
constexpr std::size_t kSignalSetBytes = 8;  // the kernel's, not the C library's
constexpr std::uint64_t kCloneIntoCgroup = 0x200000000ULL;
constexpr unsigned kFirstExtraFd = 3;
constexpr unsigned kFdScanMax = 1U << 20;

// Values of <numaif.h>, which belongs to a library that we do not need.
constexpr int kMemoryPreferred = 1;
constexpr int kMemoryBind = 2;
constexpr int kMemoryPreferredMany = 5;

// The argument of clone3 up to and including `cgroup`.
struct CloneArguments {
  std::uint64_t flags = 0;
  std::uint64_t pidfd = 0;
  std::uint64_t child_tid = 0;
  std::uint64_t parent_tid = 0;
  std::uint64_t exit_signal = 0;
  std::uint64_t stack = 0;
  std::uint64_t stack_size = 0;
  std::uint64_t tls = 0;
  std::uint64_t set_tid = 0;
  std::uint64_t set_tid_size = 0;
  std::uint64_t cgroup = 0;
};

using Words = std::vector<unsigned long>;

Words bits_of(const std::vector<int>& indices, int count_max) {
  Words words;
  for (const int index : indices) {
    if (index < 0 || index >= count_max) continue;
    const auto place = static_cast<std::size_t>(index);
    if (words.size() <= place / kWordBits) words.resize(place / kWordBits + 1);
    words[place / kWordBits] |= 1UL << (place % kWordBits);
  }
  return words;
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  // execve takes char* for historical reasons and changes nothing.
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

struct Spawner::Report {
  Stage stage;
  int error;  // 0: the program runs
};

namespace {

// Everything the child needs, made ready by the parent: the child allocates nothing.
struct Plan {
  char* const* candidates = nullptr;
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
  const char* folder = nullptr;
  int fds[3] = {-1, -1, -1};
  unsigned fd_limit = 0;
  pid_t parent = 0;
  const unsigned long* cpus = nullptr;
  std::size_t cpus_bytes = 0;
  int memory_mode = 0;
  int memory_mode_before_5_15 = 0;
  const unsigned long* nodes = nullptr;
  unsigned long nodes_bits = 0;
  volatile Stage* stage = nullptr;
  volatile int* error = nullptr;
};

[[noreturn]] MUSTER_CHILD_CODE void give_up(const Plan& plan, Stage stage) {
  *plan.stage = stage;
  *plan.error = errno;
  for (;;) ::syscall(SYS_exit_group, 127);
}

MUSTER_CHILD_CODE void become_a_worker(const Plan& plan) {
  // All zero is "the default action" in the kernel's structure on every architecture.
  const unsigned long as_default[8] = {};
  for (long number = 1; number <= kSignalLast; ++number) {
    ::syscall(SYS_rt_sigaction, number, as_default, nullptr, kSignalSetBytes);
  }
  ::syscall(SYS_setsid);
  ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  // If the parent died before the line above, nobody will ever send that signal.
  if (::syscall(SYS_getppid) != plan.parent) {
    for (;;) ::syscall(SYS_exit_group, 127);
  }
}

MUSTER_CHILD_CODE void take_place(const Plan& plan) {
  if (plan.cpus != nullptr &&
      ::syscall(SYS_sched_setaffinity, 0, plan.cpus_bytes, plan.cpus) != 0) {
    give_up(plan, Stage::Cpus);
  }
  if (plan.nodes == nullptr) return;
  long done = ::syscall(SYS_set_mempolicy, plan.memory_mode, plan.nodes, plan.nodes_bits);
  if (done != 0 && errno == EINVAL && plan.memory_mode_before_5_15 != plan.memory_mode) {
    done = ::syscall(SYS_set_mempolicy, plan.memory_mode_before_5_15, plan.nodes, plan.nodes_bits);
  }
  if (done != 0) give_up(plan, Stage::Memory);
}

MUSTER_CHILD_CODE void arrange_descriptors(const Plan& plan) {
  int sources[3];
  // First away from 0, 1 and 2: none may be overwritten before it is copied.
  for (int target = 0; target < 3; ++target) {
    sources[target] = plan.fds[target];
    if (sources[target] < 0 || sources[target] > 2) continue;
    const long moved =
        ::syscall(SYS_fcntl, sources[target], F_DUPFD_CLOEXEC, static_cast<int>(kFirstExtraFd));
    if (moved < 0) give_up(plan, Stage::Descriptors);
    sources[target] = static_cast<int>(moved);
  }
  for (int target = 0; target < 3; ++target) {
    if (sources[target] >= 0 && ::syscall(SYS_dup3, sources[target], target, 0) < 0) {
      give_up(plan, Stage::Descriptors);
    }
  }
  if (::syscall(SYS_close_range, kFirstExtraFd, ~0U, 0) == 0) return;
  for (unsigned fd = kFirstExtraFd; fd < plan.fd_limit; ++fd) ::syscall(SYS_close, fd);
}

[[noreturn]] MUSTER_CHILD_CODE void execute(const Plan& plan) {
  // A file that may not be executed does not end the search, but is the better explanation.
  int error = ENOENT;
  for (char* const* path = plan.candidates; *path != nullptr; ++path) {
    ::syscall(SYS_execve, *path, plan.arguments, plan.environment);
    if (errno == ENOENT || errno == ENOTDIR) continue;
    error = errno;
    if (errno != EACCES) break;
  }
  errno = error;
  give_up(plan, Stage::Execute);
}

MUSTER_CHILD_CODE int run_child(void* argument) {
  const Plan& plan = *static_cast<const Plan*>(argument);
  become_a_worker(plan);
  take_place(plan);
  if (plan.folder != nullptr && ::syscall(SYS_chdir, plan.folder) != 0) {
    give_up(plan, Stage::Folder);
  }
  arrange_descriptors(plan);
  const unsigned long nothing[2] = {};
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, nothing, nullptr, kSignalSetBytes);
  execute(plan);
}

// The child's pid, or minus an errno value.
pid_t clone_sharing(Plan& plan, void* stack, int& pidfd) {
  constexpr int kFlags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD;
  void* top = static_cast<char*>(stack) + kStackBytes;
  const pid_t pid = ::clone(run_child, top, kFlags, &plan, &pidfd);
  return pid < 0 ? -errno : pid;
}

pid_t clone_into(Plan& plan, const std::string& cgroup, int& pidfd) {
  const Fd folder(::open(cgroup.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) return -errno;
  CloneArguments arguments;
  arguments.flags = CLONE_VFORK | CLONE_PIDFD | kCloneIntoCgroup;
  arguments.pidfd = reinterpret_cast<std::uintptr_t>(&pidfd);
  arguments.exit_signal = SIGCHLD;
  arguments.cgroup = static_cast<std::uint64_t>(folder.get());
  const long pid = ::syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid == 0) run_child(&plan);
  return pid < 0 ? -errno : static_cast<pid_t>(pid);
}

bool is_shortage(int error) {
  return error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
}

pid_t clone_child(Plan& plan, const std::string& cgroup, void* stack, int& pidfd) {
  // No handler of ours may run in the child.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_t pid = -1;
  if (!cgroup.empty()) {
    pid = clone_into(plan, cgroup, pidfd);
    if (pid < 0 && !is_shortage(-pid)) {
      log::debug("process", "cannot start inside a cgroup, starting outside cgroup={} reason={}",
                 log::quote(cgroup), log::quote(describe_errno(-pid)));
    }
  }
  if (cgroup.empty() || (pid < 0 && !is_shortage(-pid))) pid = clone_sharing(plan, stack, pidfd);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return pid;
}

unsigned fd_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFdScanMax;
  return static_cast<unsigned>(std::min<rlim_t>(limit.rlim_cur, kFdScanMax));
}

void set_placement(Plan& plan, const Placement& placement, const Words& cpus, const Words& nodes) {
  if (!placement.cpus.empty()) {
    plan.cpus = cpus.data();
    plan.cpus_bytes = cpus.size() * sizeof(unsigned long);
  }
  if (placement.nodes.empty() || placement.memory == Placement::Memory::Default) return;
  plan.nodes = nodes.data();
  // The kernel takes one bit less than it is told.
  plan.nodes_bits = nodes.size() * kWordBits + 1;
  const bool bind = placement.memory == Placement::Memory::Bind;
  plan.memory_mode_before_5_15 = bind ? kMemoryBind : kMemoryPreferred;
  plan.memory_mode =
      bind ? kMemoryBind : (placement.nodes.size() > 1 ? kMemoryPreferredMany : kMemoryPreferred);
}

bool is_outside(const std::vector<int>& indices, int count_max) {
  return std::any_of(indices.begin(), indices.end(),
                     [&](int index) { return index < 0 || index >= count_max; });
}

}  // namespace

Spawner::Spawner() {
  constexpr int kProtection = PROT_READ | PROT_WRITE;
  // The lowest page stays out of reach, so that a stack that is too small is a crash and not a
  // riddle.
  stack_ =
      ::mmap(nullptr, kStackBytes, kProtection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  MUSTER_ASSERT(stack_ != MAP_FAILED);
  ::mprotect(stack_, kPageBytes, PROT_NONE);
  void* page = ::mmap(nullptr, kPageBytes, kProtection, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  MUSTER_ASSERT(page != MAP_FAILED);
  report_ = static_cast<Report*>(page);
}

Spawner::~Spawner() {
  ::munmap(stack_, kStackBytes);
  ::munmap(report_, kPageBytes);
}

Result<Spawned> Spawner::spawn(const Command& command,
                               const std::vector<std::string>& environment) {
  if (is_outside(command.placement.cpus, kCpuCountMax))
    return fail(explain(command, Stage::Cpus, EINVAL));
  if (is_outside(command.placement.nodes, kNodeCountMax))
    return fail(explain(command, Stage::Memory, EINVAL));
  const std::vector<std::string> paths = candidates(command.executable, environment);
  const std::vector<char*> path_pointers = pointers_to(paths);
  const std::vector<char*> arguments = pointers_to(command.arguments);
  const std::vector<char*> variables = pointers_to(environment);
  const Words cpus = bits_of(command.placement.cpus, kCpuCountMax);
  const Words nodes = bits_of(command.placement.nodes, kNodeCountMax);
  Plan plan;
  plan.candidates = path_pointers.data();
  plan.arguments = arguments.data();
  plan.environment = variables.data();
  if (!command.folder.empty()) plan.folder = command.folder.c_str();
  plan.fds[0] = command.input;
  plan.fds[1] = command.output;
  plan.fds[2] = command.error;
  plan.fd_limit = fd_limit();
  plan.parent = ::getpid();
  set_placement(plan, command.placement, cpus, nodes);
  report_->stage = Stage::Clone;
  report_->error = 0;
  plan.stage = &report_->stage;
  plan.error = &report_->error;

  int pidfd = -1;
  const pid_t pid = clone_child(plan, command.cgroup, stack_, pidfd);
  if (pid < 0) return fail(explain(command, Stage::Clone, -pid));
  Spawned spawned{pid, Fd(pidfd)};
  if (report_->error == 0) return spawned;
  siginfo_t ended{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED) != 0 && errno == EINTR) {
  }
  return fail(explain(command, report_->stage, report_->error));
}

}  // namespace muster::process::internal
