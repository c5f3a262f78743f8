// The bound of the store comparison: one thread, one epoll set, no parsing, no storing.
//
//   echo_server PORT_FILE     listens on a free port of 127.0.0.1, writes it to PORT_FILE, serves
//   until it is killed
#include "bench/echo_server.h"

#include "muster/base/fd.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace muster::bench {
namespace {

constexpr std::size_t kReadBytes = 256 * 1024;
constexpr int kEventsMax = 512;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

struct Client {
  explicit Client(int number) : fd(number) {}
  Fd fd;
  EchoHello hello;
  bool greeted = false;
  bool wants_write = false;
  std::size_t unanswered_bytes = 0;  // of a request that is not complete yet
  std::size_t owed_bytes = 0;        // of replies that the socket did not take yet
};

class EchoServer {
 public:
  EchoServer()
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!listener_.is_open() || !epoll_.is_open()) die("cannot make a socket");
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      die("cannot bind");
    if (::listen(listener_.get(), SOMAXCONN) != 0) die("cannot listen");
    watch(EPOLL_CTL_ADD, listener_.get(), nullptr, EPOLLIN);
  }

  int port() const {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
      die("cannot ask the port");
    return ntohs(address.sin_port);
  }

  [[noreturn]] void run() {
    std::array<epoll_event, kEventsMax> events{};
    for (;;) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsMax, -1);
      if (count < 0 && errno != EINTR) die("epoll_wait");
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        if (event.data.ptr == nullptr) {
          accept_one();
          continue;
        }
        auto& client = *static_cast<Client*>(event.data.ptr);
        if ((event.events & EPOLLOUT) != 0) send_owed(client);
        if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive(client);
      }
      gone_.clear();
    }
  }

 private:
  void watch(int what, int fd, Client* client, std::uint32_t wanted) {
    epoll_event event{};
    event.events = wanted;
    event.data.ptr = client;
    if (::epoll_ctl(epoll_.get(), what, fd, &event) != 0) die("epoll_ctl");
  }

  void accept_one() {
    const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    auto client = std::make_unique<Client>(fd);
    watch(EPOLL_CTL_ADD, fd, client.get(), EPOLLIN);
    clients_.emplace(fd, std::move(client));
  }

  void receive(Client& client) {
    const ssize_t got = ::recv(client.fd.get(), buffer_.data(), buffer_.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return drop(client);
    std::size_t bytes = static_cast<std::size_t>(got);
    if (!client.greeted) {
      // Loopback delivers these few bytes in one piece; a client that splits them is not ours.
      if (bytes < sizeof client.hello) return drop(client);
      std::memcpy(&client.hello, buffer_.data(), sizeof client.hello);
      if (client.hello.request_bytes == 0 || client.hello.reply_bytes == 0 ||
          client.hello.reply_bytes > kEchoBytesMax) {
        return drop(client);
      }
      client.greeted = true;
      client.owed_bytes = 1;
      send_owed(client);
      if (client.hello.role == EchoRole::Listener) listeners_.push_back(&client);
      bytes -= sizeof client.hello;
    }
    client.unanswered_bytes += bytes;
    const std::size_t request_count = client.unanswered_bytes / client.hello.request_bytes;
    client.unanswered_bytes %= client.hello.request_bytes;
    if (request_count == 0) return;
    if (client.hello.role == EchoRole::Announcer) {
      for (Client* listener : listeners_) answer(*listener, request_count);
    } else {
      answer(client, request_count);
    }
  }

  void answer(Client& client, std::size_t request_count) {
    client.owed_bytes += request_count * client.hello.reply_bytes;
    if (!client.wants_write) send_owed(client);
  }

  void send_owed(Client& client) {
    while (client.owed_bytes > 0) {
      const std::size_t piece = std::min<std::size_t>(client.owed_bytes, reply_.size());
      const ssize_t sent = ::send(client.fd.get(), reply_.data(), piece, MSG_NOSIGNAL);
      if (sent <= 0) break;
      client.owed_bytes -= static_cast<std::size_t>(sent);
    }
    const bool wants_write = client.owed_bytes > 0;
    if (wants_write == client.wants_write) return;
    client.wants_write = wants_write;
    watch(EPOLL_CTL_MOD, client.fd.get(), &client, wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }

  // Kept until the events of this turn are done, since one of them may still point to it.
  void drop(Client& client) {
    std::erase(listeners_, &client);
    auto node = clients_.extract(client.fd.get());
    if (!node) return;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, client.fd.get(), nullptr);
    gone_.push_back(std::move(node.mapped()));
  }

  Fd listener_;
  Fd epoll_;
  std::vector<char> buffer_ = std::vector<char>(kReadBytes);
  std::vector<char> reply_ = std::vector<char>(kEchoBytesMax);
  std::map<int, std::unique_ptr<Client>> clients_;
  std::vector<Client*> listeners_;
  std::vector<std::unique_ptr<Client>> gone_;
};

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: echo_server PORT_FILE\n", stderr);
    return 2;
  }
  muster::bench::EchoServer server;
  // Renamed into place, so that whoever waits for the file never sees half a number.
  const std::string file = argv[1];
  const std::string draft = file + ".new";
  std::ofstream(draft) << server.port() << "\n";
  if (std::rename(draft.c_str(), file.c_str()) != 0) {
    std::perror("cannot write the port file");
    return 1;
  }
  server.run();
}
