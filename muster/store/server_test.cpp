#include "muster/store/server.h"

#include "muster/sim/loop.h"
#include "muster/sim/network.h"
#include "tests/net/talker.h"
#include "tests/server/log_capture.h"
#include "tests/server/requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::store {
namespace {

using namespace std::chrono_literals;
using tests::blob;
using tests::LogCapture;
using tests::number;
using tests::opening;
using tests::request_bytes;
using tests::Talker;
using wire::Dialect;
using wire::Operation;

class ServerTest : public testing::Test {
 protected:
  void start(ServerOptions options) {
    server = std::make_unique<Server>(server_host.loop(), std::move(options));
    const auto port = server->listen(server_host, {"server", 4400}, "");
    ASSERT_TRUE(port) << port.error().message;
    bystander = connect(4400);
    bystander->send(opening(Dialect::Modern));
  }

  std::unique_ptr<Talker> connect(int port) {
    auto stream = loop.block_on(client_host.connect({"server", port}));
    EXPECT_TRUE(stream) << stream.error().message;
    if (!stream) return nullptr;
    return std::make_unique<Talker>(std::move(*stream));
  }
  std::unique_ptr<Talker> connect(Dialect dialect) {
    auto talker = connect(4400);
    talker->send(opening(dialect));
    settle();
    return talker;
  }

  void settle() { loop.advance(5ms); }

  // What comes back for `bytes`, within the time that answers take here.
  std::string ask(Talker& talker, const std::string& bytes) {
    const std::size_t before = talker.received().size();
    talker.send(bytes);
    settle();
    return talker.received().substr(before);
  }

  // Others are served, whatever happens on a connection.
  void expect_others_served() {
    const std::string value = std::to_string(++bystander_count);
    EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::Set, "/bystander", value) +
                                  request_bytes(Dialect::Modern, Operation::Get, "/bystander")),
              blob(value));
  }

  // One line about the offender, with its reason.
  void expect_one_warning(std::string_view part) {
    const auto warnings = log.warnings();
    ASSERT_EQ(warnings.size(), 1U) << testing::PrintToString(warnings);
    EXPECT_NE(warnings[0].find("peer=client:"), std::string::npos) << warnings[0];
    EXPECT_NE(warnings[0].find(part), std::string::npos) << warnings[0];
  }

  std::string server_says(std::string_view name) {
    for (const auto& [line_name, value] : server->hub().describe()) {
      if (line_name == name) return value;
    }
    return "";
  }

  LogCapture log;
  Random random{11};
  sim::Loop loop;
  sim::Network network{loop, random};
  sim::Host& server_host = network.host("server");
  sim::Host& client_host = network.host("client");
  std::unique_ptr<Server> server;
  std::unique_ptr<Talker> bystander;
  int bystander_count = 0;
};
using ServerInSim = ServerTest;

TEST_F(ServerInSim, KeepsASilentConnectionOpenForMonths) {
  start({});
  const auto silent = connect(4400);
  const auto waiting = connect(Dialect::Modern);
  waiting->send(request_bytes(Dialect::Modern, Operation::Wait, std::vector<std::string>{"/k"}));
  const auto unfinished = connect(Dialect::Modern);
  unfinished->send(request_bytes(Dialect::Modern, Operation::Set, "/u", "value").substr(0, 15));
  loop.advance(24h * 90);
  EXPECT_FALSE(silent->ended() || waiting->ended() || unfinished->ended());
  EXPECT_EQ(server->connection_count(), 4U);

  // And each goes on where it was.
  expect_others_served();
  EXPECT_EQ(ask(*silent, request_bytes(Dialect::Legacy, Operation::NumKeys)), number(1));
  EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::Set, "/k", "v")), "");
  EXPECT_EQ(waiting->received(), std::string(1, '\0'));
  unfinished->send(request_bytes(Dialect::Modern, Operation::Set, "/u", "value").substr(15));
  settle();
  EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::Get, "/u")), blob("value"));
  EXPECT_TRUE(log.warnings().empty());
}

TEST_F(ServerInSim, EndsAConnectionItMustCloseWithoutResettingIt) {
  start({});
  const auto offender = connect(4400);
  offender->send("\xff what a start");
  settle();
  EXPECT_TRUE(offender->ended());
  EXPECT_EQ(offender->failure(), 0);
  // What comes behind is taken and thrown away.
  offender->send(std::string(100'000, '\0'));
  settle();
  EXPECT_EQ(offender->unsent_bytes(), 0U);
  EXPECT_EQ(offender->failure(), 0);
  EXPECT_EQ(server->connection_count(), 2U);
  offender->close();
  settle();
  EXPECT_EQ(server->connection_count(), 1U);
  expect_others_served();
  expect_one_warning("first byte 0xff");
}

TEST_F(ServerInSim, CutsOffAClientThatDoesNotNoticeThatItWasClosed) {
  ServerOptions options;
  options.linger = 5s;
  start(options);
  const auto offender = connect(4400);
  offender->send("\xff");
  loop.advance(4900ms);
  EXPECT_EQ(server->connection_count(), 2U);
  loop.advance(200ms);
  EXPECT_EQ(server->connection_count(), 1U);
  EXPECT_TRUE(offender->ended());
  EXPECT_EQ(offender->failure(), 0);
}

TEST_F(ServerInSim, ServesNothingThatComesBehindABrokenRequest) {
  sim::Weather weather;
  weather.latency_max = weather.latency_min;  // all of it arrives at once
  weather.window_bytes = std::size_t{16} << 20U;
  network.set_weather(weather);
  start({});
  // A request that is broken in its middle, filler to the end of what one read may take, and then
  // requests that are whole.
  for (std::size_t read_bytes = 4096; read_bytes <= (std::size_t{1} << 20U); read_bytes *= 2) {
    const auto offender = connect(Dialect::Modern);
    std::string bytes =
        request_bytes(Dialect::Modern, Operation::Set, "/fill", std::string(100, 'f'));
    bytes += request_bytes(Dialect::Modern, Operation::Set, "/broken", "x").substr(0, 1 + 8 + 7);
    wire::put<std::uint64_t>(bytes, std::uint64_t{1} << 40U);
    bytes.resize(read_bytes, '\x7f');
    for (int again = 0; again < 1000; ++again) {
      bytes += request_bytes(Dialect::Modern, Operation::Set, "/behind", "x");
    }
    offender->send(bytes);
    settle();
    EXPECT_TRUE(offender->ended());
    EXPECT_EQ(offender->failure(), 0);
    EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::Get, "/behind")), blob(""))
        << read_bytes;
  }
  expect_others_served();
}

TEST_F(ServerInSim, ServesNothingThatComesBehindARequestItCouldNotCarryOut) {
  start({});
  const auto offender = connect(Dialect::Modern);
  offender->send(request_bytes(Dialect::Modern, Operation::Set, "/text", "abc") +
                 request_bytes(Dialect::Modern, Operation::Get, "/text") +
                 request_bytes(Dialect::Modern, Operation::Add, "/text", {}, 1) +
                 request_bytes(Dialect::Modern, Operation::Set, "/behind", "x"));
  settle();
  EXPECT_EQ(offender->received(), blob("abc"));  // what came before is answered
  EXPECT_TRUE(offender->ended());
  EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::Get, "/behind")), blob(""));
  expect_one_warning("not a number");
}

TEST_F(ServerInSim, AnswersAClientThatHasFinishedSending) {
  sim::Weather weather;
  weather.window_bytes = 10'000;
  network.set_weather(weather);
  start({});
  const std::string value(3'000'000, 'v');  // more than may be pending at one time
  const auto asker = connect(Dialect::Modern);
  asker->send(request_bytes(Dialect::Modern, Operation::Set, "/k", value) +
              request_bytes(Dialect::Modern, Operation::Get, "/k") +
              request_bytes(Dialect::Modern, Operation::Get, "/k"));
  ASSERT_TRUE(loop.run_until([&] { return asker->unsent_bytes() == 0; }, loop.now() + 1min));
  asker->shutdown_write();
  ASSERT_TRUE(
      loop.run_until([&] { return asker->ended() || asker->failure() != 0; }, loop.now() + 1min));
  EXPECT_EQ(asker->failure(), 0);
  EXPECT_EQ(asker->received().size(), 2 * blob(value).size());
  settle();
  EXPECT_EQ(server->connection_count(), 1U);
}

TEST_F(ServerInSim, LetsFurtherConnectionsWaitAtTheMaximumAndServesThemLater) {
  ServerOptions options;
  options.connections_max = 3;
  start(options);
  auto second = connect(Dialect::Modern);
  const auto third = connect(Dialect::Modern);
  const auto fourth = connect(Dialect::Modern);
  const auto fifth = connect(Dialect::Legacy);
  const std::string count_keys = request_bytes(Dialect::Modern, Operation::NumKeys);
  EXPECT_EQ(ask(*third, count_keys), number(0));
  EXPECT_EQ(ask(*fourth, count_keys), "");
  EXPECT_EQ(ask(*fifth, request_bytes(Dialect::Legacy, Operation::NumKeys)), "");
  loop.advance(1h);
  EXPECT_FALSE(fourth->ended() || fifth->ended());
  EXPECT_EQ(server->connection_count(), 3U);
  expect_others_served();

  // A further port is no way around it.
  const auto port = server->listen(server_host, {"server", 4401}, "more");
  ASSERT_TRUE(port) << port.error().message;
  const auto elsewhere = connect(4401);
  EXPECT_EQ(ask(*elsewhere, request_bytes(Dialect::Legacy, Operation::NumKeys)), "");
  EXPECT_EQ(server->connection_count(), 3U);

  second->close();
  settle();
  EXPECT_EQ(server->connection_count(), 3U);
  EXPECT_EQ(fourth->received(), number(1));
  fourth->close();
  settle();
  EXPECT_EQ(fifth->received(), number(1));
  third->close();
  settle();
  EXPECT_EQ(elsewhere->received(), number(0));
}

TEST_F(ServerInSim, RefusesANamespaceTooManyWithoutResettingTheConnection) {
  ServerOptions options;
  options.hub.namespaces_max = 1;
  start(options);
  const auto port = server->listen(server_host, {"server", 4401}, "more");
  ASSERT_TRUE(port) << port.error().message;
  const auto refused = connect(4401);
  refused->send(opening(Dialect::Modern) + request_bytes(Dialect::Modern, Operation::NumKeys));
  settle();
  EXPECT_TRUE(refused->ended());
  EXPECT_EQ(refused->failure(), 0);
  expect_others_served();
  expect_one_warning("the server has 1 namespaces");
  refused->close();
  settle();
  EXPECT_EQ(server->connection_count(), 1U);
}

TEST_F(ServerInSim, KeepsTheNamespacesOfItsPortsApart) {
  start({});
  ASSERT_TRUE(server->listen(server_host, {"server", 4401}, "job-1"));
  const auto inside = connect(4401);
  EXPECT_EQ(ask(*inside, request_bytes(Dialect::Legacy, Operation::Set, "/k", "inside") +
                             request_bytes(Dialect::Legacy, Operation::Get, "/k")),
            blob("inside"));
  EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::Get, "/k")), blob(""));
  // By name, a Muster client gets to either from either port.
  const auto upgraded = connect(4400);
  EXPECT_EQ(ask(*upgraded, opening(Dialect::Extension, "job-1")).size(), 4U);
  const std::string reply = ask(*upgraded, request_bytes(Dialect::Extension, Operation::Get, "/k"));
  EXPECT_NE(reply.find("inside"), std::string::npos);
}

TEST_F(ServerInSim, DropsANamespaceWithItsPortItsConnectionsAndItsData) {
  start({});
  ASSERT_TRUE(server->listen(server_host, {"server", 4401}, "job-1"));
  const auto inside = connect(4401);
  const auto other = connect(4401);
  ASSERT_EQ(ask(*inside, request_bytes(Dialect::Legacy, Operation::Set, "/k", "v") +
                             request_bytes(Dialect::Legacy, Operation::NumKeys)),
            number(1));
  EXPECT_FALSE(server->drop_namespace("nobody's"));
  EXPECT_TRUE(server->drop_namespace("job-1"));
  EXPECT_FALSE(server->drop_namespace("job-1"));
  settle();
  EXPECT_TRUE(inside->ended() && other->ended());
  EXPECT_EQ(inside->failure(), 0);
  EXPECT_EQ(server->hub().namespaces(), (std::vector<std::string>{""}));
  expect_others_served();
  const auto gone = loop.block_on(client_host.connect({"server", 4401}));
  EXPECT_FALSE(gone);
  ASSERT_TRUE(server->listen(server_host, {"server", 4401}, "job-1"));
  const auto again = connect(4401);
  EXPECT_EQ(ask(*again, request_bytes(Dialect::Legacy, Operation::NumKeys)), number(0));
}

TEST_F(ServerInSim, RefusesWritesWhenItsMemoryIsUsedUpAndServesTheRest) {
  ServerOptions options;
  options.hub.memory_bytes_max = 100'000;
  start(options);
  const auto writer = connect(Dialect::Modern);
  const auto extension = connect(Dialect::Extension);
  EXPECT_EQ(ask(*writer,
                request_bytes(Dialect::Modern, Operation::Set, "/big", std::string(60'000, 'b')) +
                    request_bytes(Dialect::Modern, Operation::NumKeys)),
            number(1));

  // The extension has an answer for it; in PyTorch's protocol there is only the end.
  const std::string reply = ask(*extension, request_bytes(Dialect::Extension, Operation::Set,
                                                          "/more", std::string(50'000, 'm')));
  EXPECT_NE(reply.find("the store is full"), std::string::npos);
  EXPECT_TRUE(log.warnings().empty());
  EXPECT_EQ(ask(*writer,
                request_bytes(Dialect::Modern, Operation::Set, "/more", std::string(50'000, 'm'))),
            "");
  EXPECT_TRUE(writer->ended());
  EXPECT_EQ(writer->failure(), 0);
  expect_one_warning("the store is full");

  EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::Get, "/more")), blob(""));
  EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::DeleteKey, "/big")),
            number(1));
  const std::string stored = ask(*extension, request_bytes(Dialect::Extension, Operation::Set,
                                                           "/more", std::string(50'000, 'm')));
  EXPECT_EQ(stored.size(), wire::kFrameHeaderBytes);
}

TEST_F(ServerInSim, ClosesAClientWhoseUnfinishedRequestDoesNotFit) {
  ServerOptions options;
  options.hub.memory_bytes_max = 1'000'000;
  start(options);
  const auto offender = connect(Dialect::Modern);
  offender->send(request_bytes(Dialect::Modern, Operation::Set, "/k", std::string(4'000'000, 'v')));
  loop.advance(100ms);
  EXPECT_TRUE(offender->ended());
  EXPECT_EQ(offender->failure(), 0);
  EXPECT_LT(server->hub().memory_bytes(), 100'000U);
  expect_others_served();
  expect_one_warning("does not fit into --max-memory");
}

TEST_F(ServerInSim, StopsServingAClientThatDoesNotReadAndGoesOnWhenItDoes) {
  start({});
  const std::string value(200'000, 'v');
  const auto lazy = connect(Dialect::Modern);
  lazy->set_reading(false);
  std::string bytes = request_bytes(Dialect::Modern, Operation::Set, "/k", value);
  for (int count = 0; count < 100; ++count) {
    bytes += request_bytes(Dialect::Modern, Operation::Get, "/k");
  }
  bytes += request_bytes(Dialect::Modern, Operation::Set, "/last", "x");
  lazy->send(bytes);
  loop.advance(1min);
  EXPECT_EQ(lazy->unsent_bytes(), 0U);
  EXPECT_LT(server->hub().memory_bytes(), 2'000'000U);
  EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::Get, "/last")), blob(""));
  expect_others_served();

  lazy->set_reading(true);
  loop.advance(1min);
  EXPECT_EQ(lazy->received().size(), 100 * blob(value).size());
  EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::Get, "/last")), blob("x"));
  EXPECT_TRUE(log.warnings().empty());
}

TEST_F(ServerInSim, ClosesAWatcherThatDoesNotRead) {
  ServerOptions options;
  options.hub.output_bytes_max = 100'000;
  start(options);
  const auto lazy = connect(Dialect::Extension);
  EXPECT_EQ(ask(*lazy, request_bytes(Dialect::Extension, Operation::WatchKey, "/k")).size(),
            wire::kFrameHeaderBytes + wire::kFrameHeaderBytes + 1 + 4 + 2 + 4);
  lazy->set_reading(false);
  const std::string value(10'000, 'v');
  for (int count = 0; count < 60; ++count) {
    bystander->send(request_bytes(Dialect::Modern, Operation::Set, "/k", value));
    settle();
  }
  expect_one_warning("does not read the changes it watches");
  EXPECT_EQ(server_says("watching"), "0");
  EXPECT_LT(server->hub().memory_bytes(), 50'000U);
  expect_others_served();
}

TEST_F(ServerInSim, ForgetsWhatAVanishedClientWaitedForAndWatched) {
  start({});
  auto waiting = connect(Dialect::Modern);
  waiting->send(request_bytes(Dialect::Modern, Operation::Wait, std::vector<std::string>{"/k"}));
  auto watching = connect(Dialect::Legacy);
  EXPECT_EQ(ask(*watching, request_bytes(Dialect::Legacy, Operation::WatchKey, "/k")), "\x03");
  EXPECT_EQ(server_says("waiting"), "1");
  EXPECT_EQ(server_says("watching"), "1");
  waiting->close();
  network.reset(watching->stream());
  settle();
  EXPECT_EQ(server_says("waiting"), "0");
  EXPECT_EQ(server_says("watching"), "0");
  EXPECT_EQ(server->connection_count(), 1U);
  EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::Set, "/k", "v")), "");
  expect_others_served();
  EXPECT_TRUE(log.warnings().empty());
}

TEST_F(ServerInSim, PassesAnItemOnWhenTheClientThatWasToldOfItVanishes) {
  start({});
  const std::string wait =
      request_bytes(Dialect::Modern, Operation::Wait, std::vector<std::string>{"/q"});
  const auto first = connect(Dialect::Modern);
  EXPECT_EQ(ask(*first, wait), "");
  const auto second = connect(Dialect::Modern);
  EXPECT_EQ(ask(*second, wait), "");
  EXPECT_EQ(ask(*bystander, request_bytes(Dialect::Modern, Operation::QueuePush, "/q", "item")),
            "");
  EXPECT_EQ(first->received(), std::string(1, '\0'));
  EXPECT_EQ(second->received(), "");
  first->close();
  settle();
  EXPECT_EQ(second->received(), std::string(1, '\0'));
  EXPECT_EQ(ask(*second, request_bytes(Dialect::Modern, Operation::QueuePop, "/q")),
            number(1) + blob("item"));
}

TEST_F(ServerInSim, CanBeDestroyedWithEverythingUnderWay) {
  start({});
  const std::string wait =
      request_bytes(Dialect::Modern, Operation::Wait, std::vector<std::string>{"/q"});
  std::vector<std::unique_ptr<Talker>> talkers;
  for (int count = 0; count < 10; ++count) {
    talkers.push_back(connect(Dialect::Modern));
    talkers.back()->send(wait);
  }
  const auto watching = connect(Dialect::Extension);
  watching->send(request_bytes(Dialect::Extension, Operation::WatchPrefix, "/"));
  const auto closing = connect(4400);
  closing->send("\xff");
  bystander->send(request_bytes(Dialect::Modern, Operation::QueuePush, "/q", "item"));
  settle();
  server.reset();
  settle();
  EXPECT_TRUE(std::all_of(talkers.begin(), talkers.end(),
                          [](const auto& talker) { return talker->ended(); }));
}

// ---- one loop for all

// A client whose connection takes all it is given, and which never stops asking.
class GreedyStream final : public net::Stream {
 public:
  GreedyStream(std::string bytes, std::size_t& taken_bytes)
      : bytes_(std::move(bytes)), taken_bytes_(taken_bytes) {}
  net::Transfer read(std::span<char> into) override {
    const std::size_t count = std::min(into.size(), bytes_.size() - read_bytes_);
    if (count == 0) return {};
    std::copy_n(bytes_.data() + read_bytes_, count, into.data());
    read_bytes_ += count;
    return {net::Transfer::Kind::Moved, count, 0};
  }
  net::Transfer write(std::span<const std::string_view> pieces) override {
    std::size_t count = 0;
    for (const std::string_view piece : pieces) count += piece.size();
    count = std::min<std::size_t>(count, 100'000);
    taken_bytes_ += count;
    return {net::Transfer::Kind::Moved, count, 0};
  }
  void set_events(net::StreamEvents* events) override { events_ = events; }
  void want(bool readable, bool writable) override {
    wants_readable = readable;
    wants_writable = writable;
  }
  void shutdown_write() override {}
  const std::string& peer() const override { return peer_; }

  // What a loop would do in one turn.
  void turn() {
    if (wants_writable) events_->on_writable();
    if (wants_readable && read_bytes_ < bytes_.size()) events_->on_readable();
  }
  bool wants_readable = false;
  bool wants_writable = false;

 private:
  std::string bytes_;
  std::size_t read_bytes_ = 0;
  std::size_t& taken_bytes_;
  net::StreamEvents* events_ = nullptr;
  std::string peer_ = "greedy:1";
};

// Hands out the one stream it was given.
class OneStreamTransport final : public net::Transport {
 public:
  void accept(std::unique_ptr<net::Stream> stream) { accepted_(std::move(stream)); }
  Task<Result<std::unique_ptr<net::Stream>>> connect(net::Endpoint) override {
    co_return fail(ErrorKind::Unimplemented, "only listens");
  }
  Result<std::unique_ptr<net::Listener>> listen(
      const net::Endpoint&, std::function<void(std::unique_ptr<net::Stream>)> accepted) override {
    accepted_ = std::move(accepted);
    class NoListener final : public net::Listener {
      int port() const override { return 1; }
      void set_accepting(bool) override {}
    };
    return std::make_unique<NoListener>();
  }

 private:
  std::function<void(std::unique_ptr<net::Stream>)> accepted_;
};

TEST(ServerTurn, IsShortEvenForAClientThatReadsAsFastAsItIsServed) {
  sim::Loop loop;
  OneStreamTransport transport;
  Server server(loop, {});
  ASSERT_TRUE(server.listen(transport, {"", 0}, ""));
  constexpr int kGets = 20'000;
  const std::string value(1'000'000, 'v');
  std::string bytes =
      opening(Dialect::Modern) + request_bytes(Dialect::Modern, Operation::Set, "/k", value);
  for (int count = 0; count < kGets; ++count) {
    bytes += request_bytes(Dialect::Modern, Operation::Get, "/k");
  }
  std::size_t taken_bytes = 0;
  auto stream = std::make_unique<GreedyStream>(bytes, taken_bytes);
  GreedyStream& greedy = *stream;
  transport.accept(std::move(stream));
  std::size_t most_bytes = 0;
  for (int turn = 0; turn < 300; ++turn) {
    const std::size_t before = taken_bytes;
    greedy.turn();
    most_bytes = std::max(most_bytes, taken_bytes - before);
  }
  EXPECT_GT(taken_bytes, 100'000'000U);  // it is served...
  EXPECT_LE(most_bytes, 8'000'000U);     // ... but never for longer than a few milliseconds
}

}  // namespace
}  // namespace muster::store
