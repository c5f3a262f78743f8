#include "muster/base/clock.h"
#include "muster/watchdog/address.h"
#include "muster/watchdog/socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

namespace muster::watchdog {
namespace {

constexpr std::size_t kAnswerBytesMax = 64 * 1024;

// Waits until the descriptor is ready; false when the deadline has passed.
bool wait_for(int fd, short events, const Clock& clock, TimePoint deadline) {
  while (true) {
    const TimePoint now = clock.now();
    int milliseconds = -1;
    if (deadline != kNever) {
      if (deadline <= now) return false;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
      milliseconds = static_cast<int>(std::min<decltype(left)>(left, 3'600'000));
    }
    pollfd entry{fd, events, 0};
    const int count = ::poll(&entry, 1, milliseconds);
    if (count > 0 || (count < 0 && errno != EINTR)) return true;  // an error shows at the next call
  }
}

// One conversation. Every step ends at the deadline.
class Conversation {
 public:
  Conversation(const std::string& path, Duration timeout)
      : path_(path), deadline_(after(clock_.now(), timeout)) {}

  Result<> connect() {
    const auto address = internal::unix_address(path_);
    if (!address) return fail(address.error());
    // Blocks while the listener's queue is full; a socket that does not block could not wait for a
    // place in it. So the wait is bounded by the time-out for sending.
    fd_ = Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd_.is_open()) return unreachable(errno);
    if (deadline_ != kNever) {
      const auto left =
          std::max(std::chrono::duration_cast<std::chrono::microseconds>(deadline_ - clock_.now()),
                   std::chrono::microseconds(1));
      timeval limit{};
      limit.tv_sec = static_cast<time_t>(left.count() / 1'000'000);
      limit.tv_usec = static_cast<suseconds_t>(left.count() % 1'000'000);
      ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    }
    while (::connect(fd_.get(), address->get(), address->size) != 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return timed_out();
      return unreachable(errno);
    }
    return {};
  }

  Result<> send(std::string_view bytes) {
    while (!bytes.empty()) {
      if (!wait_for(fd_.get(), POLLOUT, clock_, deadline_)) return timed_out();
      const ssize_t sent =
          ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (sent < 0) break;  // it may have answered before it closed
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return {};
  }

  Result<std::string> receive_line() {
    std::string line;
    char buffer[1024];
    while (line.size() < kAnswerBytesMax) {
      if (!wait_for(fd_.get(), POLLIN, clock_, deadline_)) return timed_out();
      const ssize_t got = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) break;
      line.append(buffer, static_cast<std::size_t>(got));
      const std::size_t end = line.find('\n');
      if (end != std::string::npos) return line.substr(0, end);
    }
    return fail(ErrorKind::Closed, fmt::format("the agent at {} gave no answer", path_));
  }

 private:
  tl::unexpected<Error> unreachable(int number) const {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot reach the agent at {}: {}", path_, describe_errno(number)));
  }
  tl::unexpected<Error> timed_out() const {
    return fail(ErrorKind::Timeout, fmt::format("the agent at {} did not answer in time", path_));
  }

  const std::string& path_;
  SystemClock clock_;
  TimePoint deadline_;
  Fd fd_;
};

}  // namespace

Result<> tell_agent(const std::string& path, std::string_view line, Duration timeout) {
  if (line.find('\n') != std::string_view::npos)
    return fail(ErrorKind::Invalid, "a message to the agent is a single line");
  Conversation agent(path, timeout);
  if (auto done = agent.connect(); !done) return done;
  std::string message(line);
  message += '\n';
  if (auto done = agent.send(message); !done) return done;
  const auto answer = agent.receive_line();
  if (!answer) return fail(answer.error());
  if (*answer == "ok") return {};
  constexpr std::string_view kError = "error ";
  if (answer->starts_with(kError)) return fail(ErrorKind::Invalid, answer->substr(kError.size()));
  return fail(ErrorKind::Closed,
              fmt::format("the agent at {} answered something else than expected", path));
}

}  // namespace muster::watchdog
