#include "muster/rpc/stream.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <utility>

namespace muster::rpc {
namespace {

// Within a host, nothing is on its way for long: what the kernel holds is what the reader has not
// read yet, and as long as it is little it stays in the caches. A large message takes a quarter
// less time than with the megabytes that the kernel comes to by itself. The kernel doubles it,
// and takes no more than net.core.wmem_max.
constexpr int kSendBytesWithinHost = 512 * 1024;

// Both ends of a TCP connection have the same address.
bool is_within_host(int socket) {
  sockaddr_storage near{};
  sockaddr_storage far{};
  socklen_t near_size = sizeof near;
  socklen_t far_size = sizeof far;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&near), &near_size) != 0) return false;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&far), &far_size) != 0) return false;
  if (near.ss_family != far.ss_family) return false;
  if (near.ss_family == AF_INET) {
    return reinterpret_cast<sockaddr_in&>(near).sin_addr.s_addr ==
           reinterpret_cast<sockaddr_in&>(far).sin_addr.s_addr;
  }
  if (near.ss_family == AF_INET6) {
    return std::memcmp(&reinterpret_cast<sockaddr_in6&>(near).sin6_addr,
                       &reinterpret_cast<sockaddr_in6&>(far).sin6_addr, sizeof(in6_addr)) == 0;
  }
  return false;
}

}  // namespace

SocketStream::SocketStream(Fd socket) : socket_(std::move(socket)) {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK);
  if (is_within_host(socket_.get())) {
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &kSendBytesWithinHost,
                 sizeof kSendBytesWithinHost);
  }
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
