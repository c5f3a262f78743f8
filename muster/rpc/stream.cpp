#include "muster/rpc/stream.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/socket.h>
#include <utility>

namespace muster::rpc {

SocketStream::SocketStream(Fd socket) : socket_(std::move(socket)) {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK);
}

Result<std::size_t> SocketStream::write(std::span<const iovec> pieces) {
  msghdr message{};
  // The kernel does not write to them.
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
  return fail(ErrorKind::Unavailable, describe_errno(errno));
}

Result<std::size_t> SocketStream::read(std::span<std::byte> into) {
  ssize_t got = 0;
  do {
    got = ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0) return fail(ErrorKind::Closed, "it closed the connection");
  if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
  return fail(ErrorKind::Unavailable, describe_errno(errno));
}

void SocketStream::close() { ::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace muster::rpc
