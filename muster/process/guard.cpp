#include "muster/process/guard.h"

#include "muster/process/guard_table.h"
#include "muster/process/proc.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <string_view>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace muster::process {
namespace {

using internal::GuardTable;

constexpr std::string_view kName = "muster-agent";

// The command line that ps(1) shows is memory of the process, and still the same in both: whoever
// kills "muster run" by its command line must not hit the agent as well.
void rename_command_line() {
  const Fd file(::open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> buffer{};
  const ssize_t got = file.is_open() ? ::read(file.get(), buffer.data(), buffer.size()) : 0;
  std::string_view line(buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  const std::size_t close = line.rfind(") ");
  if (close == std::string_view::npos) return;
  line.remove_prefix(close + 2);
  // The arguments lie between fields 48 and 49; the next one is field 3.
  std::array<std::uintptr_t, 2> bounds{};
  for (int field = 3; field <= 49; ++field) {
    const std::string_view word = line.substr(0, line.find_first_of(" \n"));
    line.remove_prefix(std::min(word.size() + 1, line.size()));
    if (field >= 48) {
      std::from_chars(word.data(), word.data() + word.size(),
                      bounds[static_cast<std::size_t>(field - 48)]);
    }
  }
  if (bounds[0] == 0 || bounds[1] <= bounds[0]) return;
  char* place = reinterpret_cast<char*>(bounds[0]);  // NOLINT(performance-no-int-to-ptr)
  const std::size_t room = bounds[1] - bounds[0];
  std::memset(place, 0, room);
  std::memcpy(place, kName.data(), std::min(kName.size(), room - 1));
}

void become_agent(sigset_t before) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, kName.data(), 0, 0, 0);
  rename_command_line();
  // Whoever kills the guard may have stopped us before; so that we notice.
  ::prctl(PR_SET_PDEATHSIG, SIGCONT, 0, 0, 0);
  ::sigaddset(&before, SIGTTOU);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

tl::unexpected<Error> cannot_start(int error) {
  return fail(ErrorKind::Unavailable,
              fmt::format("cannot start the agent's process: {}", describe_errno(error)));
}

}  // namespace

Result<Guard> Guard::start() {
  const pid_t self = ::getpid();
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, self, 0)));
  if (!pidfd.is_open()) return cannot_start(errno);
  void* memory = ::mmap(nullptr, sizeof(GuardTable), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return cannot_start(errno);
  auto* table = new (memory) GuardTable;
  std::vector<Stat> strangers;
  for (Member& member : descendants({})) strangers.push_back(std::move(member.stat));
  // Whoever started us may have had this signal ignored, and then the kernel throws away how
  // children ended.
  struct sigaction as_default {};
  as_default.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &as_default, nullptr);
  int was_subreaper = 0;
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper, 0, 0, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  // Blocked before the fork: no signal finds the guard unprepared.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t agent = ::fork();
  if (agent == 0) {
    become_agent(before);
    return Guard(self, std::move(pidfd), table);
  }
  if (agent > 0) {
    pidfd.reset();
    internal::guard(agent, *table, strangers);
  }
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper, 0, 0, 0);
  ::munmap(memory, sizeof(GuardTable));
  return cannot_start(error);
}

Guard::Guard(pid_t pid, Fd pidfd, GuardTable* table)
    : pid_(pid), pidfd_(std::move(pidfd)), table_(table) {}

Guard::Guard(Guard&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      table_(std::exchange(other.table_, nullptr)) {}

Guard::~Guard() {
  if (table_ != nullptr) ::munmap(table_, sizeof(GuardTable));
}

void Guard::watch_token(std::string_view host_id) { table_->token.set(host_id); }

void Guard::watch_cgroup(std::string_view folder) { table_->cgroup.set(folder); }

void Guard::watch_scratch(std::string_view folder) { table_->scratch.set(folder); }

void Guard::watch_empty_folders(std::string_view folder) { table_->logs.set(folder); }

void Guard::pass_on(const std::vector<int>& signals) {
  std::uint64_t mask = 0;
  for (const int number : signals) mask |= std::uint64_t{1} << (number - 1);
  table_->passed_on.store(mask);
}

}  // namespace muster::process
