#include "muster/watchdog/socket.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/watchdog/address.h"
#include "muster/watchdog/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace muster::watchdog {
namespace {

constexpr int kAcceptBurstMax = 64;
constexpr Duration kAcceptRest = std::chrono::milliseconds(100);
constexpr std::size_t kReadBytes = 16 * 1024;
constexpr std::string_view kTooManyAnswer = "error there are too many connections\n";

// Whether someone accepts connections there.
bool is_listening(const internal::UnixAddress& address) {
  const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return true;  // we cannot know, so we leave it alone
  return ::connect(fd.get(), address.get(), address.size) == 0 || errno != ECONNREFUSED;
}

Result<Fd> listen_at(const std::string& path) {
  const auto problem = [&](ErrorKind kind, std::string_view reason) {
    return fail(kind, fmt::format("cannot listen at {}: {}", path, reason));
  };
  const auto address = internal::unix_address(path);
  if (!address) return fail(address.error());
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode) || is_listening(*address))
      return problem(ErrorKind::Conflict, "that name is taken");
    ::unlink(path.c_str());
  }
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return problem(ErrorKind::Unavailable, describe_errno(errno));
  // The file takes its mode from the socket, so there is no moment when others could connect.
  ::fchmod(fd.get(), S_IRUSR | S_IWUSR);
  if (::bind(fd.get(), address->get(), address->size) != 0) {
    const ErrorKind kind = errno == EADDRINUSE ? ErrorKind::Conflict : ErrorKind::Unavailable;
    return problem(kind, describe_errno(errno));
  }
  // The kernel cuts this to its own maximum: at start-up all workers connect at once.
  if (::listen(fd.get(), 1 << 20) != 0) {
    const int number = errno;
    ::unlink(path.c_str());
    return problem(ErrorKind::Unavailable, describe_errno(number));
  }
  return fd;
}

}  // namespace

struct AgentSocket::Connection {
  Fd fd;
  pid_t sender = 0;
  LineReader lines{kMessageBytesMax};
  std::string answers;  // that could not be written yet
  bool at_end = false;  // the sender has said everything; closed when the answers are written
  Connections::iterator place;
  std::optional<net::FdWatch> watch;  // destroyed before the descriptor
};

Result<std::unique_ptr<AgentSocket>> AgentSocket::create(net::EpollLoop& loop,
                                                         AgentSocketOptions options,
                                                         Handler handler) {
  auto listener = listen_at(options.path);
  if (!listener) return fail(listener.error());
  return std::unique_ptr<AgentSocket>(
      new AgentSocket(loop, std::move(options), std::move(handler), std::move(*listener)));
}

AgentSocket::AgentSocket(net::EpollLoop& loop, AgentSocketOptions options, Handler handler,
                         Fd listener)
    : loop_(loop),
      options_(std::move(options)),
      handler_(std::move(handler)),
      listener_(std::move(listener)),
      watch_(loop, listener_.get(), [this](std::uint32_t) { accept_some(); }),
      rest_(loop, [this] { watch_.want(EPOLLIN); }) {
  MUSTER_ASSERT(handler_);
  watch_.want(EPOLLIN);
}

// The name goes before the listener is closed: whoever finds it taken meanwhile finds us listening,
// and nobody can have put another socket there.
AgentSocket::~AgentSocket() { ::unlink(options_.path.c_str()); }

void AgentSocket::accept_some() {
  for (int count = 0; count < kAcceptBurstMax; ++count) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.is_open()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        log::warn("watchdog", "cannot accept a worker's connection: {}, trying again in {}",
                  describe_errno(errno), describe(kAcceptRest));
        watch_.want(0);
        rest_.set(loop_.now() + kAcceptRest);
      }
      return;
    }
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) continue;
    if (connections_.size() >= options_.connections_max) {
      [[maybe_unused]] const ssize_t sent =
          ::send(fd.get(), kTooManyAnswer.data(), kTooManyAnswer.size(), MSG_NOSIGNAL);
      continue;
    }
    auto connection = std::make_unique<Connection>();
    connection->fd = std::move(fd);
    connection->sender = peer.pid;
    Connection& entry = *connection;
    entry.place = connections_.insert(connections_.end(), std::move(connection));
    entry.watch.emplace(loop_, entry.fd.get(),
                        [this, &entry](std::uint32_t events) { serve(entry, events); });
    entry.watch->want(EPOLLIN);
  }
}

void AgentSocket::serve(Connection& connection, std::uint32_t events) {
  bool keep = true;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !connection.at_end)
    keep = read_some(connection);
  keep = keep && flush(connection);
  if (!keep || (connection.at_end && connection.answers.empty())) return remove(connection);
  // One that does not take its answers is not heard any further until it does.
  connection.watch->want(connection.answers.empty() ? EPOLLIN : EPOLLOUT);
}

// One piece a turn: a connection that talks without pause must not keep the loop to itself.
bool AgentSocket::read_some(Connection& connection) {
  char buffer[kReadBytes];
  const ssize_t got = ::recv(connection.fd.get(), buffer, sizeof buffer, 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  const LineReader::Handler handle = [&](const LineReader::Line& line) {
    return answer(connection, line.text, line.too_long);
  };
  if (got == 0) {
    connection.at_end = true;
    connection.lines.finish(handle);
  } else {
    connection.lines.feed({buffer, static_cast<std::size_t>(got)}, handle);
  }
  return connection.answers.size() <= kAgentAnswerBytesMax;
}

bool AgentSocket::answer(Connection& connection, std::string_view line, bool too_long) {
  // An overlong line is cut; its beginning is no message.
  auto message =
      too_long
          ? Result<Message>(fail(ErrorKind::Invalid,
                                 fmt::format("the line is longer than {} bytes", kMessageBytesMax)))
          : parse_message(line);
  Result<> done;
  if (message) {
    ++message_count_;
    done = handler_(connection.sender, *message);
  } else {
    done = fail(message.error());
  }
  if (done) {
    connection.answers += "ok\n";
  } else {
    std::string text = done.error().message;
    std::replace(text.begin(), text.end(), '\n', ' ');
    connection.answers += fmt::format("error {}\n", text);
  }
  return connection.answers.size() <= kAgentAnswerBytesMax;
}

bool AgentSocket::flush(Connection& connection) {
  while (!connection.answers.empty()) {
    const ssize_t sent = ::send(connection.fd.get(), connection.answers.data(),
                                connection.answers.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    connection.answers.erase(0, static_cast<std::size_t>(sent));
  }
  return true;
}

void AgentSocket::remove(Connection& connection) { connections_.erase(connection.place); }

}  // namespace muster::watchdog
