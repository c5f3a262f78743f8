#include "muster/store/handshake.h"

#include "muster/wire/store_protocol.h"
#include "tests/net/talker.h"
#include "tests/server/tcp_store_base.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::store::testing {
namespace {

using tests::Talker;

class TcpStoreHandshake : public TcpStoreBase, public ::testing::Test {
 protected:
  // Connects to something that is no store, on port 80. `answer` is asked after every turn, for
  // each connection.
  ConnectedStore connect_to_impostor(
      std::function<void(Talker&, const std::string& received)> answer, Duration timeout) {
    std::vector<std::unique_ptr<Talker>> talkers;
    const auto listener =
        server_host.listen({"server", 80}, [&](std::unique_ptr<net::Stream> stream) {
          talkers.push_back(std::make_unique<Talker>(std::move(stream)));
        });
    EXPECT_TRUE(listener) << listener.error().message;
    TcpStoreOptions options = impostor_options;
    options.endpoint.port = 80;
    options.connect_timeout = timeout;
    std::optional<ConnectedStore> connected;
    TaskScope scope;
    scope.start(
        keep(connect_tcp_store(client_host.loop(), client_host, random, options), connected));
    EXPECT_TRUE(loop.run_until(
        [&] {
          for (auto& talker : talkers) {
            if (talker != nullptr) answer(*talker, talker->received());
          }
          return connected.has_value();
        },
        loop.now() + 1h));
    if (!connected) return fail(ErrorKind::Cancelled, "never ends");
    if (*connected) (*connected)->reset();  // before the network
    return std::move(*connected);
  }

  TcpStoreOptions impostor_options = default_options();
};

TEST_F(TcpStoreHandshake, FindsOutWhatTheServerSpeaks) {
  EXPECT_NE(connect_to(client_host, Dialect::Extension, default_options()), nullptr);
  EXPECT_NE(connect_to(client_host, Dialect::Modern, default_options()), nullptr);
  EXPECT_NE(connect_to(client_host, Dialect::Legacy, default_options()), nullptr);
}

TEST_F(TcpStoreHandshake, DoesNotTakeAMusterServerForAnOldOneBecauseAConnectionBroke) {
  for (int step = 0; step < 100; ++step) {
    std::optional<ConnectedStore> connected;
    TaskScope scope;
    scope.start(keep(connect_tcp_store(client_host.loop(), client_host, random, default_options()),
                     connected));
    loop.advance(step * 15us);
    network.reset_all(client_host);
    ASSERT_TRUE(loop.run_until([&] { return connected.has_value(); }, loop.now() + 1h));
    ASSERT_TRUE(*connected) << (*connected).error().message;
    EXPECT_EQ((**connected)->dialect(), Dialect::Extension) << step;
    (*connected)->reset();
  }
}

TEST_F(TcpStoreHandshake, GivesUpAServerThatAcceptsAndSaysNothing) {
  const TimePoint start = loop.now();
  expect_error(connect_to_impostor([](Talker&, const std::string&) {}, 1min),
               ErrorKind::Unavailable,
               "server:80 accepts connections but does not answer like a store");
  EXPECT_LE(loop.now() - start, 1min);
}

TEST_F(TcpStoreHandshake, DoesNotTakeAnyAnswerForThatOfAStore) {
  const auto refuse = [](Talker& talker, const std::string& received) {
    if (received == wire::kProbe) {
      talker.send(
          "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n");
    }
  };
  expect_error(connect_to_impostor(refuse, 1min), ErrorKind::Unavailable,
               "does not answer like a store");
}

TEST_F(TcpStoreHandshake, DoesNotTakeAServerThatClosesEverythingForAnOldOne) {
  const auto close = [](Talker& talker, const std::string& received) {
    if (!received.empty()) talker.shutdown_write();
  };
  expect_error(connect_to_impostor(close, 1min), ErrorKind::Unavailable,
               "does not answer like a store");
}

// A server that gets as far as UPGRADE and then answers `reply`.
std::function<void(Talker&, const std::string&)> upgrading_to(std::string reply) {
  return [reply = std::move(reply), answered = std::map<Talker*, int>()](
             Talker& talker, const std::string& received) mutable {
    int& count = answered[&talker];
    const bool upgrades = received.find('\x80') != std::string::npos;
    if (count == 0 && received.size() == wire::kProbe.size()) {
      ++count;
      talker.send(std::string(wire::kProbeReplyBytes, '\0'));
    } else if (count == 1 && received.size() > wire::kProbe.size()) {
      ++count;
      talker.send(std::string(1, '\0'));  // it has the extension
    } else if (count == 2 && upgrades) {
      ++count;
      talker.send(reply);
    }
  };
}

TEST_F(TcpStoreHandshake, RefusesAServerThatSaysMoreThanItWasAsked) {
  const std::string reply = std::string("\x01\0\0\0", 4) + "surprise";
  expect_error(connect_to_impostor(upgrading_to(reply), 10s), ErrorKind::Unavailable,
               "server:80 ended the handshake: it sent more than it was asked for");
}

TEST_F(TcpStoreHandshake, RefusesAServerThatAnswersBeforeItWasAsked) {
  // The network does not take the whole UPGRADE at once, and the answer is here already.
  sim::Weather weather = network.weather();
  weather.window_bytes = 100;
  network.set_weather(weather);
  impostor_options.namespace_name = std::string(200, 'n');
  std::map<Talker*, bool> answered;
  const auto foresee = [&](Talker& talker, const std::string& received) {
    if (received.empty() || answered[&talker]) return;
    answered[&talker] = true;
    talker.send(std::string(wire::kProbeReplyBytes, '\0') + '\0' + std::string("\x01\0\0\0", 4));
  };
  expect_error(connect_to_impostor(foresee, 10s), ErrorKind::Unavailable,
               "server:80 ended the handshake: it answered before it was asked");
}

TEST_F(TcpStoreHandshake, RefusesAVersionThatItDidNotAskFor) {
  const std::string reply("\x63\0\0\0", 4);
  expect_error(connect_to_impostor(upgrading_to(reply), 10s), ErrorKind::Unavailable,
               "server:80 ended the handshake: it chose version 99 of the extension");
}

}  // namespace
}  // namespace muster::store::testing
