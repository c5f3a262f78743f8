#include "muster/process/signals.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace muster::process {
namespace {

sigset_t set_of(const std::vector<int>& signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : signals) ::sigaddset(&set, number);
  return set;
}

// Returns those that were not blocked before.
sigset_t block(const std::vector<int>& signals) {
  const sigset_t set = set_of(signals);
  sigset_t before;
  MUSTER_ASSERT(::pthread_sigmask(SIG_BLOCK, &set, &before) == 0);
  sigset_t added = set;
  for (const int number : signals) {
    if (::sigismember(&before, number) == 1) ::sigdelset(&added, number);
  }
  return added;
}

int open_signalfd(const std::vector<int>& signals) {
  const sigset_t set = set_of(signals);
  return ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

}  // namespace

Signals::Signals(net::EpollLoop& loop, const std::vector<int>& signals,
                 std::function<void(int, pid_t)> received)
    : received_(std::move(received)),
      ours_(block(signals)),
      fd_(open_signalfd(signals)),
      watch_(loop, fd_.get(), [this](std::uint32_t) { read_all(); }) {
  MUSTER_ASSERT(fd_.is_open());
  watch_.want(EPOLLIN);
}

Signals::~Signals() {
  if (destroyed_ != nullptr) *destroyed_ = true;
  signalfd_siginfo info;
  while (::read(fd_.get(), &info, sizeof info) > 0) {
  }
  ::pthread_sigmask(SIG_UNBLOCK, &ours_, nullptr);
}

void Signals::read_all() {
  bool destroyed = false;
  destroyed_ = &destroyed;
  // Out of the object while it runs, for it may destroy the object.
  const std::function<void(int, pid_t)> received = std::move(received_);
  signalfd_siginfo info;
  while (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    // Only a signal that a process sent has a sender; for others the field means something else.
    const bool sent = info.ssi_code == SI_USER || info.ssi_code == SI_TKILL ||
                      info.ssi_code == SI_QUEUE || info.ssi_signo == SIGCHLD;
    received(static_cast<int>(info.ssi_signo), sent ? static_cast<pid_t>(info.ssi_pid) : 0);
    if (destroyed) return;
  }
  received_ = received;
  destroyed_ = nullptr;
}

void block_signals(const std::vector<int>& signals) { block(signals); }

bool is_ignored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace muster::process
