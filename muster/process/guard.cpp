#include "muster/process/guard.h"

#include "muster/base/clock.h"
#include "muster/process/proc.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <new>
#include <poll.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::process {

using namespace std::chrono_literals;

namespace internal {

// A text that one process writes and another one reads. The length comes last and goes first, so
// that a writer that dies in between leaves an empty text and not half of one.
struct SharedText {
  std::atomic<std::size_t> bytes = 0;
  std::array<char, kGuardTextBytesMax> text{};

  void set(std::string_view value) {
    bytes.store(0, std::memory_order_seq_cst);
    if (value.size() >= text.size()) return;
    std::copy(value.begin(), value.end(), text.begin());
    bytes.store(value.size(), std::memory_order_seq_cst);
  }
  std::string_view get() const { return {text.data(), bytes.load(std::memory_order_seq_cst)}; }
};

struct GuardTable {
  std::array<std::atomic<pid_t>, kGuardGroupCountMax> groups{};  // 0: free
  SharedText token;
  SharedText cgroup;
  SharedText scratch;
  SharedText logs;
};

}  // namespace internal

namespace {

using internal::GuardTable;

constexpr std::string_view kName = "muster-guard";
constexpr char kDismissed = 'q';
constexpr int kSocket = 3;  // in the guard
constexpr Duration kScanFor = 2s;
constexpr int kCleanLookCount = 2;
constexpr long kNapNanoseconds = 2'000'000;
constexpr int kDismissMilliseconds = 1000;
constexpr std::size_t kFolderCountMax = 100'000;

static_assert(std::atomic<pid_t>::is_always_lock_free);
static_assert(std::atomic<std::size_t>::is_always_lock_free);

void write_file(const std::string& path, std::string_view text) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.is_open()) return;
  [[maybe_unused]] const ssize_t written = ::write(file.get(), text.data(), text.size());
}

// The command line that ps(1) shows is memory of the process, and still the agent's: whoever kills
// "muster run" by its command line must not hit the guard as well.
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

// Lets go of everything that belongs to the agent.
void separate(int socket) {
  ::setsid();
  ::prctl(PR_SET_NAME, kName.data(), 0, 0, 0);
  rename_command_line();
  const int null = ::open("/dev/null", O_RDWR);
  const int kept = ::fcntl(socket, F_DUPFD_CLOEXEC, kSocket + 1);
  for (int target = 0; target < 3; ++target) ::dup2(null, target);
  ::dup2(kept, kSocket);
  if (::syscall(SYS_close_range, kSocket + 1, ~0U, 0) != 0) {
    for (int fd = kSocket + 1; fd < 1024; ++fd) ::close(fd);
  }
  if (::chdir("/") != 0) return;  // only so that no file system stays busy
  // The last one that the kernel should kill when memory runs out; needs privileges.
  write_file("/proc/self/oom_score_adj", "-1000");
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
    if (token) ::kill(pid, SIGKILL);
  }
  return clean;
}

void end_workers(const GuardTable& table) {
  for (const std::atomic<pid_t>& group : table.groups) {
    const pid_t number = group.load();
    if (number > 1) ::kill(-number, SIGKILL);
  }
  const std::string_view cgroup = table.cgroup.get();
  if (!cgroup.empty()) write_file(fmt::format("{}/cgroup.kill", cgroup), "1");
  const std::string_view host_id = table.token.get();
  if (host_id.empty()) return;
  const SystemClock clock;
  const TimePoint deadline = clock.now() + kScanFor;
  // Again until whole looks find nobody: one may have forked behind our back.
  for (int clean_count = 0; clean_count < kCleanLookCount && clock.now() < deadline;) {
    clean_count = kill_carriers(host_id) ? clean_count + 1 : 0;
    const timespec nap{0, kNapNanoseconds};
    ::nanosleep(&nap, nullptr);
  }
}

// It stays busy until the last of its processes is really gone.
void remove_cgroup(const std::string& folder) {
  const SystemClock clock;
  const TimePoint deadline = clock.now() + kScanFor;
  while (::rmdir(folder.c_str()) != 0 && errno == EBUSY && clock.now() < deadline) {
    const timespec nap{0, kNapNanoseconds};
    ::nanosleep(&nap, nullptr);
  }
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

[[noreturn]] void run_guard(int socket, const GuardTable& table) {
  separate(socket);
  for (;;) {
    char letter = 0;
    const ssize_t got = ::read(kSocket, &letter, 1);
    if (got < 0 && errno == EINTR) continue;
    // Only the end of the connection is the end of the agent.
    if (got < 0) break;
    if (got == 1 && letter == kDismissed) break;
    end_workers(table);
    tidy_up(table);
    break;
  }
  ::_exit(0);
}

}  // namespace

Result<Guard> Guard::start() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot start the guard process: {}", describe_errno(errno)));
  }
  Fd ours(ends[0]);
  const Fd theirs(ends[1]);
  void* memory = ::mmap(nullptr, sizeof(GuardTable), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot start the guard process: {}", describe_errno(errno)));
  }
  auto* table = new (memory) GuardTable;
  // Blocked before the fork: no signal finds the guard unprepared.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) run_guard(theirs.get(), *table);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    ::munmap(memory, sizeof(GuardTable));
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot start the guard process: {}", describe_errno(error)));
  }
  return Guard(pid, std::move(ours), table);
}

Guard::Guard(pid_t pid, Fd pipe, GuardTable* table)
    : pid_(pid), pipe_(std::move(pipe)), table_(table) {}

Guard::Guard(Guard&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pipe_(std::move(other.pipe_)),
      table_(std::exchange(other.table_, nullptr)) {}

Guard::~Guard() {
  dismiss();
  if (table_ != nullptr) ::munmap(table_, sizeof(GuardTable));
}

void Guard::watch_token(std::string_view host_id) { table_->token.set(host_id); }

void Guard::watch_cgroup(std::string_view folder) { table_->cgroup.set(folder); }

void Guard::watch_scratch(std::string_view folder) { table_->scratch.set(folder); }

void Guard::watch_empty_folders(std::string_view folder) { table_->logs.set(folder); }

void Guard::adopt(pid_t group) {
  for (std::atomic<pid_t>& place : table_->groups) {
    if (place.load() != 0) continue;
    place.store(group);
    return;
  }
}

void Guard::forget(pid_t group) {
  for (std::atomic<pid_t>& place : table_->groups) {
    if (place.load() == group) place.store(0);
  }
}

void Guard::dismiss() {
  if (!pipe_.is_open()) return;
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (::send(pipe_.get(), &kDismissed, 1, MSG_NOSIGNAL) == 1 && pidfd.is_open()) {
    pollfd ended{pidfd.get(), POLLIN, 0};
    // Only one that was stopped takes its time, and it may not stay behind.
    while (::poll(&ended, 1, kDismissMilliseconds) < 0 && errno == EINTR) {
    }
    ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
  }
  pipe_.reset();
  siginfo_t info{};
  // Fails when the Host has reaped it, which is as good.
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 && errno == EINTR) {
  }
}

}  // namespace muster::process
