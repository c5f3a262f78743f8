// Services of a Server: what they say, when they like, to whom they like.
#include "muster/base/random.h"
#include "muster/sim/loop.h"
#include "muster/sim/network.h"
#include "muster/store/server.h"
#include "tests/fuzz/chat_service.h"
#include "tests/net/talker.h"
#include "tests/server/log_capture.h"
#include "tests/server/requests.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::store {
namespace {

using namespace std::chrono_literals;
using tests::ChatService;
using tests::Talker;
using wire::Dialect;
using wire::Operation;
using Events = std::vector<std::string>;

constexpr auto kChat = static_cast<ServiceId>(1);

std::string frame(Operation operation, std::uint32_t id, std::string_view message) {
  wire::Request request;
  request.operation = operation;
  request.id = id;
  request.number = static_cast<std::int64_t>(kChat);
  request.value = message;
  return tests::bytes_of(request, Dialect::Extension);
}
std::string said(std::uint32_t id, std::string_view message) {
  std::string bytes;
  const std::size_t start = wire::begin_reply(id, wire::kStatusChange, bytes);
  bytes += message;
  wire::end_reply(start, bytes);
  return bytes;
}

class ServerServiceTest : public testing::Test {
 protected:
  void start(const ServerOptions& options) {
    server = std::make_unique<Server>(server_host.loop(), options);
    server->add_service(kChat, chat);
    const auto port = server->listen(server_host, {"server", 4400}, "");
    ASSERT_TRUE(port) << port.error().message;
  }

  // A client in a conversation, which has read the server's answer to the opening.
  std::unique_ptr<Talker> join(std::string_view namespace_name = "") {
    auto stream = loop.block_on(client_host.connect({"server", 4400}));
    EXPECT_TRUE(stream) << stream.error().message;
    if (!stream) return nullptr;
    auto talker = std::make_unique<Talker>(std::move(*stream));
    talker->send(tests::opening(Dialect::Extension, namespace_name) +
                 frame(Operation::Open, 1, ""));
    settle();
    return talker;
  }
  // What came behind the version.
  static std::string_view heard_by(const Talker& talker) {
    return std::string_view(talker.received()).substr(4);
  }
  void settle() { loop.advance(5ms); }

  tests::LogCapture log;
  Random random{13};
  sim::Loop loop;
  sim::Network network{loop, random};
  sim::Host& server_host = network.host("server");
  sim::Host& client_host = network.host("client");
  ChatService chat;
  std::unique_ptr<Server> server;
};
using ServerService = ServerServiceTest;

TEST_F(ServerService, SpeaksFromATimer) {
  start({});
  std::vector<std::unique_ptr<Talker>> clients;
  for (int count = 0; count < 20; ++count) clients.push_back(join());
  Timer timer(server_host.loop(), [&] {
    chat.say_to_all("tick");
    chat.say_to_all("tock");
  });
  timer.set(loop.now() + 1h);
  // No other event follows that one, so what is not sent in that turn is not sent at all.
  loop.advance(1h + 5ms);
  for (const auto& client : clients)
    EXPECT_EQ(heard_by(*client), said(1, "tick") + said(1, "tock"));
}

TEST_F(ServerService, EndsConversationsFromATimer) {
  start({});
  const auto client = join();
  Timer timer(server_host.loop(), [&] { chat.conversation(1).refuse(ErrorKind::Timeout, "late"); });
  timer.set(loop.now() + 1h);
  loop.advance(1h + 5ms);
  std::string expected;
  wire::encode_error(1, ErrorKind::Timeout, "late", expected);
  EXPECT_EQ(heard_by(*client), expected);
}

TEST_F(ServerService, SpeaksToAllWhenOneAsks) {
  start({});
  const auto first = join();
  const auto second = join();
  second->send(frame(Operation::Say, 1, "anews"));
  settle();
  EXPECT_EQ(heard_by(*first), said(1, "news"));
  EXPECT_EQ(heard_by(*second), said(1, "news"));
}

TEST_F(ServerService, IsToldOfClientsThatGoAndTellsTheOthers) {
  start({});
  auto first = join();
  const auto second = join();
  chat.take_events();
  first->close();
  settle();
  EXPECT_EQ(chat.take_events(), Events{"1 lost"});
  EXPECT_EQ(heard_by(*second), said(1, "lost 1"));
  EXPECT_EQ(server->connection_count(), 1U);
}

TEST_F(ServerService, IsToldOfClientsThatAreClosedForWhatTheyDid) {
  start({});
  const auto first = join();
  const auto second = join();
  chat.take_events();
  first->send(std::string(9, '\0'));
  settle();
  EXPECT_TRUE(first->ended());
  EXPECT_EQ(chat.take_events(), Events{"1 lost"});
  EXPECT_EQ(heard_by(*second), said(1, "lost 1"));
}

TEST_F(ServerService, IsToldOfClientsThatFinishedSending) {
  start({});
  const auto first = join();
  first->send(frame(Operation::Say, 1, "elast"));
  settle();
  first->shutdown_write();
  settle();
  EXPECT_EQ(heard_by(*first), said(1, "last"));
  EXPECT_EQ(chat.size(), 0U);
}

TEST_F(ServerService, IsToldWhenANamespaceIsDroppedInTheOrderOfArrival) {
  start({});
  const auto outside = join();
  std::vector<std::unique_ptr<Talker>> inside;
  for (int count = 0; count < 3; ++count) inside.push_back(join("job-1"));
  chat.take_events();
  EXPECT_TRUE(server->drop_namespace("job-1"));
  settle();
  EXPECT_EQ(chat.take_events(), (Events{"2 lost", "3 lost", "4 lost"}));
  EXPECT_EQ(heard_by(*outside), said(1, "lost 2") + said(1, "lost 3") + said(1, "lost 4"));
}

TEST_F(ServerService, IsToldWhenTheServerGoesInTheOrderOfArrival) {
  start({});
  std::vector<std::unique_ptr<Talker>> clients;
  for (int count = 0; count < 5; ++count) clients.push_back(join());
  chat.take_events();
  server.reset();
  EXPECT_EQ(chat.take_events(), (Events{"1 lost", "2 lost", "3 lost", "4 lost", "5 lost"}));
  settle();
  for (const auto& client : clients) EXPECT_EQ(heard_by(*client), "");
}

TEST_F(ServerService, IsNotHeldUpByAClientThatDoesNotRead) {
  ServerOptions options;
  options.hub.output_bytes_max = 1 << 20U;
  start(options);
  const auto deaf = join();
  const auto other = join();
  deaf->set_reading(false);
  const std::string message(64 << 10U, 'm');
  for (int count = 0; count < 100; ++count) {
    chat.say_to_all(message);
    settle();
  }
  EXPECT_EQ(chat.size(), 1U);
  EXPECT_GE(heard_by(*other).size(), 100 * message.size());
  const auto warnings = log.warnings();
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("does not read what services say"), std::string::npos);
}

TEST_F(ServerService, LosesClientsThatDoNotReadWhenTheMemoryIsUsedUp) {
  ServerOptions options;
  options.hub.memory_bytes_max = 4 << 20U;
  start(options);
  std::vector<std::unique_ptr<Talker>> deaf;
  for (int count = 0; count < 8; ++count) {
    deaf.push_back(join());
    deaf.back()->set_reading(false);
  }
  const auto other = join();
  const std::string message(512 << 10U, 'm');
  for (int count = 0; count < 8; ++count) {
    chat.say_to_all(message);
    settle();
  }
  EXPECT_GE(heard_by(*other).size(), 8 * message.size());
  EXPECT_LE(server->hub().memory_bytes(), options.hub.memory_bytes_max);
  EXPECT_GT(chat.size(), 1U);
  EXPECT_LT(chat.size(), 9U);
}

}  // namespace
}  // namespace muster::store
