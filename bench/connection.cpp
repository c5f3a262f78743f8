#include "bench/connection.h"

#include <fmt/format.h>

#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

namespace muster::bench {
namespace {

bool would_block(int number) {
  return number == EAGAIN || number == EWOULDBLOCK || number == EINTR;
}

}  // namespace

Result<Connection> Connection::open(int port, const Protocol& protocol, Protocol::Role role) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot make a socket: {}", describe_errno(errno)));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot connect to port {}: {}", port, describe_errno(errno)));
  }
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Connection connection(std::move(fd));
  protocol.append_hello(role, connection.out_);
  auto reply = connection.await_reply(
      [&](std::string_view received) { return protocol.parse_hello(received); });
  if (!reply) return fail(std::move(reply.error()));
  return connection;
}

Connection::~Connection() {
  if (!fd_.is_open()) return;
  const linger abort{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
}

Result<> Connection::flush() {
  std::size_t sent_bytes = 0;
  while (sent_bytes < out_.size()) {
    const ssize_t sent = ::send(fd_.get(), out_.data() + sent_bytes, out_.size() - sent_bytes,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && would_block(errno)) break;
    if (sent < 0)
      return fail(ErrorKind::Closed, fmt::format("cannot send: {}", describe_errno(errno)));
    sent_bytes += static_cast<std::size_t>(sent);
  }
  out_.erase(0, sent_bytes);
  return {};
}

Result<std::string_view> Connection::read_into(std::span<char> scratch) {
  const ssize_t got = ::recv(fd_.get(), scratch.data(), scratch.size(), MSG_DONTWAIT);
  if (got > 0) return std::string_view(scratch.data(), static_cast<std::size_t>(got));
  if (got < 0 && would_block(errno)) return std::string_view();
  if (got < 0)
    return fail(ErrorKind::Closed, fmt::format("cannot receive: {}", describe_errno(errno)));
  return fail(ErrorKind::Closed, "the server closed the connection");
}

Result<std::string> Connection::await_reply(const Parser& parse) {
  std::array<char, 4096> scratch{};
  std::optional<std::string> payload;
  const auto take = [&](std::string_view received) -> Result<std::size_t> {
    auto reply = parse(received);
    if (!reply) return fail(std::move(reply.error()));
    if (!*reply) return std::size_t{0};
    payload.emplace((*reply)->payload);
    return (*reply)->bytes;
  };
  while (!payload) {
    if (auto flushed = flush(); !flushed) return fail(std::move(flushed.error()));
    const short events = is_flushed() ? POLLIN : static_cast<short>(POLLIN | POLLOUT);
    if (auto ready = wait_for(events); !ready) return fail(std::move(ready.error()));
    if (auto received = receive(scratch, take); !received) return fail(std::move(received.error()));
  }
  return std::move(*payload);
}

Result<> Connection::wait_for(short events) const {
  pollfd poll{.fd = fd_.get(), .events = events, .revents = 0};
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience).count();
  if (::poll(&poll, 1, static_cast<int>(patience)) > 0) return {};
  return fail(ErrorKind::Timeout, "the server does not answer");
}

}  // namespace muster::bench
