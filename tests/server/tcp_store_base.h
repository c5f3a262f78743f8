// What the tests of TcpStore share: a server and clients on a simulated network that can fail.
#pragma once

#include "muster/sim/loop.h"
#include "muster/sim/network.h"
#include "muster/store/server.h"
#include "muster/store/tcp_store.h"
#include "tests/server/dialect_transport.h"
#include "tests/server/log_capture.h"
#include "tests/store/contract.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::store::testing {

using namespace std::chrono_literals;
using tests::DialectTransport;
using wire::Dialect;

using ConnectedStore = Result<std::unique_ptr<TcpStore>>;

inline Task<void> keep(Task<ConnectedStore> task, std::optional<ConnectedStore>& result) {
  ConnectedStore connected = co_await task;
  result.emplace(std::move(connected));
}

class TcpStoreBase {
 protected:
  TcpStoreBase() {
    start_server();
    writer = connect_to(writer_host, Dialect::Extension, default_options());
  }
  ~TcpStoreBase() {
    store.reset();
    writer.reset();
    server.reset();
  }

  static TcpStoreOptions default_options() {
    TcpStoreOptions options;
    options.endpoint = {"server", 4400};
    return options;
  }

  void start_server() {
    server = std::make_unique<Server>(server_host.loop(), ServerOptions());
    const auto port = server->listen(server_host, {"server", 4400}, "");
    ASSERT_TRUE(port) << port.error().message;
  }
  // As when its process is killed: its data is gone, too.
  void stop_server() {
    network.crash(server_host, sim::Crash::Loud);
    server.reset();
    network.restart(server_host);
    loop.run_until_idle();
  }

  ConnectedStore try_connect(sim::Host& host, Dialect dialect, TcpStoreOptions options) {
    transports.push_back(std::make_unique<DialectTransport>(host, dialect));
    return loop.block_on(
        connect_tcp_store(host.loop(), *transports.back(), random, std::move(options)));
  }
  std::unique_ptr<TcpStore> connect_to(sim::Host& host, Dialect dialect, TcpStoreOptions options) {
    ConnectedStore connected = try_connect(host, dialect, std::move(options));
    EXPECT_TRUE(connected) << connected.error().message;
    if (!connected) return nullptr;
    EXPECT_EQ((*connected)->dialect(), dialect);
    return std::move(*connected);
  }

  template <typename T>
  std::unique_ptr<Call<T>> begin(Task<Result<T>> task) {
    return std::make_unique<Call<T>>(std::move(task));
  }
  template <typename T>
  Result<T> finish(Call<T>& call) {
    if (!loop.run_until([&] { return call.done(); }, loop.now() + 24h)) {
      ADD_FAILURE() << "the call does not come to an end";
      return fail(ErrorKind::Cancelled, "the call does not come to an end");
    }
    return call.take();
  }
  template <typename T>
  Result<T> await(Task<Result<T>> task) {
    Call<T> call(std::move(task));
    return finish(call);
  }
  template <typename T>
  static void expect_error(const Result<T>& result, ErrorKind kind, std::string_view part) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, kind) << result.error().message;
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  }

  // Long enough for everything that is under way, on this network.
  void settle() { loop.advance(10ms); }

  std::string server_says(std::string_view name) {
    for (const auto& [line_name, value] : server->hub().describe()) {
      if (line_name == name) return value;
    }
    return "";
  }

  tests::LogCapture log;
  Random random{7};
  sim::Loop loop;
  sim::Network network{loop, random};
  sim::Host& server_host = network.host("server");
  sim::Host& client_host = network.host("client");
  sim::Host& writer_host = network.host("writer");
  std::vector<std::unique_ptr<DialectTransport>> transports;
  std::unique_ptr<Server> server;
  std::unique_ptr<TcpStore> store;   // the one under test, on the client's host
  std::unique_ptr<TcpStore> writer;  // somebody else's
};

inline std::string dialect_name(const ::testing::TestParamInfo<Dialect>& info) {
  std::string name(wire::name_of(info.param));
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name;
}

// The times at which a fault may strike an operation: from before its first byte to after its end.
inline std::vector<Duration> moments() {
  std::vector<Duration> times;
  for (int step = 0; step < 60; ++step) times.push_back(step * 25us);
  return times;
}

}  // namespace muster::store::testing
