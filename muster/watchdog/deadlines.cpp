#include "muster/watchdog/deadlines.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::watchdog {
namespace {

// glibc has these only since 2.36, and older kernels answer with ENOSYS.
int open_pidfd(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }
int signal_pidfd(int pidfd, int number) {
  return static_cast<int>(::syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0));
}

tl::unexpected<Error> not_ours(pid_t pid) {
  return fail(ErrorKind::Invalid, fmt::format("process {} is not one of our workers'", pid));
}

bool exists(pid_t pid) { return ::kill(pid, 0) == 0 || errno == EPERM; }

}  // namespace

struct Deadlines::Watched {
  pid_t pid = 0;
  Fd pidfd;                           // closed if there are no pidfds here
  std::optional<net::FdWatch> ended;  // destroyed before the pidfd
  bool signal_failed = false;         // and that was said
};

Deadlines::Deadlines(net::EpollLoop& loop, DeadlinesOptions options)
    : loop_(loop), options_(std::move(options)), timer_(loop, [this] { expire(); }) {
  MUSTER_ASSERT(options_.belongs && options_.expired);
}

Deadlines::~Deadlines() = default;

Result<> Deadlines::set(Timeout timeout) {
  if (timeout.signal < 0) timeout.signal = 0;
  if (timeout.signal > SIGRTMAX)
    return fail(ErrorKind::Invalid, fmt::format("there is no signal {}", timeout.signal));
  auto admitted = admit(timeout.pid);
  if (!admitted) return admitted;
  auto done = timers_.set(std::move(timeout));
  update();
  return done;
}

Result<> Deadlines::admit(pid_t pid) {
  if (processes_.contains(pid)) return {};
  // Whatever `belongs` thinks: a deadline is for a worker, never for the agent.
  if (pid <= 1 || pid == ::getpid()) return not_ours(pid);
  if (processes_.size() >= options_.processes_max && !make_room()) {
    return fail(ErrorKind::Unavailable,
                fmt::format("{} processes have timers already", options_.processes_max));
  }
  auto process = std::make_unique<Watched>();
  process->pid = pid;
  process->pidfd = Fd(open_pidfd(pid));
  if (!process->pidfd.is_open()) {
    if (errno == ESRCH) return fail(ErrorKind::Closed, fmt::format("process {} has ended", pid));
    if (errno == EINVAL)
      return fail(ErrorKind::Invalid, fmt::format("{} is a thread, not a process", pid));
    // Its end will be noticed when a timer expires.
    log::debug("watchdog", "cannot watch a process pid={} reason=\"{}\"", pid,
               describe_errno(errno));
  }
  // Asked only now: what is true of the process behind a pidfd stays true.
  if (!options_.belongs(pid)) return not_ours(pid);
  if (process->pidfd.is_open()) {
    process->ended.emplace(loop_, process->pidfd.get(),
                           [this, pid](std::uint32_t) { forget(pid); });
    process->ended->want(EPOLLIN);
  }
  processes_.emplace(pid, std::move(process));
  return {};
}

// Processes are kept between their timers, to watch each only once; those that have none can go.
bool Deadlines::make_room() {
  // Some have none only because they are being reported.
  if (is_expiring_) return false;
  std::erase_if(processes_, [&](const auto& entry) { return timers_.count(entry.first) == 0; });
  return processes_.size() < options_.processes_max;
}

bool Deadlines::release(pid_t pid, std::string_view scope) {
  const bool was_there = timers_.release(pid, scope);
  if (was_there) update();
  return was_there;
}

void Deadlines::forget(pid_t pid) {
  timers_.drop(pid);
  processes_.erase(pid);
  update();
}

void Deadlines::clear() {
  timers_.clear();
  processes_.clear();
  ++era_;
  update();
}

Result<> Deadlines::signal(pid_t pid, int number) {
  MUSTER_ASSERT(pid > 1 && pid != ::getpid());
  const auto process = processes_.find(pid);
  const bool has_pidfd = process != processes_.end() && process->second->pidfd.is_open();
  const int done =
      has_pidfd ? signal_pidfd(process->second->pidfd.get(), number) : ::kill(pid, number);
  if (done == 0 || errno == ESRCH) return {};
  return fail(ErrorKind::Unavailable,
              fmt::format("cannot signal process {}: {}", pid, describe_errno(errno)));
}

void Deadlines::expire() {
  const std::uint64_t era = era_;
  std::vector<Timeout> late = timers_.expire(loop_.now());
  is_expiring_ = true;
  for (Timeout& timeout : late) {
    // The calls may clear everything, or forget some.
    if (era_ != era) break;
    const auto process = processes_.find(timeout.pid);
    if (process == processes_.end()) continue;
    if (!is_still_there(*process->second)) {
      forget(timeout.pid);
      continue;
    }
    if (!process->second->signal_failed) ++expired_count_;
    settle(std::move(timeout), era);
  }
  is_expiring_ = false;
  update();
}

// A pidfd would have told us, though perhaps only later in this turn.
bool Deadlines::is_still_there(const Watched& process) const {
  if (!process.pidfd.is_open()) return exists(process.pid) && options_.belongs(process.pid);
  return signal_pidfd(process.pidfd.get(), 0) == 0 || errno != ESRCH;
}

void Deadlines::settle(Timeout late, std::uint64_t era) {
  const auto done = options_.expired(late);
  if (era_ != era) return;
  const auto process = processes_.find(late.pid);
  if (process == processes_.end()) return;
  if (late.signal == 0) return;
  if (done) {
    process->second->signal_failed = false;
    return;
  }
  if (!std::exchange(process->second->signal_failed, true)) {
    log::warn("watchdog", "{}, trying again every {} pid={} scope={}", done.error().message,
              describe(options_.signal_retry), late.pid, log::quote(late.scope));
  }
  // There is room: this very timer has just been taken out.
  late.deadline = loop_.now() + options_.signal_retry;
  const auto set = timers_.set(std::move(late));
  if (!set) log::error("watchdog", "{}, the process goes on", set.error().message);
}

void Deadlines::update() { timer_.set(timers_.next_deadline().value_or(kNever)); }

}  // namespace muster::watchdog
