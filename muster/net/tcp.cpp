#include "muster/net/tcp.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace muster::net {
namespace {

constexpr int kPiecesMax = 64;
constexpr int kAcceptBurstMax = 64;
constexpr int kFreePortAttemptsMax = 8;
// How long a listener that ran out of descriptors rests before it tries again.
constexpr Duration kAcceptRest = std::chrono::milliseconds(100);

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

std::string describe(const Address& address) {
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  const int done =
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address.storage), address.size, host,
                    sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  if (done != 0) return "unknown";
  std::string name = host;
  // An IPv4 peer on a dual-stack socket.
  if (name.starts_with("::ffff:") && name.find('.') != std::string::npos) name.erase(0, 7);
  return net::describe(Endpoint{name, std::atoi(port)});
}

std::string peer_of(int fd) {
  Address address;
  address.size = sizeof address.storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0)
    return "unknown";
  return describe(address);
}

Result<std::vector<Address>> look_up(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string port = fmt::to_string(endpoint.port);
  const int done = ::getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &list);
  if (done != 0) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot resolve {}: {}", log::quote(endpoint.host),
                            done == EAI_SYSTEM ? describe_errno(errno) : ::gai_strerror(done)));
  }
  std::vector<Address> addresses;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    Address address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
    // A hosts file may name an address twice.
    const bool known = std::any_of(addresses.begin(), addresses.end(), [&](const Address& other) {
      return other.size == address.size &&
             std::memcmp(&other.storage, &address.storage, address.size) == 0;
    });
    if (!known) addresses.push_back(address);
  }
  ::freeaddrinfo(list);
  return addresses;
}

// Small messages go at once, and a host that vanished without a word is noticed after half a
// minute.
void set_options(int fd) {
  const auto set = [&](int level, int name, int value) {
    ::setsockopt(fd, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

class TcpStream final : public Stream {
 public:
  TcpStream(EpollLoop& loop, Fd fd, std::string peer)
      : fd_(std::move(fd)),
        watch_(loop, fd_.get(), [this](std::uint32_t bits) { ready(bits); }),
        peer_(std::move(peer)) {}

  void set_patience(Duration patience) override {
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(patience);
    const auto value = static_cast<unsigned int>(std::max<std::int64_t>(milliseconds.count(), 1));
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &value, sizeof value);
  }
  Transfer read(std::span<char> into) override {
    const ssize_t got = ::recv(fd_.get(), into.data(), into.size(), 0);
    if (got == 0) return {Transfer::Kind::End, 0, 0};
    return outcome(got);
  }

  Transfer write(std::span<const std::string_view> pieces) override {
    iovec vectors[kPiecesMax];
    const std::size_t count = std::min<std::size_t>(pieces.size(), kPiecesMax);
    for (std::size_t index = 0; index < count; ++index) {
      vectors[index] = {const_cast<char*>(pieces[index].data()), pieces[index].size()};
    }
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = count;
    return outcome(::sendmsg(fd_.get(), &message, MSG_NOSIGNAL));
  }

  void set_events(StreamEvents* events) override { events_ = events; }

  void want(bool readable, bool writable) override {
    watch_.want((readable ? EPOLLIN : 0U) | (writable ? EPOLLOUT : 0U));
    wants_readable_ = readable;
    wants_writable_ = writable;
  }

  void shutdown_write() override { ::shutdown(fd_.get(), SHUT_WR); }
  const std::string& peer() const override { return peer_; }

 private:
  static Transfer outcome(ssize_t moved) {
    if (moved >= 0) return {Transfer::Kind::Moved, static_cast<std::size_t>(moved), 0};
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {};
    return {Transfer::Kind::Failed, 0, errno};
  }

  // An error or hang-up is told as readiness of what is wanted: the read or write that follows
  // finds it.
  void ready(std::uint32_t bits) {
    const bool broken = (bits & (EPOLLERR | EPOLLHUP)) != 0;
    bool destroyed = false;
    if (events_ != nullptr && wants_writable_ && (broken || (bits & EPOLLOUT) != 0)) {
      destroyed_ = &destroyed;
      events_->on_writable();
      if (destroyed) return;
      destroyed_ = nullptr;
    }
    if (events_ != nullptr && wants_readable_ && (broken || (bits & EPOLLIN) != 0))
      events_->on_readable();
  }

 public:
  ~TcpStream() override {
    if (destroyed_ != nullptr) *destroyed_ = true;
  }

 private:
  Fd fd_;
  FdWatch watch_;
  std::string peer_;
  StreamEvents* events_ = nullptr;
  bool* destroyed_ = nullptr;  // set while a callback runs that may destroy us
  bool wants_readable_ = false;
  bool wants_writable_ = false;
};

// Waits until a connecting socket is writable.
class Connected {
 public:
  Connected(EpollLoop& loop, int fd)
      : loop_(loop), watch_(loop, fd, [this](std::uint32_t) { ready(); }) {}
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> waiter) {
    waiter_ = waiter;
    watch_.want(EPOLLOUT);
  }
  void await_resume() const {}

 private:
  void ready() {
    watch_.want(0);
    loop_.soon(ready_, waiter_);
  }
  EpollLoop& loop_;
  FdWatch watch_;
  std::coroutine_handle<> waiter_;
  Ready ready_;
};

Task<Result<Fd>> connect_to(EpollLoop& loop, Address address) {
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open()) co_return fail(ErrorKind::Unavailable, describe_errno(errno));
  int error = 0;
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0)
    error = errno;
  if (error == EINPROGRESS) {
    Connected connected(loop, fd.get());
    co_await connected;
    socklen_t size = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error != 0) {
    const auto kind = error == ECONNREFUSED ? ErrorKind::Closed : ErrorKind::Unavailable;
    co_return fail(kind, describe_errno(error));
  }
  set_options(fd.get());
  co_return fd;
}

Task<Result<std::vector<Address>>> resolve(EpollLoop& loop, Endpoint endpoint) {
  // Literals need no thread.
  auto literal = look_up(endpoint, AI_NUMERICHOST);
  if (literal) co_return literal;
  // Nor does this machine, whose name nobody else can answer for.
  if (endpoint.host == "localhost") {
    auto addresses = look_up(Endpoint{"127.0.0.1", endpoint.port}, AI_NUMERICHOST);
    auto more = look_up(Endpoint{"::1", endpoint.port}, AI_NUMERICHOST);
    if (addresses && more) {
      addresses->insert(addresses->end(), more->begin(), more->end());
      co_return addresses;
    }
  }
  // Shared by the coroutine, which may be destroyed first, and the thread, which then finds nobody
  // to tell.
  struct Exchange {
    Oneshot<Result<std::vector<Address>>>* waiter = nullptr;
  };
  auto exchange = std::make_shared<Exchange>();
  Oneshot<Result<std::vector<Address>>> found(loop);
  exchange->waiter = &found;
  struct Withdraw {
    Exchange& exchange;
    ~Withdraw() { exchange.waiter = nullptr; }
  };
  const Withdraw withdraw{*exchange};
  loop.run_in_background([&loop, exchange, endpoint] {
    auto addresses = look_up(endpoint, AI_ADDRCONFIG);
    // Numeric hosts and loopback names must resolve on a machine that has only a loopback interface
    // too.
    if (!addresses) addresses = look_up(endpoint, 0);
    loop.post([exchange, addresses = std::move(addresses)]() mutable {
      if (exchange->waiter != nullptr) exchange->waiter->set(std::move(addresses));
    });
  });
  co_return co_await found;
}

using AcceptFunction = std::function<void(Fd)>;

class TcpListener final : public Listener {
 public:
  TcpListener(EpollLoop& loop, AcceptFunction accepted)
      : loop_(loop),
        accepted_(std::make_shared<const AcceptFunction>(std::move(accepted))),
        rest_(loop, [this] { update(); }) {}

  // `port` 0 lets the system choose. Returns 0 or an errno.
  int bind(const Address& address, bool dual_stack) {
    Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.is_open()) return errno;
    const int on = 1;
    const int v6_only = dual_stack ? 0 : 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address.storage.ss_family == AF_INET6 &&
        ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only) != 0) {
      return errno;
    }
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0)
      return errno;
    // The kernel cuts this to its own maximum: at start-up all ranks connect at once.
    if (::listen(fd.get(), 1 << 20) != 0) return errno;
    Address bound;
    bound.size = sizeof bound.storage;
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
    port_ = ntohs(bound.storage.ss_family == AF_INET6
                      ? reinterpret_cast<sockaddr_in6*>(&bound.storage)->sin6_port
                      : reinterpret_cast<sockaddr_in*>(&bound.storage)->sin_port);
    auto socket =
        std::make_unique<Socket>(loop_, std::move(fd), [this](int number) { accept_some(number); });
    sockets_.push_back(std::move(socket));
    update();
    return 0;
  }

  int port() const override { return port_; }

  void set_accepting(bool accepting) override {
    accepting_ = accepting;
    update();
  }

 private:
  struct Socket {
    Socket(EpollLoop& loop, Fd socket, std::function<void(int)> ready)
        : fd(std::move(socket)),
          watch(loop, fd.get(), [this, ready](std::uint32_t) { ready(fd.get()); }) {}
    Fd fd;
    FdWatch watch;
  };

  void update() {
    for (const auto& socket : sockets_)
      socket->watch.want(accepting_ && !rest_.pending() ? EPOLLIN : 0U);
  }

  void accept_some(int listening) {
    const std::shared_ptr<const AcceptFunction> accepted = accepted_;
    for (int count = 0; count < kAcceptBurstMax && accepting_; ++count) {
      Fd fd(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd.is_open()) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          // The connection stays in the system's queue; refusing it would do more harm than letting
          // it wait.
          if (!exhausted_) {
            log::warn("net",
                      "cannot accept connections on port {}: {}, new ones wait until others close",
                      port_, describe_errno(errno));
          }
          exhausted_ = true;
          rest_.set(loop_.now() + kAcceptRest);
          update();
        }
        return;
      }
      exhausted_ = false;
      set_options(fd.get());
      (*accepted)(std::move(fd));
      if (accepted.use_count() == 1) return;  // the call destroyed the listener
    }
  }

  EpollLoop& loop_;
  // Shared with the call that runs, which may destroy the listener.
  std::shared_ptr<const AcceptFunction> accepted_;
  std::vector<std::unique_ptr<Socket>> sockets_;
  Timer rest_;
  int port_ = 0;
  bool accepting_ = true;
  bool exhausted_ = false;  // out of descriptors, and said so
};

void set_port(Address& address, int port) {
  const auto number = htons(static_cast<std::uint16_t>(port));
  if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = number;
  }
}

// One dual-stack socket; a machine without IPv6 gets an IPv4 one. Returns 0 or an errno.
int bind_every_address(TcpListener& listener, int port) {
  const auto any6 = look_up(Endpoint{"::", port}, AI_NUMERICHOST);
  const auto any4 = look_up(Endpoint{"0.0.0.0", port}, AI_NUMERICHOST);
  MUSTER_ASSERT(any6 && any4);
  const int error = listener.bind(any6->front(), true);
  const bool no_ipv6 =
      error == EAFNOSUPPORT || error == EADDRNOTAVAIL || error == EINVAL || error == ENOPROTOOPT;
  return no_ipv6 ? listener.bind(any4->front(), false) : error;
}

// All on one port. Returns 0 or an errno.
int bind_each(TcpListener& listener, std::vector<Address>& addresses) {
  int bound_count = 0;
  int error = EADDRNOTAVAIL;
  for (Address& address : addresses) {
    if (bound_count > 0) set_port(address, listener.port());
    error = listener.bind(address, false);
    if (error == 0) ++bound_count;
    // "localhost" may name ::1 on a machine without IPv6; a taken port is an error even if another
    // address is free.
    if (error == EADDRINUSE || error == EACCES) return error;
  }
  return bound_count > 0 ? 0 : error;
}

}  // namespace

Task<Result<Fd>> connect_socket(EpollLoop& loop, Endpoint endpoint) {
  if (endpoint.host.empty()) endpoint.host = "localhost";
  auto addresses = co_await resolve(loop, endpoint);
  if (!addresses) co_return fail(addresses.error());
  std::string reason = "it has no address";
  bool is_refused = !addresses->empty();
  for (const Address& address : *addresses) {
    auto socket = co_await connect_to(loop, address);
    if (socket) co_return socket;
    reason = socket.error().message;
    is_refused = is_refused && socket.error().kind == ErrorKind::Closed;
  }
  co_return fail(is_refused ? ErrorKind::Closed : ErrorKind::Unavailable,
                 fmt::format("cannot connect to {}: {}", net::describe(endpoint), reason));
}

Result<std::unique_ptr<Listener>> listen_for_sockets(EpollLoop& loop, const Endpoint& endpoint,
                                                     std::function<void(Fd)> accepted) {
  int error = 0;
  // With port 0, the port that the system chose for the first address may be taken on the second.
  for (int attempt = 0; attempt < kFreePortAttemptsMax; ++attempt) {
    auto listener = std::make_unique<TcpListener>(loop, accepted);
    if (endpoint.host.empty()) {
      error = bind_every_address(*listener, endpoint.port);
    } else {
      auto addresses = look_up(endpoint, AI_PASSIVE);
      if (!addresses) return fail(addresses.error());
      error = bind_each(*listener, *addresses);
    }
    if (error == 0) return listener;
    if (error != EADDRINUSE || endpoint.port != 0) break;
  }
  const std::string place =
      endpoint.host.empty() ? fmt::format("port {}", endpoint.port) : net::describe(endpoint);
  return fail(ErrorKind::Unavailable,
              fmt::format("cannot listen on {}: {}", place, describe_errno(error)));
}

Task<Result<std::unique_ptr<Stream>>> TcpTransport::connect(Endpoint endpoint) {
  auto socket = co_await connect_socket(loop_, std::move(endpoint));
  if (!socket) {
    // A server that does not listen yet may do so soon.
    const bool is_refused = socket.error().kind == ErrorKind::Closed;
    co_return fail(is_refused ? ErrorKind::Unavailable : socket.error().kind,
                   socket.error().message);
  }
  std::string peer = peer_of(socket->get());
  std::unique_ptr<Stream> stream =
      std::make_unique<TcpStream>(loop_, std::move(*socket), std::move(peer));
  co_return stream;
}

Result<std::unique_ptr<Listener>> TcpTransport::listen(
    const Endpoint& endpoint, std::function<void(std::unique_ptr<Stream>)> accepted) {
  return listen_for_sockets(
      loop_, endpoint, [&loop = loop_, accepted = std::move(accepted)](Fd socket) {
        std::string peer = peer_of(socket.get());
        accepted(std::make_unique<TcpStream>(loop, std::move(socket), std::move(peer)));
      });
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace muster::net
