// StoreHost: a store server on a thread of its own, for workers that meet through it. Also for
// benchmarks.
#pragma once

#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/rpc/network_agent.h"
#include "muster/rpc/open_store.h"
#include "muster/store/server.h"

#include <chrono>
#include <future>
#include <string>
#include <thread>

namespace muster::rpc::testing {

class StoreHost {
 public:
  StoreHost() {
    std::promise<int> port;
    auto known = port.get_future();
    thread_ = std::thread([this, &port] {
      net::TcpTransport transport(loop_);
      store::Server server(loop_, {});
      const auto listening = server.listen(transport, {"127.0.0.1", 0}, "");
      port.set_value(listening ? *listening : 0);
      loop_.run();
    });
    port_ = known.get();
  }
  ~StoreHost() {
    loop_.stop();
    thread_.join();
  }
  int port() const { return port_; }

  // For NetworkAgent::start.
  OpenStore opener(std::string prefix = "rpc") const {
    return [port = port_, prefix](net::EpollLoop& loop) {
      return open_store(loop, {"127.0.0.1", port}, prefix, std::chrono::seconds(60));
    };
  }

 private:
  net::EpollLoop loop_;
  std::thread thread_;
  int port_ = 0;
};

}  // namespace muster::rpc::testing
