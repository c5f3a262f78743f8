// RawClient: one TCP connection to a server, with blocking calls and no manners of its own.
#pragma once

#include "muster/base/fd.h"
#include "tests/server/requests.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <cerrno>
#include <cstdint>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/time.h>

namespace muster::tests {

// Owned by the test; any thread, one at a time.
class RawClient {
 public:
  // How a connection ended, as its user sees it.
  enum class Ending { Open, Closed, Reset };

  explicit RawClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    EXPECT_TRUE(fd_.is_open());
    const int on = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // Only what is broken takes this long.
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
        << errno;
  }
  RawClient(int port, Dialect dialect) : RawClient(port) {
    send(opening(dialect));
    if (dialect == Dialect::Extension) {
      EXPECT_EQ(receive(4), std::string("\x01\0\0\0", 4));
    }
  }

  // False if the connection is gone.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Fewer only if the connection ended or nothing came for too long.
  std::string receive(std::size_t size) {
    std::string bytes(size, '\0');
    std::size_t got = 0;
    while (got < size) {
      const ssize_t more = ::recv(fd_.get(), bytes.data() + got, size - got, 0);
      if (more <= 0) break;
      got += static_cast<std::size_t>(more);
    }
    bytes.resize(got);
    return bytes;
  }

  std::string ask(std::string_view bytes, std::size_t reply_bytes) {
    send(bytes);
    return receive(reply_bytes);
  }

  // Reads until the connection ends, and throws away what comes.
  Ending read_to_end() {
    char buffer[4096];
    for (;;) {
      const ssize_t got = ::recv(fd_.get(), buffer, sizeof buffer, 0);
      if (got > 0) continue;
      if (got == 0) return Ending::Closed;
      return errno == EAGAIN ? Ending::Open : Ending::Reset;
    }
  }

  // Whether something (bytes or the end) has come already.
  bool has_input() const {
    pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, 0) > 0;
  }

  void shutdown_write() { ::shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }
  // As when its host vanishes in the middle of something and comes back.
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    fd_.reset();
  }

  // As the server names it.
  std::string name() const {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }

 private:
  Fd fd_;
};

inline std::ostream& operator<<(std::ostream& out, RawClient::Ending ending) {
  switch (ending) {
    case RawClient::Ending::Open:
      return out << "open";
    case RawClient::Ending::Closed:
      return out << "closed";
    case RawClient::Ending::Reset:
      return out << "reset";
  }
  return out;
}

// A client that only wants to be served, whatever the others do.
class Bystander {
 public:
  explicit Bystander(int port) : client_(port, Dialect::Modern) {}

  // Writes something and reads it back.
  testing::AssertionResult served() {
    const std::string value = std::to_string(++count_);
    const std::string wanted = blob(value);
    const std::string reply =
        client_.ask(request_bytes(Dialect::Modern, Operation::Set, "/bystander", value) +
                        request_bytes(Dialect::Modern, Operation::Get, "/bystander"),
                    wanted.size());
    if (reply == wanted) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "the bystander is not served";
  }
  std::string get(std::string_view key) {
    const std::string size =
        client_.ask(request_bytes(Dialect::Modern, Operation::Get, key), sizeof(std::uint64_t));
    if (size.size() < sizeof(std::uint64_t)) return "(no answer)";
    return client_.receive(wire::load<std::uint64_t>(size.data()));
  }

 private:
  RawClient client_;
  int count_ = 0;
};

}  // namespace muster::tests
