#include "muster/logs/console.h"

#include "muster/base/error.h"
#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <string_view>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace muster::logs {
namespace {

// A write to a pipe of at most so many bytes is done as a whole or not at all.
constexpr std::size_t kAtomicBytes = PIPE_BUF;
constexpr std::size_t kSocketBytes = std::size_t{1} << 16;
// How much is written in one turn, so that a fast reader does not keep the loop from its work.
constexpr std::size_t kTurnBytesMax = std::size_t{1} << 20;
// Memory that an empty queue may keep.
constexpr std::size_t kQueueBytesKept = kConsoleBytesFull;

}  // namespace

Console::Console(net::EpollLoop& loop, int fd, std::string name, std::function<void()> changed)
    : loop_(loop), fd_(fd), name_(std::move(name)), changed_(std::move(changed)) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0) {
    broken_ = true;  // closed by whoever started us; nothing is expected there
    return;
  }
  is_terminal_ = ::isatty(fd) == 1;
  if (S_ISFIFO(facts.st_mode) || S_ISSOCK(facts.st_mode) || is_terminal_) {
    kind_ = S_ISSOCK(facts.st_mode) ? Kind::Socket : Kind::Reopened;
    open_own(fd);
  }
}

Console::~Console() = default;

void Console::open_own(int fd) {
  if (kind_ == Kind::Reopened) {
    const std::string again = fmt::format("/proc/self/fd/{}", fd);
    own_ = Fd(::open(again.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    if (!own_.is_open()) kind_ = Kind::AskedBefore;
  }
  if (!own_.is_open()) own_ = Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!own_.is_open()) {
    kind_ = Kind::File;
    return;
  }
  watch_.emplace(loop_, own_.get(), [this](std::uint32_t) { flush(); });
}

void Console::added() {
  if (is_empty() || flush_soon_.queued()) return;
  // While the reader is slow, the watch tells when it makes sense to try again.
  if (waiting_) return;
  loop_.soon(
      flush_soon_, [](void* self) { static_cast<Console*>(self)->flush(); }, this);
}

std::size_t Console::next_write_bytes() const {
  const std::string_view rest = std::string_view(queue_).substr(written_);
  const std::size_t most = kind_ == Kind::File     ? rest.size()
                           : kind_ == Kind::Socket ? kSocketBytes
                                                   : kAtomicBytes;
  if (rest.size() <= most) return rest.size();
  const void* newline = ::memrchr(rest.data(), '\n', most);
  if (newline == nullptr) return most;
  return static_cast<std::size_t>(static_cast<const char*>(newline) - rest.data()) + 1;
}

std::ptrdiff_t Console::write_some(const char* bytes, std::size_t count) {
  switch (kind_) {
    case Kind::File:
      return ::write(fd_, bytes, count);
    case Kind::Socket:
      return ::send(own_.get(), bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    case Kind::AskedBefore: {
      pollfd asked{.fd = own_.get(), .events = POLLOUT, .revents = 0};
      if (::poll(&asked, 1, 0) != 1) {
        errno = EAGAIN;
        return -1;
      }
      break;
    }
    case Kind::Reopened:
      break;
  }
  return ::write(own_.get(), bytes, count);
}

void Console::flush() {
  std::size_t turn_bytes = 0;
  bool blocked = false;
  while (!is_empty() && !blocked) {
    const std::ptrdiff_t count = write_some(queue_.data() + written_, next_write_bytes());
    if (count >= 0) {
      written_ += static_cast<std::size_t>(count);
      total_bytes_ += static_cast<std::uint64_t>(count);
      turn_bytes += static_cast<std::size_t>(count);
      blocked = watch_ && turn_bytes >= kTurnBytesMax;
    } else if (errno == EAGAIN && watch_) {
      blocked = true;
    } else if (errno != EINTR) {
      break_off(errno);
    }
  }
  forget_written();
  wait_until_writable(!is_empty());
  changed_();
}

void Console::wait_until_writable(bool wanted) {
  waiting_ = wanted && watch_;
  if (watch_) watch_->want(wanted ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
}

void Console::forget_written() {
  if (is_empty()) {
    queue_.clear();
    if (queue_.capacity() > kQueueBytesKept) queue_.shrink_to_fit();
    written_ = 0;
  } else if (written_ > queue_.size() / 2) {
    queue_.erase(0, written_);
    written_ = 0;
  }
}

void Console::break_off(int number) {
  broken_ = true;
  log::warn("logs", "cannot write to {}: {}; what workers print no longer appears there", name_,
            describe_errno(number));
}

}  // namespace muster::logs
