#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/store/tcp_store.h"
#include "tests/net/drive.h"
#include "tests/server/tcp_store_base.h"
#include "tests/store/contract.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::store::testing {
namespace {

// The contract of all stores, over real sockets and over simulated ones, in each dialect.
// A server and two clients on one real loop.
class LoopbackFixture final : public StoreFixture {
 public:
  explicit LoopbackFixture(Dialect dialect) : transport_(tcp_, dialect) {
    const auto port = server_.listen(tcp_, {"127.0.0.1", 0}, "");
    EXPECT_TRUE(port) << port.error().message;
    store_ = connect(*port);
    other_ = connect(*port);
    EXPECT_EQ(store_->dialect(), dialect);
  }

  Store& store() override { return *store_; }
  Store& other() override { return *other_; }
  Loop& loop() override { return loop_; }
  bool run_until(const std::function<bool()>& done) override {
    return tests::run_until(loop_, done);
  }
  // Opening a connection and asking something over it takes five round trips at most.
  void settle() override {
    for (int trip = 0; trip < 6; ++trip) {
      EXPECT_TRUE(loop_.block_on(store_->ping()));
      EXPECT_TRUE(loop_.block_on(other_->ping()));
    }
  }

 private:
  std::unique_ptr<TcpStore> connect(int port) {
    TcpStoreOptions options;
    options.endpoint = {"127.0.0.1", port};
    auto store = loop_.block_on(connect_tcp_store(loop_, transport_, random_, options));
    EXPECT_TRUE(store) << store.error().message;
    return std::move(*store);
  }

  tests::LogCapture
      log_;  // the Legacy client's probe, and an addition to a text, are refused loudly
  Random random_{1};
  net::EpollLoop loop_;
  net::TcpTransport tcp_{loop_};
  DialectTransport transport_;
  Server server_{loop_, ServerOptions()};
  std::unique_ptr<TcpStore> store_;
  std::unique_ptr<TcpStore> other_;
};

// The same on three simulated hosts.
class SimFixture final : public StoreFixture {
 public:
  SimFixture(Dialect dialect, const sim::Weather& weather)
      : network_(loop_, random_, weather),
        transport_(network_.host("a"), dialect),
        other_transport_(network_.host("b"), dialect),
        server_(network_.host("server").loop(), ServerOptions()) {
    EXPECT_TRUE(server_.listen(network_.host("server"), {"server", 4400}, ""));
    store_ = connect("a", transport_);
    other_ = connect("b", other_transport_);
    EXPECT_EQ(store_->dialect(), dialect);
    settle_time_ = 20 * (weather.latency_max + 1ms);
  }

  Store& store() override { return *store_; }
  Store& other() override { return *other_; }
  Loop& loop() override { return loop_; }
  bool run_until(const std::function<bool()>& done) override {
    return loop_.run_until(done, loop_.now() + 1h);
  }
  void settle() override { loop_.advance(settle_time_); }

 private:
  std::unique_ptr<TcpStore> connect(const std::string& host, net::Transport& transport) {
    TcpStoreOptions options;
    options.endpoint = {"server", 4400};
    auto store =
        loop_.block_on(connect_tcp_store(network_.host(host).loop(), transport, random_, options));
    EXPECT_TRUE(store) << store.error().message;
    return std::move(*store);
  }

  tests::LogCapture log_;
  Random random_{1};
  sim::Loop loop_;
  sim::Network network_;
  DialectTransport transport_;
  DialectTransport other_transport_;
  Server server_;
  std::unique_ptr<TcpStore> store_;
  std::unique_ptr<TcpStore> other_;
  Duration settle_time_{};
};

// Small windows and torn messages, but no faults: nothing may show.
sim::Weather bad_day() {
  sim::Weather weather;
  weather.latency_min = 1us;
  weather.latency_max = 3ms;
  weather.window_bytes = 16'384;
  weather.chunk_bytes_max = 1'460;
  weather.torn_per_thousand = 500;
  return weather;
}

StoreCapabilities capabilities_of(Dialect dialect) {
  StoreCapabilities can;
  if (dialect == Dialect::Extension) return can;
  // Polling sees states, not changes. What it does see has tests of its own below.
  can.key_watch = false;
  can.prefix_watch = false;
  can.queues = dialect == Dialect::Modern;
  can.list_keys = dialect == Dialect::Modern;
  return can;
}

StoreKind on_loopback(std::string name, Dialect dialect) {
  return {std::move(name), [dialect] { return std::make_unique<LoopbackFixture>(dialect); },
          capabilities_of(dialect)};
}
StoreKind in_sim(std::string name, Dialect dialect, const sim::Weather& weather) {
  return {std::move(name),
          [dialect, weather] { return std::make_unique<SimFixture>(dialect, weather); },
          capabilities_of(dialect)};
}

INSTANTIATE_TEST_SUITE_P(Tcp, StoreContract,
                         ::testing::Values(on_loopback("Extension", Dialect::Extension),
                                           on_loopback("Modern", Dialect::Modern),
                                           on_loopback("Legacy", Dialect::Legacy),
                                           in_sim("ExtensionInSim", Dialect::Extension, {}),
                                           in_sim("ModernInSim", Dialect::Modern, {}),
                                           in_sim("LegacyInSim", Dialect::Legacy, {}),
                                           in_sim("ExtensionOnABadDay", Dialect::Extension,
                                                  bad_day()),
                                           in_sim("ModernOnABadDay", Dialect::Modern, bad_day()),
                                           in_sim("LegacyOnABadDay", Dialect::Legacy, bad_day())),
                         kind_name);

}  // namespace
}  // namespace muster::store::testing
