// Calls against a server that says what the test wants, byte by byte.
#include "muster/store/extension_call.h"

#include "muster/base/random.h"
#include "muster/sim/loop.h"
#include "muster/sim/network.h"
#include "muster/store/extension_client.h"
#include "muster/store/extension_watch.h"
#include "muster/wire/codec.h"
#include "tests/net/talker.h"
#include "tests/server/requests.h"
#include "tests/store/contract.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::store::testing {
namespace {

using namespace std::chrono_literals;
using tests::Talker;
using wire::Operation;

std::string reply(std::uint32_t id, std::uint8_t status, std::string_view body) {
  std::string bytes;
  const std::size_t start = wire::begin_reply(id, status, bytes);
  bytes += body;
  wire::end_reply(start, bytes);
  return bytes;
}
std::string item(std::string_view value) {
  std::string body(1, '\1');
  wire::put_string(body, value);
  return body;
}
// Shorter than its header.
const std::string kNoReply(4, '\0');

Task<Result<std::string>> pop(ExtensionClient& client, std::string queue, TimePoint deadline) {
  wire::Request request;
  request.operation = Operation::QueuePop;
  request.blocking = deadline > client.now();
  request.key = queue;
  ExtensionCall call(client, request, deadline);
  co_await call;
  co_return call.value();
}

Task<Result<>> ping(ExtensionClient& client) {
  wire::Request request;
  request.operation = Operation::Ping;
  ExtensionCall call(client, request, kNever);
  co_await call;
  co_return call.outcome();
}

class ScriptedServerTest : public ::testing::Test {
 protected:
  ScriptedServerTest() {
    const auto accept = [this](std::unique_ptr<net::Stream> stream) {
      peer = std::make_unique<Talker>(std::move(stream));
    };
    auto listening = server_host.listen({"server", 4400}, accept);
    EXPECT_TRUE(listening) << listening.error().message;
    listener = std::move(*listening);
    TcpStoreOptions options;
    options.endpoint = {"server", 4400};
    options.reply_timeout = 60s;
    // The store connects as every client does: what it is answered decides about the dialect.
    Call<std::unique_ptr<TcpStore>> connecting(
        connect_tcp_store(client_host.loop(), client_host, random, options));
    for (const std::string& answer : handshake()) {
      settle();
      peer->send(answer);
    }
    settle();
    EXPECT_TRUE(connecting.done());
    auto connected = connecting.take();
    EXPECT_TRUE(connected) << connected.error().message;
    store = std::move(*connected);

    // And a client of its own, whose link the test can look at.
    ClientContext context{client_host.loop(), client_host, random, options};
    auto opened = std::make_unique<Call<Opened>>(open_once(context, loop.now() + 1h));
    store_peer = std::move(peer);
    for (const std::string& answer : handshake()) {
      settle();
      peer->send(answer);
    }
    settle();
    auto channel = std::move(opened->take()->channel);
    client = std::make_unique<ExtensionClient>(std::move(context), std::move(channel));
  }

  static std::vector<std::string> handshake() {
    return {std::string(wire::kProbeReplyBytes, '\0'), std::string(1, '\0'),
            std::string("\1\0\0\0", 4)};
  }

  void settle() { loop.advance(5ms); }
  std::size_t call_count() const { return client->weak_link().lock()->call_count(); }

  Random random{3};
  sim::Loop loop;
  sim::Network network{loop, random};
  sim::Host& server_host = network.host("server");
  sim::Host& client_host = network.host("client");
  std::unique_ptr<net::Listener> listener;
  std::unique_ptr<Talker> peer;        // the server's side of `client`
  std::unique_ptr<Talker> store_peer;  // and of `store`
  std::unique_ptr<TcpStore> store;
  std::unique_ptr<ExtensionClient> client;
};
using ExtensionCallInSim = ScriptedServerTest;

TEST_F(ExtensionCallInSim, LeavesTheLinkWhenItIsAnswered) {
  Call<std::string> popping(pop(*client, "q", kNever));
  settle();
  EXPECT_EQ(call_count(), 1U);
  peer->send(reply(1, wire::kStatusOk, item("x")));
  settle();
  EXPECT_TRUE(gives(popping.take(), "x"));
  EXPECT_EQ(call_count(), 0U);
}

TEST_F(ExtensionCallInSim, LeavesTheLinkWhenItWasAbandonedAndIsAnsweredThen) {
  for (const bool has_item : {true, false}) {
    auto popping = std::make_unique<Call<std::string>>(pop(*client, "q", kNever));
    settle();
    popping.reset();
    settle();
    EXPECT_EQ(call_count(), 1U);  // it may bring an item
    const std::uint32_t id = has_item ? 1 : 3;
    const std::string answer = has_item
                                   ? reply(id, wire::kStatusOk, item("x"))
                                   : reply(id, wire::status_of(ErrorKind::Cancelled), "as asked");
    const std::size_t before = peer->received().size();
    peer->send(answer);
    settle();
    EXPECT_EQ(call_count(), 0U);
    // The item goes back to its queue, with id 2.
    const std::string pushed =
        tests::request_bytes(wire::Dialect::Extension, Operation::QueuePush, "/q", "x");
    EXPECT_EQ(peer->received().size() - before, has_item ? pushed.size() : 0);
  }
  // And nobody is told of the loss.
  peer.reset();
  settle();
}

TEST_F(ExtensionCallInSim, LeavesTheLinkWhenItIsAbandonedBetweenTheLossAndItsReport) {
  // Destroys the pop as soon as the ping is answered.
  struct Destroyer {
    static Task<void> run(ExtensionClient& client, std::unique_ptr<Call<std::string>>& popping,
                          bool& done) {
      const auto answered = co_await ping(client);
      EXPECT_TRUE(answered);
      const auto link = client.weak_link().lock();
      EXPECT_TRUE(link->broken());
      EXPECT_EQ(link->call_count(), 1U);
      popping.reset();
      EXPECT_EQ(link->call_count(), 0U);
      done = true;
    }
  };
  auto popping = std::make_unique<Call<std::string>>(pop(*client, "q", kNever));
  bool done = false;
  TaskScope scope;
  scope.start(Destroyer::run(*client, popping, done));
  settle();
  // In one piece: the answer to the ping, and what breaks the link.
  peer->send(reply(2, wire::kStatusOk, "") + kNoReply);
  settle();
  EXPECT_TRUE(done);
}

TEST_F(ExtensionCallInSim, TakesAnErrorWithoutAReason) {
  Call<std::string> popping(pop(*client, "q", kNever));
  settle();
  peer->send(reply(1, wire::status_of(ErrorKind::Conflict), ""));
  settle();
  const auto popped = popping.take();
  ASSERT_FALSE(popped);
  EXPECT_EQ(popped.error(), (Error{ErrorKind::Conflict, "the server gave no reason"}));
}

TEST_F(ExtensionCallInSim, RefusesAReplyThatIsNoneOfItsKind) {
  for (const std::string& body : {std::string(), std::string("\1", 1), item("x") + "y",
                                  std::string("\0more", 5), std::string(1, '\0')}) {
    Call<std::string> popping(pop(*client, "q", kNever));
    settle();
    for (std::uint32_t id = 1; id <= 5; ++id) peer->send(reply(id, wire::kStatusOk, body));
    settle();
    const auto popped = popping.take();
    ASSERT_FALSE(popped);
    EXPECT_EQ(popped.error().kind, ErrorKind::Invalid);
  }
}

TEST_F(ExtensionCallInSim, WaitsForTheLastReplyOfAPopWhoseTimeIsOver) {
  Call<std::string> popping(pop(*client, "q", loop.now() + 1s));
  loop.advance(2s);
  EXPECT_FALSE(popping.done());  // the server may have sent an item
  peer->send(reply(1, wire::kStatusOk, item("x")));
  settle();
  EXPECT_TRUE(gives(popping.take(), "x"));
}

TEST_F(ExtensionCallInSim, GivesUpAPopWhoseLastReplyDoesNotComeAndReturnsItsItem) {
  Call<std::string> popping(pop(*client, "q", loop.now() + 1s));
  loop.advance(62s);
  ASSERT_TRUE(popping.done());
  const auto popped = popping.take();
  ASSERT_FALSE(popped);
  EXPECT_EQ(popped.error().kind, ErrorKind::Timeout);
  EXPECT_EQ(call_count(), 1U);
  const std::size_t before = peer->received().size();
  peer->send(reply(1, wire::kStatusOk, item("late")));
  settle();
  EXPECT_EQ(call_count(), 0U);
  EXPECT_NE(peer->received().substr(before).find("late"), std::string::npos);
}

TEST_F(ExtensionCallInSim, IgnoresRepliesToNobody) {
  peer->send(reply(1, wire::kStatusOk, "x") + reply(0, wire::kStatusOk, "") +
             reply(0xffffffff, wire::kStatusChange, ""));
  settle();
  EXPECT_NE(client->link(), nullptr);
}

// --- Watches -------------------------------------------------------------------------------------

TEST_F(ExtensionCallInSim, DoesNotWaitForEverForAWatchToBegin) {
  Call<std::unique_ptr<Watch>> watching(store->watch("k", Store::WatchScope::Key));
  loop.advance(59s);
  EXPECT_FALSE(watching.done());
  loop.advance(2s);
  ASSERT_TRUE(watching.done());
  const auto began = watching.take();
  ASSERT_FALSE(began);
  EXPECT_EQ(began.error().kind, ErrorKind::Timeout);
  EXPECT_NE(began.error().message.find("WATCH_KEY"), std::string::npos) << began.error().message;
}

}  // namespace
}  // namespace muster::store::testing
