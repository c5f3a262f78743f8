// Conversations through the Hub, in bytes.
#include "muster/store/conversations.h"

#include "tests/fuzz/chat_service.h"
#include "tests/fuzz/hub_client.h"
#include "tests/fuzz/requests.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster::store {
namespace {

using namespace tests;
using namespace tests::hub;
using Events = std::vector<std::string>;

constexpr std::uint8_t kChat = 1;

std::string said(std::uint32_t id, std::string_view message) {
  return reply(id, wire::kStatusChange, message);
}

class HubConversation : public ::testing::Test {
 protected:
  HubConversation() : HubConversation(HubOptions()) {}
  explicit HubConversation(const HubOptions& options) : hub(options) {
    hub.add_service(static_cast<ServiceId>(kChat), chat);
  }

  ChatService chat;
  Hub hub;
};
class HubConversationWithLimits : public HubConversation {
 protected:
  static HubOptions small() {
    HubOptions options;
    options.output_bytes_high = 100;
    options.output_bytes_max = 1000;
    options.conversations_per_session_max = 3;
    return options;
  }
  HubConversationWithLimits() : HubConversation(small()) {}
};

TEST_F(HubConversation, BeginsWithAMessageAndGoesOnWithMore) {
  Client client(hub, Dialect::Extension);
  EXPECT_EQ(client.ask(with_id(7, open_service(kChat, "hello"))), kNothing);
  EXPECT_EQ(client.ask(with_id(7, say("eone"))), said(7, "one"));
  EXPECT_EQ(client.ask(with_id(7, say(""))), kNothing);
  EXPECT_EQ(client.ask(with_id(7, say("etwo"))), said(7, "two"));
  EXPECT_EQ(chat.take_events(),
            (Events{"1 opened in \"\": hello", "1 said: eone", "1 said: ", "1 said: etwo"}));
  EXPECT_EQ(described(hub, "conversations"), 1);
}

TEST_F(HubConversation, CostsTenBytesForAMessageOfOneAndNineForTheirAnswer) {
  Client client(hub, Dialect::Extension);
  client.ask(with_id(7, open_service(kChat, "")));
  EXPECT_EQ(bytes_of(with_id(7, say("e")), Dialect::Extension).size(), 10U);
  EXPECT_EQ(client.ask(with_id(7, say("e"))), "\x05\0\0\0\x07\0\0\0\x01"s);
}

TEST_F(HubConversation, MayEndWithTheFirstAnswer) {
  Client client(hub, Dialect::Extension);
  EXPECT_EQ(client.ask(with_id(1, open_service(kChat, "fbye"))), ok(1, "bye"));
  EXPECT_EQ(refusal(client.ask(with_id(2, open_service(kChat, "rno"))), 2), ErrorKind::Conflict);
  EXPECT_EQ(described(hub, "conversations"), 0);
  // Their ids are free again.
  EXPECT_EQ(client.ask(with_id(1, open_service(kChat, "eagain"))), said(1, "again"));
  EXPECT_EQ(client.ask(with_id(2, get("absent"))), ok(2, kNoItem));
}

TEST_F(HubConversation, EndsWithTheServicesLastWords) {
  Client client(hub, Dialect::Extension);
  client.ask(with_id(1, open_service(kChat, "")));
  EXPECT_EQ(client.ask(with_id(1, say("flast words"))), ok(1, "last words"));
  // What was on the way meanwhile is ignored.
  EXPECT_EQ(client.ask(with_id(1, say("eanybody?"))), kNothing);
  EXPECT_EQ(client.ask(cancel(1)), kNothing);
  EXPECT_EQ(chat.size(), 0U);
  EXPECT_EQ(described(hub, "conversations"), 0);
}

TEST_F(HubConversation, IgnoresWhatIsSaidToNobody) {
  Client client(hub, Dialect::Extension);
  EXPECT_EQ(client.ask(with_id(9, say("eanybody?"))), kNothing);
  client.tell(with_id(1, wait({"k"})));
  EXPECT_EQ(client.ask(with_id(1, say("eanybody?"))), kNothing);
  EXPECT_FALSE(client.closed());
  EXPECT_TRUE(chat.take_events().empty());
}

TEST_F(HubConversation, EndsWhenTheClientCancelsIt) {
  Client client(hub, Dialect::Extension);
  client.ask(with_id(1, open_service(kChat, "")));
  client.ask(with_id(2, open_service(kChat, "")));
  chat.take_events();
  const std::string answer = client.ask(cancel(2));
  EXPECT_EQ(chat.take_events(), Events{"2 left"});
  std::string cancelled;
  wire::encode_error(2, ErrorKind::Cancelled, "cancelled by the client", cancelled);
  EXPECT_EQ(answer, said(1, "left 2") + cancelled);
  EXPECT_EQ(client.ask(cancel(2)), kNothing);
}

TEST_F(HubConversation, HasAnIdThatNothingElseOfTheConnectionHas) {
  Client client(hub, Dialect::Extension);
  client.ask(with_id(1, open_service(kChat, "")));
  client.tell(with_id(2, wait({"k"})));
  client.ask(with_id(3, watch_key("k")));
  EXPECT_EQ(refusal(client.ask(with_id(1, open_service(kChat, ""))), 1), ErrorKind::Invalid);
  EXPECT_EQ(refusal(client.ask(with_id(2, open_service(kChat, ""))), 2), ErrorKind::Invalid);
  EXPECT_EQ(refusal(client.ask(with_id(3, open_service(kChat, ""))), 3), ErrorKind::Invalid);
  EXPECT_EQ(refusal(client.ask(with_id(1, wait({"k"}))), 1), ErrorKind::Invalid);
  EXPECT_EQ(refusal(client.ask(with_id(1, watch_key("k"))), 1), ErrorKind::Invalid);
  EXPECT_EQ(client.ask(with_id(1, say("estill here"))), said(1, "still here"));
  // Another connection has ids of its own.
  Client other(hub, Dialect::Extension);
  EXPECT_EQ(other.ask(with_id(1, open_service(kChat, "ehello"))), said(1, "hello"));
}

TEST_F(HubConversation, IsRefusedWhenThereIsNoSuchService) {
  Client client(hub, Dialect::Extension);
  const std::string answer = client.ask(with_id(1, open_service(77, "hello")));
  EXPECT_EQ(refusal(answer, 1), ErrorKind::Unimplemented);
  EXPECT_NE(answer.find("77"), std::string::npos);
  EXPECT_EQ(client.ask(with_id(1, set("k", "v"))), ok(1));
}

TEST_F(HubConversation, IsToldInWhichNamespaceItIs) {
  Client client(hub, Dialect::Extension, "", "job-1");
  client.ask(with_id(1, open_service(kChat, "")));
  EXPECT_EQ(chat.take_events(), Events{"1 opened in \"job-1\": "});
}

TEST_F(HubConversation, ReachesOtherConnectionsWhileOneIsServed) {
  Client first(hub, Dialect::Extension);
  Client second(hub, Dialect::Extension);
  first.ask(with_id(1, open_service(kChat, "")));
  second.ask(with_id(5, open_service(kChat, "")));
  const int before = first.peer().told_of_output();
  EXPECT_EQ(second.ask(with_id(5, say("anews"))), said(5, "news"));
  EXPECT_EQ(first.peer().told_of_output(), before + 1);
  EXPECT_EQ(first.read(), said(1, "news"));
}

TEST_F(HubConversation, ReachesItsConnectionAtAnyTime) {
  Client client(hub, Dialect::Extension);
  client.ask(with_id(1, open_service(kChat, "")));
  const int before = client.peer().told_of_output();
  chat.say_to_all("by the way");
  EXPECT_EQ(client.peer().told_of_output(), before + 1);
  EXPECT_EQ(client.read(), said(1, "by the way"));
  chat.conversation(1).finish("that was it");
  EXPECT_EQ(client.read(), ok(1, "that was it"));
}

TEST_F(HubConversation, IsEndedByAnotherOne) {
  Client first(hub, Dialect::Extension);
  Client second(hub, Dialect::Extension);
  first.ask(with_id(1, open_service(kChat, "")));
  first.ask(with_id(2, open_service(kChat, "")));
  second.ask(with_id(1, open_service(kChat, "")));
  EXPECT_EQ(first.ask(with_id(1, say("Fall out"))), ok(1, "all out") + ok(2, "all out"));
  EXPECT_EQ(second.read(), ok(1, "all out"));
  EXPECT_EQ(described(hub, "conversations"), 0);
}

TEST_F(HubConversation, AnswersInOneLineWithOtherRequests) {
  Client client(hub, Dialect::Extension);
  client.peer().send(bytes_of(with_id(1, open_service(kChat, "ehello")), Dialect::Extension) +
                     bytes_of(with_id(2, set("k", "v")), Dialect::Extension) +
                     bytes_of(with_id(1, say("ehow")), Dialect::Extension) +
                     bytes_of(with_id(1, say("fbye")), Dialect::Extension));
  EXPECT_EQ(client.read(), said(1, "hello") + ok(2) + said(1, "how") + ok(1, "bye"));
}

TEST_F(HubConversation, IsLostWithItsConnectionInTheOrderOfIds) {
  Client other(hub, Dialect::Extension);
  other.ask(with_id(1, open_service(kChat, "")));
  {
    Client client(hub, Dialect::Extension);
    for (const std::uint32_t id : {9U, 2U, 5U}) client.ask(with_id(id, open_service(kChat, "")));
    chat.take_events();
  }
  EXPECT_EQ(chat.take_events(), (Events{"3 lost", "4 lost", "2 lost"}));
  EXPECT_EQ(other.read(), said(1, "lost 3") + said(1, "lost 4") + said(1, "lost 2"));
  EXPECT_EQ(described(hub, "conversations"), 1);
}

// Ends every other conversation when one of them is lost.
class Jealous final : public Service {
 public:
  void opened(Conversation& conversation, std::string_view, std::string_view) override {
    present.push_back(&conversation);
  }
  void heard(Conversation&, std::string_view) override {}
  void ended(Conversation& conversation, End) override {
    ++told_count;
    std::erase(present, &conversation);
    for (Conversation* other : std::exchange(present, {}))
      other->refuse(ErrorKind::Closed, "it is over");
  }
  std::vector<Conversation*> present;
  int told_count = 0;
};

TEST_F(HubConversation, MayBeEndedByItsServiceWhileItsConnectionGoes) {
  Jealous jealous;
  Hub other_hub{HubOptions()};
  other_hub.add_service(static_cast<ServiceId>(2), jealous);
  Client other(other_hub, Dialect::Extension);
  other.ask(with_id(1, open_service(2, "")));
  {
    Client client(other_hub, Dialect::Extension);
    for (const std::uint32_t id : {1U, 2U, 3U}) client.ask(with_id(id, open_service(2, "")));
  }
  EXPECT_EQ(jealous.told_count, 1);
  EXPECT_EQ(refusal(other.read(), 1), ErrorKind::Closed);
  EXPECT_EQ(described(other_hub, "conversations"), 0);
}

TEST_F(HubConversation, IsLostWithItsNamespace) {
  Client inside(hub, Dialect::Extension, "", "job-1");
  inside.ask(with_id(4, open_service(kChat, "")));
  Client outside(hub, Dialect::Extension);
  outside.ask(with_id(1, open_service(kChat, "")));
  chat.take_events();
  EXPECT_EQ(outside.ask(with_id(2, drop_namespace("job-1"))), ok(2, flag(true)));
  EXPECT_TRUE(inside.closed());
  inside.read();  // the connection is looked at
  EXPECT_EQ(chat.take_events(), Events{"1 lost"});
  EXPECT_EQ(outside.read(), said(1, "lost 1"));
}

TEST_F(HubConversation, IsLostWhenTheServerGoesInTheOrderOfArrival) {
  Client first(hub, Dialect::Extension);
  Client second(hub, Dialect::Extension);
  second.ask(with_id(1, open_service(kChat, "")));
  first.ask(with_id(2, open_service(kChat, "")));
  first.ask(with_id(1, open_service(kChat, "")));
  chat.take_events();
  hub.end_conversations();
  EXPECT_EQ(chat.take_events(), (Events{"3 lost", "2 lost", "1 lost"}));
  EXPECT_EQ(described(hub, "conversations"), 0);
}

TEST_F(HubConversation, IsCountedAsMemoryUntilItEnds) {
  const std::size_t before = hub.memory_bytes();
  Client client(hub, Dialect::Extension);
  for (std::uint32_t id = 1; id <= 10; ++id) client.ask(with_id(id, open_service(kChat, "")));
  EXPECT_EQ(hub.memory_bytes(), before + 10 * Conversations::kBytesEach);
  client.ask(with_id(1, say("fbye")));
  client.ask(cancel(2));
  EXPECT_EQ(hub.memory_bytes(), before + 8 * Conversations::kBytesEach);
  client.close();
  EXPECT_EQ(hub.memory_bytes(), before);
}

TEST_F(HubConversationWithLimits, IsRefusedWhenThereAreTooManyOnOneConnection) {
  Client client(hub, Dialect::Extension);
  for (std::uint32_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(client.ask(with_id(id, open_service(kChat, "e"))), said(id, ""));
  }
  EXPECT_EQ(refusal(client.ask(with_id(4, open_service(kChat, ""))), 4), ErrorKind::Unavailable);
  client.ask(with_id(2, say("f")));
  EXPECT_EQ(client.ask(with_id(4, open_service(kChat, "e"))), said(4, ""));
  Client other(hub, Dialect::Extension);
  EXPECT_EQ(other.ask(with_id(4, open_service(kChat, "e"))), said(4, ""));
}

TEST_F(HubConversationWithLimits, IsNotServedWhileTheClientDoesNotRead) {
  Client client(hub, Dialect::Extension);
  client.tell(with_id(1, open_service(kChat, "")));
  for (int count = 0; count < 20; ++count) client.tell(with_id(1, say("eecho")));
  EXPECT_TRUE(client.peer().session().output_is_high());
  EXPECT_GT(client.peer().held_back_bytes(), 0U);
  std::string expected;
  for (int count = 0; count < 20; ++count) expected += said(1, "echo");
  EXPECT_EQ(client.read(), expected);
}

TEST_F(HubConversationWithLimits, ThatNobodyReadsEndsTheConnection) {
  Client deaf(hub, Dialect::Extension);
  deaf.ask(with_id(1, open_service(kChat, "")));
  Client other(hub, Dialect::Extension);
  other.ask(with_id(1, open_service(kChat, "")));
  const std::string message(90, 'm');
  int count = 0;
  for (; count < 100 && !deaf.closed(); ++count) {
    chat.say_to_all(message);
    EXPECT_EQ(other.read(), said(1, message));
  }
  EXPECT_TRUE(deaf.closed());
  EXPECT_NE(deaf.peer().close_reason().find("does not read what services say"), std::string::npos);
  EXPECT_GT(count, 9);
  EXPECT_LT(deaf.peer().session().output().size(), 1200U);
  deaf.read();
  EXPECT_EQ(other.read(), said(1, "lost 1"));
}

TEST_F(HubConversationWithLimits, IsOfNoConcernToPyTorch) {
  for (const Dialect dialect : {Dialect::Legacy, Dialect::Modern}) {
    for (const char opcode : {'\x17', '\x18'}) {
      Client client(hub, dialect);
      client.peer().send(std::string(1, opcode) + "\x01hello");
      EXPECT_TRUE(client.closed());
      EXPECT_EQ(client.read(), kNothing);
    }
  }
  EXPECT_TRUE(chat.take_events().empty());
}

}  // namespace
}  // namespace muster::store
