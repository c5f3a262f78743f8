// ServerThread: a store server on real sockets and a thread of its own.
#pragma once

#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/store/server.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace muster::tests {

// Owned by the test.
class ServerThread {
 public:
  explicit ServerThread(store::ServerOptions options = {}) {
    std::promise<int> port;
    thread_ = std::thread([this, &port, options] {
      net::TcpTransport transport(loop_);
      store::Server server(loop_, options);
      const auto bound = server.listen(transport, {"127.0.0.1", 0}, "");
      transport_ = &transport;
      server_ = &server;
      port.set_value(bound.value_or(0));
      loop_.run();
    });
    port_ = port.get_future().get();
    EXPECT_GT(port_, 0);
  }
  ~ServerThread() {
    loop_.stop();
    thread_.join();
  }
  ServerThread(const ServerThread&) = delete;
  ServerThread& operator=(const ServerThread&) = delete;

  int port() const { return port_; }

  // Runs `work` on the server's thread and waits for it. Whatever the server was told before has
  // happened by then.
  void run(const std::function<void(store::Server&, net::Transport&)>& work) {
    std::promise<void> done;
    loop_.post([&] {
      work(*server_, *transport_);
      done.set_value();
    });
    done.get_future().get();
  }
  template <typename T>
  T look(const std::function<T(store::Server&)>& work) {
    T result{};
    run([&](store::Server& server, net::Transport&) { result = work(server); });
    return result;
  }
  std::size_t connection_count() {
    return look<std::size_t>([](store::Server& server) { return server.connection_count(); });
  }
  std::size_t memory_bytes() {
    return look<std::size_t>([](store::Server& server) { return server.hub().memory_bytes(); });
  }

 private:
  int port_ = 0;
  // Run by the thread; here, because the call that stops it must not outlive it.
  net::EpollLoop loop_;
  // On the thread, which outlives every call.
  net::Transport* transport_ = nullptr;
  store::Server* server_ = nullptr;
  std::thread thread_;
};

}  // namespace muster::tests
