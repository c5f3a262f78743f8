// What every net::Transport promises, as one suite that runs against the simulated network and
// against TCP.
//
// A test program includes this header, writes a TransportDriver and instantiates the suite with a
// function that makes one:
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, TransportContract, testing::Values(&make_tcp_driver));
#pragma once

#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/net/transport.h"
#include "tests/net/talker.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::tests {

// Everything that differs between transports. One for each test.
class TransportDriver {
 public:
  virtual ~TransportDriver() = default;
  virtual net::Transport& client() = 0;
  virtual net::Transport& server() = 0;
  // Where the server listens, and what the client calls it.
  virtual std::string listen_host() const = 0;
  // Runs the loop until `reached` says so; false if that did not happen within a bound of the
  // driver's choice.
  virtual bool run_until(const std::function<bool()>& reached) = 0;
};

using TransportDriverFactory = std::unique_ptr<TransportDriver> (*)();

class TransportContract : public testing::TestWithParam<TransportDriverFactory> {
 protected:
  struct Pair {
    std::unique_ptr<net::Stream> client;
    std::unique_ptr<net::Stream> server;
  };

  bool run_until(const std::function<bool()>& reached) { return driver_->run_until(reached); }

  std::unique_ptr<net::Listener> listen() {
    auto listener = driver_->server().listen(
        {driver_->listen_host(), 0},
        [this](std::unique_ptr<net::Stream> stream) { accepted_.push_back(std::move(stream)); });
    EXPECT_TRUE(listener) << listener.error().message;
    return listener ? std::move(*listener) : nullptr;
  }

  ConnectResult connect(int port) {
    std::optional<ConnectResult> result;
    TaskScope scope;
    scope.start(connect_into(driver_->client(), {driver_->listen_host(), port}, result));
    if (!run_until([&] { return result.has_value(); })) {
      return fail(ErrorKind::Timeout, "the driver gave up");
    }
    return std::move(*result);
  }

  Pair make_pair() {
    const std::unique_ptr<net::Listener> listener = listen();
    ConnectResult client = connect(listener->port());
    EXPECT_TRUE(client) << client.error().message;
    EXPECT_TRUE(run_until([&] { return !accepted_.empty(); }));
    Pair pair{.client = std::move(*client), .server = std::move(accepted_.back())};
    accepted_.pop_back();
    return pair;
  }

  std::unique_ptr<TransportDriver> driver_ = GetParam()();
  std::vector<std::unique_ptr<net::Stream>> accepted_;
};

TEST_P(TransportContract, CarriesBytesBothWays) {
  Pair pair = make_pair();
  EXPECT_FALSE(pair.client->peer().empty());
  EXPECT_FALSE(pair.server->peer().empty());
  Talker client(std::move(pair.client));
  Talker server(std::move(pair.server));
  client.send("ping");
  server.send("pong, whoever you are");
  EXPECT_TRUE(run_until(
      [&] { return server.received() == "ping" && client.received() == "pong, whoever you are"; }));
  EXPECT_FALSE(client.was_called_inline() || server.was_called_inline());
}

TEST_P(TransportContract, RefusesAConnectionToAPortThatNobodyListensOn) {
  const int port = listen()->port();
  const ConnectResult result = connect(port);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::Unavailable);
  EXPECT_NE(result.error().message.find("connection refused"), std::string::npos)
      << result.error().message;
}

TEST_P(TransportContract, RefusesToListenOnATakenPort) {
  const std::unique_ptr<net::Listener> first = listen();
  ASSERT_GT(first->port(), 0);
  const auto second = driver_->server().listen({driver_->listen_host(), first->port()},
                                               [](std::unique_ptr<net::Stream>) {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, ErrorKind::Unavailable);
  EXPECT_NE(second.error().message.find("address already in use"), std::string::npos)
      << second.error().message;
}

TEST_P(TransportContract, GivesEachListenerItsOwnPortAndFreesItAfterwards) {
  std::unique_ptr<net::Listener> first = listen();
  const std::unique_ptr<net::Listener> second = listen();
  EXPECT_NE(first->port(), second->port());
  const int port = first->port();
  first.reset();
  EXPECT_TRUE(driver_->server().listen({driver_->listen_host(), port},
                                       [](std::unique_ptr<net::Stream>) {}));
}

TEST_P(TransportContract, EndsOneDirectionWhenTheOtherGoesOn) {
  Pair pair = make_pair();
  Talker client(std::move(pair.client));
  Talker server(std::move(pair.server));
  client.send("question");
  ASSERT_TRUE(run_until([&] { return client.unsent_bytes() == 0; }));
  client.shutdown_write();
  ASSERT_TRUE(run_until([&] { return server.ended(); }));
  EXPECT_EQ(server.received(), "question");

  server.send("answer");
  ASSERT_TRUE(run_until([&] { return client.received() == "answer"; }));
  EXPECT_FALSE(client.ended());
  server.shutdown_write();
  ASSERT_TRUE(run_until([&] { return client.ended(); }));

  char buffer[1];
  EXPECT_EQ(client.stream().read(buffer).kind, net::Transfer::Kind::End);
  EXPECT_EQ(client.failure(), 0);
  EXPECT_EQ(server.failure(), 0);
}

TEST_P(TransportContract, RefusesToWriteAfterShutdown) {
  Pair pair = make_pair();
  pair.client->shutdown_write();
  const std::string_view pieces[] = {"too late"};
  const net::Transfer moved = pair.client->write(pieces);
  EXPECT_EQ(moved.kind, net::Transfer::Kind::Failed);
  EXPECT_EQ(moved.error_number, EPIPE);
}

TEST_P(TransportContract, DeliversEverythingBeforeTheEndWhenThePeerCloses) {
  const std::string text = numbered_text(100'000);
  Pair pair = make_pair();
  Talker client(std::move(pair.client));
  Talker server(std::move(pair.server));
  server.send(text);
  ASSERT_TRUE(run_until([&] { return server.unsent_bytes() == 0; }));
  server.close();
  ASSERT_TRUE(run_until([&] { return client.ended() || client.failure() != 0; }));
  EXPECT_EQ(client.failure(), 0);
  EXPECT_TRUE(client.received() == text);
}

TEST_P(TransportContract, BlocksAWriterWhosePeerDoesNotReadAndLetsItGoOnLater) {
  constexpr std::size_t kBytesMax = std::size_t{64} * 1024 * 1024;  // more than any kernel buffers
  const std::string block = numbered_text(1'000'000);
  Pair pair = make_pair();
  Talker client(std::move(pair.client));
  Talker server(std::move(pair.server));
  server.set_reading(false);

  std::size_t written_bytes = 0;
  for (;;) {
    const std::size_t offset = written_bytes % block.size();
    const std::string_view pieces[] = {std::string_view(block).substr(offset)};
    const net::Transfer moved = client.stream().write(pieces);
    if (moved.kind != net::Transfer::Kind::Moved) {
      ASSERT_EQ(moved.kind, net::Transfer::Kind::WouldBlock);
      break;
    }
    ASSERT_GT(moved.bytes, 0U);
    written_bytes += moved.bytes;
    ASSERT_LT(written_bytes, kBytesMax);
  }

  // What the writer has left over goes out by itself as soon as the reader reads.
  client.send(std::string_view(block).substr(written_bytes % block.size()));
  client.send(block);
  server.set_reading(true);
  ASSERT_TRUE(run_until([&] { return client.unsent_bytes() == 0; }));
  client.shutdown_write();
  ASSERT_TRUE(run_until([&] { return server.ended() || server.failure() != 0; }));
  ASSERT_EQ(server.failure(), 0);
  const std::string& received = server.received();
  ASSERT_EQ(received.size(), (written_bytes / block.size() + 2) * block.size());
  for (std::size_t start = 0; start < received.size(); start += block.size()) {
    ASSERT_EQ(received.compare(start, block.size(), block), 0) << start;
  }
}

TEST_P(TransportContract, WritesManyPiecesInOrder) {
  std::vector<std::string> texts;
  for (int index = 0; index < 200; ++index)
    texts.push_back(index % 3 == 0 ? "" : std::to_string(index));
  std::string whole;
  for (const std::string& text : texts) whole += text;

  Pair pair = make_pair();
  Talker server(std::move(pair.server));
  std::size_t written_bytes = 0;
  while (written_bytes < whole.size()) {
    std::vector<std::string_view> pieces;
    std::size_t skip_bytes = written_bytes;
    for (const std::string& text : texts) {
      const std::size_t skipped = std::min(skip_bytes, text.size());
      skip_bytes -= skipped;
      pieces.push_back(std::string_view(text).substr(skipped));
    }
    // Whole pieces that are written go away, as they do in a real queue; empty ones in the middle
    // stay.
    while (!pieces.empty() && pieces.front().empty()) pieces.erase(pieces.begin());
    const net::Transfer moved = pair.client->write(pieces);
    ASSERT_EQ(moved.kind, net::Transfer::Kind::Moved);
    written_bytes += moved.bytes;
  }
  EXPECT_TRUE(run_until([&] { return server.received().size() >= whole.size(); }));
  EXPECT_EQ(server.received(), whole);
}

TEST_P(TransportContract, ResetsThePeerOfAStreamThatIsClosedWithUnreadBytes) {
  Pair pair = make_pair();
  Talker client(std::move(pair.client));
  EventProbe probe;
  bool arrived = false;
  probe.readable = [&] {
    arrived = true;
    pair.server->want(false, false);
  };
  pair.server->set_events(&probe);
  pair.server->want(true, false);
  client.send("nobody reads this");
  ASSERT_TRUE(run_until([&] { return arrived; }));
  pair.server.reset();
  ASSERT_TRUE(run_until([&] { return client.failure() != 0 || client.ended(); }));
  EXPECT_EQ(client.failure(), ECONNRESET);
}

TEST_P(TransportContract, FailsAWriterWhosePeerIsGone) {
  Pair pair = make_pair();
  Talker client(std::move(pair.client));
  pair.server.reset();
  ASSERT_TRUE(run_until([&] { return client.ended(); }));
  // The first bytes may still be taken: the sender learns only from the answer that nobody wants
  // them.
  const std::string text = numbered_text(1'000);
  ASSERT_TRUE(run_until([&] {
    if (client.failure() == 0 && client.unsent_bytes() == 0) client.send(text);
    return client.failure() != 0;
  }));
  EXPECT_TRUE(client.failure() == ECONNRESET || client.failure() == EPIPE) << client.failure();
}

TEST_P(TransportContract, KeepsConnectionsWaitingWhileAcceptingIsPaused) {
  const std::unique_ptr<net::Listener> listener = listen();
  listener->set_accepting(false);
  ConnectResult waiting = connect(listener->port());
  ASSERT_TRUE(waiting) << waiting.error().message;
  Talker client(std::move(*waiting));
  client.send("patience");
  ASSERT_TRUE(run_until([&] { return client.unsent_bytes() == 0; }));
  EXPECT_TRUE(accepted_.empty());

  listener->set_accepting(true);
  ASSERT_TRUE(run_until([&] { return !accepted_.empty(); }));
  Talker server(std::move(accepted_.back()));
  accepted_.clear();
  EXPECT_TRUE(run_until([&] { return server.received() == "patience"; }));
}

TEST_P(TransportContract, GivesUpAConnectionWhenItsTaskIsDestroyed) {
  const std::unique_ptr<net::Listener> listener = listen();
  std::optional<ConnectResult> result;
  {
    TaskScope scope;
    scope.start(
        connect_into(driver_->client(), {driver_->listen_host(), listener->port()}, result));
  }
  EXPECT_FALSE(result);
  // Whether the server sees it or not, it sees nothing but its end, and later connections are not
  // disturbed.
  ConnectResult next = connect(listener->port());
  ASSERT_TRUE(next) << next.error().message;
  Talker client(std::move(*next));
  client.send("after you");
  std::vector<std::unique_ptr<Talker>> servers;
  ASSERT_TRUE(run_until([&] {
    for (auto& stream : accepted_) servers.push_back(std::make_unique<Talker>(std::move(stream)));
    accepted_.clear();
    return !servers.empty() && servers.back()->received() == "after you";
  }));
  EXPECT_LE(servers.size(), 2U);
  if (servers.size() == 2) {
    EXPECT_TRUE(run_until([&] { return servers[0]->ended() || servers[0]->failure() != 0; }));
    EXPECT_EQ(servers[0]->received(), "");
  }
}

TEST_P(TransportContract, RepeatsAnEventWhileItsConditionHolds) {
  Pair pair = make_pair();
  Talker client(std::move(pair.client));
  EventProbe probe;
  int readable_count = 0;
  int writable_count = 0;
  probe.readable = [&] { ++readable_count; };
  probe.writable = [&] { ++writable_count; };
  pair.server->set_events(&probe);
  pair.server->want(true, true);
  client.send("still here");
  EXPECT_TRUE(run_until([&] { return readable_count >= 3 && writable_count >= 3; }));
}

TEST_P(TransportContract, TellsOnlyWhatIsWanted) {
  Pair pair = make_pair();
  Talker client(std::move(pair.client));
  EventProbe probe;
  int readable_count = 0;
  int writable_count = 0;
  probe.readable = [&] { ++readable_count; };
  probe.writable = [&] { ++writable_count; };
  pair.server->set_events(&probe);
  client.send("unwanted");
  ASSERT_TRUE(run_until([&] { return client.unsent_bytes() == 0; }));

  // A second connection's round trip gives the first one's bytes time to arrive.
  Pair other = make_pair();
  Talker other_client(std::move(other.client));
  Talker other_server(std::move(other.server));
  other_client.send("x");
  ASSERT_TRUE(run_until([&] { return other_server.received() == "x"; }));
  EXPECT_EQ(readable_count, 0);
  EXPECT_EQ(writable_count, 0);

  pair.server->want(true, false);
  EXPECT_EQ(readable_count, 0);  // never from inside the call
  EXPECT_TRUE(run_until([&] { return readable_count > 0; }));
  EXPECT_EQ(writable_count, 0);
}

TEST_P(TransportContract, LetsAStreamBeDestroyedByItsOwnEvent) {
  for (const bool by_reading : {true, false}) {
    Pair pair = make_pair();
    Talker client(std::move(pair.client));
    EventProbe probe;
    int call_count = 0;
    const auto destroy = [&] {
      ++call_count;
      pair.server.reset();
    };
    (by_reading ? probe.readable : probe.writable) = destroy;
    pair.server->set_events(&probe);
    client.send("the end");
    pair.server->want(by_reading, !by_reading);
    EXPECT_TRUE(run_until([&] { return client.ended() || client.failure() != 0; }));
    EXPECT_EQ(call_count, 1);
  }
}

TEST_P(TransportContract, LetsAListenerBeDestroyedByItsOwnCall) {
  std::unique_ptr<net::Listener> listener;
  int call_count = 0;
  auto made =
      driver_->server().listen({driver_->listen_host(), 0}, [&](std::unique_ptr<net::Stream>) {
        ++call_count;
        listener.reset();
      });
  ASSERT_TRUE(made) << made.error().message;
  listener = std::move(*made);
  const ConnectResult client = connect(listener->port());
  EXPECT_TRUE(client) << client.error().message;
  EXPECT_TRUE(run_until([&] { return listener == nullptr; }));
  EXPECT_EQ(call_count, 1);
}

}  // namespace muster::tests
