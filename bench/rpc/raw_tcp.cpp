#include "bench/rpc/raw_tcp.h"

#include "bench/rpc/large_bytes.h"
#include "muster/base/fd.h"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdexcept>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <vector>

namespace muster::bench {
namespace {

enum class Kind : std::uint64_t { Noop, Echo, Stream };

// Every message begins with one; a no-op is nothing else. A cache line, since the kernel takes far
// longer to copy what lies a few bytes further on in its pages than in the memory of the process.
struct Header {
  Kind kind = Kind::Noop;
  std::uint64_t bytes = 0;
  std::array<std::uint64_t, 6> more{};
};
static_assert(sizeof(Header) == 64);

// Many bytes go faster in pieces: a call that sends all of them keeps the socket from taking in
// what the other side acknowledges meanwhile.
constexpr std::size_t kPieceBytes = 1024 * 1024;

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

// What to do while a socket cannot go on: sleep, or try again at once, for the most that it
// carries.
enum class Wait { Sleep, Spin };

bool may_try_again() { return errno == EINTR || errno == EAGAIN; }

void send_all(int fd, const void* data, std::size_t bytes, Wait wait = Wait::Sleep) {
  const char* at = static_cast<const char*>(data);
  const int flags = MSG_NOSIGNAL | (wait == Wait::Spin ? MSG_DONTWAIT : 0);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, at, std::min(bytes, kPieceBytes), flags);
    if (sent < 0 && may_try_again()) continue;
    if (sent < 0) fail("send");
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
}

void receive_all(int fd, void* data, std::size_t bytes, Wait wait = Wait::Sleep) {
  char* at = static_cast<char*>(data);
  const int flags = wait == Wait::Spin ? MSG_DONTWAIT : MSG_WAITALL;
  while (bytes > 0) {
    const ssize_t received = ::recv(fd, at, std::min(bytes, kPieceBytes), flags);
    if (received < 0 && may_try_again()) continue;
    if (received < 0) fail("recv");
    if (received == 0) throw std::runtime_error("the other side closed the connection");
    at += received;
    bytes -= static_cast<std::size_t>(received);
  }
}

// Small messages go at once, and what waits of large ones stays in the caches.
void set_options(int fd) {
  const int yes = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  const int bytes = 512 * 1024;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
}

class Server {
 public:
  Server()
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_.get(), generic, length) != 0) fail("bind");
    if (::listen(listener_.get(), SOMAXCONN) != 0) fail("listen");
    if (::getsockname(listener_.get(), generic, &length) != 0) fail("getsockname");
    watch(epoll_.get(), listener_.get());
    announce(fmt::format("127.0.0.1:{}", ntohs(address.sin_port)));
  }

  void run() {
    std::array<epoll_event, 64> events{};
    while (true) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), -1);
      if (count < 0 && errno != EINTR) fail("epoll_wait");
      for (int index = 0; index < count; ++index) {
        const int fd = events[static_cast<std::size_t>(index)].data.fd;
        if (fd == listener_.get()) {
          accept();
        } else if (!answer(clients_.at(fd))) {
          clients_.erase(fd);
        }
      }
    }
  }

 private:
  struct Client {
    Fd fd;
    std::size_t partial = 0;  // bytes of an incomplete header, at the front of `buffer`
    std::vector<char> buffer = std::vector<char>(64 * 1024);
    LargeBytes payload;
  };

  void accept() {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.is_open()) return;
    set_options(fd.get());
    watch(epoll_.get(), fd.get());
    const int number = fd.get();
    clients_[number].fd = std::move(fd);
  }

  /// False when the client is gone.
  bool answer(Client& client) {
    char* data = client.buffer.data();
    const ssize_t received =
        ::recv(client.fd.get(), data + client.partial, client.buffer.size() - client.partial, 0);
    if (received <= 0) return false;
    const std::size_t available = client.partial + static_cast<std::size_t>(received);
    Header header;
    std::memcpy(&header, data, sizeof header);
    if (available >= sizeof header && header.kind != Kind::Noop) {
      return carry(client, header, available - sizeof header);
    }
    const std::size_t whole = available / sizeof header * sizeof header;
    try {
      send_all(client.fd.get(), data, whole);
    } catch (const std::runtime_error&) {
      return false;
    }
    client.partial = available - whole;
    std::memmove(data, data + whole, client.partial);
    return true;
  }

  /// An echo or a piece of a stream, until it is complete: whoever sends these sends nothing else.
  bool carry(Client& client, const Header& header, std::size_t early) {
    client.payload.resize(header.bytes);
    client.partial = 0;
    early = std::min(early, client.payload.size());
    std::memcpy(client.payload.data(), client.buffer.data() + sizeof header, early);
    try {
      receive_all(client.fd.get(), client.payload.data() + early, client.payload.size() - early,
                  header.kind == Kind::Stream ? Wait::Spin : Wait::Sleep);
      if (header.kind == Kind::Echo) {
        send_all(client.fd.get(), client.payload.data(), client.payload.size());
      } else {
        send_all(client.fd.get(), "!", 1);
      }
    } catch (const std::runtime_error&) {
      return false;
    }
    return true;
  }

  Fd listener_;
  Fd epoll_;
  std::map<int, Client> clients_;
};

Fd connect_to(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
  if (::inet_pton(AF_INET, address.substr(0, colon).c_str(), &there.sin_addr) != 1) {
    throw std::runtime_error("not an address: " + address);
  }
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&there), sizeof there) != 0) fail("connect");
  set_options(fd.get());
  return fd;
}

class TcpCaller final : public Caller {
 public:
  explicit TcpCaller(const std::string& address)
      : fd_(connect_to(address)), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    watch(epoll_.get(), fd_.get());
  }

  void noop() override {
    const Header request;
    send_all(fd_.get(), &request, sizeof request);
    Header reply;
    wait();
    receive_all(fd_.get(), &reply, sizeof reply);
  }

  void echo(std::span<const std::byte> payload) override {
    const Header request{Kind::Echo, payload.size(), {}};
    reply_.resize(payload.size());
    send_all(fd_.get(), &request, sizeof request);
    send_all(fd_.get(), payload.data(), payload.size());
    receive_all(fd_.get(), reply_.data(), reply_.size());
  }

  std::span<const std::byte> reply() const override { return reply_.bytes(); }

  std::uint64_t keep_in_flight(std::size_t count, RpcClock::time_point ends) override {
    const std::vector<Header> requests(count);
    std::vector<char> replies(count * sizeof(Header));
    send_all(fd_.get(), requests.data(), count * sizeof(Header));
    std::uint64_t answered = 0;
    std::size_t in_flight = count;
    std::size_t partial = 0;
    while (in_flight > 0) {
      wait();
      const ssize_t received = ::recv(fd_.get(), replies.data(), replies.size(), 0);
      if (received <= 0) fail("recv");
      partial += static_cast<std::size_t>(received);
      const std::size_t whole = partial / sizeof(Header);
      partial %= sizeof(Header);
      answered += whole;
      if (RpcClock::now() < ends) {
        send_all(fd_.get(), requests.data(), whole * sizeof(Header));
      } else {
        in_flight -= whole;
      }
    }
    return answered;
  }

 private:
  void wait() {
    epoll_event event{};
    while (::epoll_wait(epoll_.get(), &event, 1, -1) != 1) {
      if (errno != EINTR) fail("epoll_wait");
    }
  }

  Fd fd_;
  Fd epoll_;
  LargeBytes reply_;
};

}  // namespace

void serve_raw_tcp(const RpcOptions&) {
  exit_at_end_of_input();
  Server().run();
}

std::unique_ptr<Caller> connect_raw_tcp(const RpcOptions& options) {
  return std::make_unique<TcpCaller>(options.address);
}

RpcResult measure_raw_stream(const RpcOptions& options) {
  const Fd fd = connect_to(options.address);
  LargeBytes payload(options.bytes);
  std::memset(payload.data(), 'x', payload.size());
  const Header header{Kind::Stream, payload.size(), {}};
  // The server acknowledges each piece. Two are under way, so that it never has to wait for one.
  const auto send_piece = [&] {
    send_all(fd.get(), &header, sizeof header);
    send_all(fd.get(), payload.data(), payload.size(), Wait::Spin);
  };
  const auto receive_acknowledgement = [&] {
    char acknowledgement = 0;
    receive_all(fd.get(), &acknowledgement, 1);
  };
  for (int piece = 0; piece < 3; ++piece) {
    send_piece();
    receive_acknowledgement();
  }
  const double cpu_before = process_cpu_seconds();
  const RpcClock::time_point begun = RpcClock::now();
  std::uint64_t pieces = 1;
  for (send_piece(); seconds_since(begun) < options.seconds; ++pieces) {
    send_piece();
    receive_acknowledgement();
  }
  receive_acknowledgement();
  const double elapsed = seconds_since(begun);
  RpcResult result;
  result.bytes_per_s = static_cast<double>(pieces * payload.size()) / elapsed;
  result.cpu_s = process_cpu_seconds() - cpu_before;
  return result;
}

}  // namespace muster::bench
