#include "muster/store/extension_talk.h"

#include "tests/fuzz/chat_service.h"
#include "tests/server/tcp_store_base.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::store::testing {
namespace {

constexpr ServiceId kChat = ServiceId::Rendezvous;  // any number will do
using Events = std::vector<std::string>;

class TalkTest : public TcpStoreBase, public ::testing::Test {
 protected:
  TalkTest() {
    start_server_with_chat();
    store = connect_to(client_host, Dialect::Extension, default_options());
    chat.take_events();
  }
  ~TalkTest() override {
    writer.reset();
    store.reset();
    server.reset();
  }

  void start_server_with_chat() {
    server.reset();
    server = std::make_unique<Server>(server_host.loop(), ServerOptions());
    server->add_service(kChat, chat);
    const auto port = server->listen(server_host, {"server", 4400}, "");
    ASSERT_TRUE(port) << port.error().message;
  }

  std::unique_ptr<Talk> open(TcpStore& by, const std::string& message) {
    auto opened = await(by.services()->open(kChat, message));
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::move(*opened) : nullptr;
  }
  void expect_next(Talk& talk, const std::string& expected) {
    EXPECT_TRUE(gives(await(talk.next(loop.now() + 1h)), expected));
  }
  void expect_nothing(Talk& talk) {
    expect_error(await(talk.next(loop.now() + 1s)), ErrorKind::Timeout, "nothing in time");
  }

  tests::ChatService chat;
};
using TalkInSim = TalkTest;

TEST_F(TalkInSim, GoesBackAndForth) {
  const auto talk = open(*store, "ehello");
  expect_next(*talk, "hello");
  talk->say("eone");
  talk->say("ignored");
  talk->say("e");
  expect_next(*talk, "one");
  expect_next(*talk, "");
  expect_nothing(*talk);
  talk->say("estill usable");
  expect_next(*talk, "still usable");
}

TEST_F(TalkInSim, FinishesAfterTheLastWords) {
  const auto talk = open(*store, "eone");
  talk->say("fbye");
  expect_next(*talk, "one");
  expect_next(*talk, "bye");
  for (int count = 0; count < 2; ++count) {
    expect_error(await(talk->next(kNever)), ErrorKind::Finished, "ended the conversation");
  }
  chat.take_events();
  talk->say("eanybody?");
  settle();
  EXPECT_TRUE(chat.take_events().empty());
}

TEST_F(TalkInSim, EndsWithWhateverTheServiceRefusedItWith) {
  const auto talk = open(*store, "eone");
  talk->say("rnot like that");
  expect_next(*talk, "one");
  for (int count = 0; count < 2; ++count) {
    expect_error(await(talk->next(kNever)), ErrorKind::Conflict, "not like that");
  }
}

TEST_F(TalkInSim, WakesAReaderThatWaits) {
  const auto talk = open(*store, "");
  const auto next = begin(talk->next(kNever));
  settle();
  EXPECT_FALSE(next->done());
  chat.say_to_all("wake up");
  EXPECT_TRUE(gives(finish(*next), "wake up"));
}

TEST_F(TalkInSim, MayBeReadByAnotherAfterAReaderWasCancelled) {
  const auto talk = open(*store, "");
  auto next = begin(talk->next(kNever));
  settle();
  next.reset();
  chat.say_to_all("news");
  expect_next(*talk, "news");
}

TEST_F(TalkInSim, LeavesTheServerWhenItIsDestroyed) {
  auto talk = open(*store, "");
  const auto other = open(*store, "");
  settle();
  chat.take_events();
  talk.reset();
  expect_next(*other, "left 1");
  EXPECT_EQ(chat.take_events(), Events{"1 left"});
  EXPECT_EQ(server_says("conversations"), "1");
}

TEST_F(TalkInSim, LeavesTheServerAtWhateverMomentItIsDestroyed) {
  for (const Duration moment : moments()) {
    auto call = begin(store->services()->open(kChat, "ehello"));
    loop.advance(moment);
    std::unique_ptr<Talk> talk;
    if (call->done()) talk = std::move(*call->take());
    call.reset();
    talk.reset();
    settle();
    ASSERT_EQ(server_says("conversations"), "0") << describe(moment);
    ASSERT_EQ(chat.size(), 0U);
  }
}

TEST_F(TalkInSim, DeliversWhatCameBeforeTheConnectionBroke) {
  const auto talk = open(*store, "eone");
  settle();
  network.reset_all(client_host);
  settle();
  expect_next(*talk, "one");
  for (int count = 0; count < 2; ++count) {
    expect_error(await(talk->next(kNever)), ErrorKind::Unavailable, "server:4400");
  }
  EXPECT_EQ(chat.take_events(), (Events{"1 opened in \"\": eone", "1 lost"}));
  // The store connects again by itself, the talk does not.
  talk->say("ehello");
  const auto again = open(*store, "eagain");
  expect_next(*again, "again");
  EXPECT_EQ(chat.take_events(), Events{"2 opened in \"\": eagain"});
}

TEST_F(TalkInSim, TellsAReaderThatWaitsThatTheServerIsGone) {
  const auto talk = open(*store, "");
  const auto next = begin(talk->next(kNever));
  settle();
  stop_server();
  expect_error(finish(*next), ErrorKind::Unavailable, "lost the connection");
  start_server_with_chat();
  const auto again = open(*store, "eback");
  expect_next(*again, "back");
}

TEST_F(TalkInSim, IsLostToTheServiceWhenTheClientDies) {
  const auto talk = open(*store, "");
  const auto other = open(*writer, "");
  settle();
  chat.take_events();
  network.crash(client_host, sim::Crash::Loud);
  expect_next(*other, "lost 1");
  EXPECT_EQ(chat.take_events(), Events{"1 lost"});
}

TEST_F(TalkInSim, CannotBeOpenedWhenTheServerIsGone) {
  TcpStoreOptions options = default_options();
  options.connect_timeout = 5s;
  store = connect_to(client_host, Dialect::Extension, options);
  stop_server();
  settle();
  expect_error(await(store->services()->open(kChat, "")), ErrorKind::Unavailable, "server:4400");
  start_server_with_chat();
  const auto talk = open(*store, "eback");
  expect_next(*talk, "back");
}

TEST_F(TalkInSim, SaysWhenTheServerHasNoSuchService) {
  auto opened = await(store->services()->open(static_cast<ServiceId>(99), "hello"));
  ASSERT_TRUE(opened) << opened.error().message;
  expect_error(await((*opened)->next(kNever)), ErrorKind::Unimplemented, "no service 99");
  EXPECT_EQ(server_says("conversations"), "0");
}

TEST_F(TalkInSim, IsMissingOnPyTorchsServers) {
  for (const Dialect dialect : {Dialect::Legacy, Dialect::Modern}) {
    const auto plain = connect_to(client_host, dialect, default_options());
    EXPECT_EQ(plain->services(), nullptr);
  }
}

TEST_F(TalkInSim, SaysAMessageAtTheLimitAndRefusesOneByteMore) {
  constexpr wire::Limits kLimits;
  const std::string longest = "e" + std::string(kLimits.message_bytes - 1, 'm');
  const auto talk = open(*store, longest);
  expect_next(*talk, longest.substr(1));
  talk->say(longest);
  expect_next(*talk, longest.substr(1));
  expect_error(await(store->services()->open(kChat, longest + "m")), ErrorKind::Invalid,
               "1048577 bytes");
  talk->say(longest + "m");
  expect_error(await(talk->next(kNever)), ErrorKind::Invalid, "1048577 bytes");
  settle();
  EXPECT_EQ(server_says("conversations"), "0");
  EXPECT_TRUE(await(store->ping()));
}

TEST_F(TalkInSim, HoldsAsManyMessagesAsAllowed) {
  const auto talk = open(*store, "");
  settle();
  for (std::size_t index = 0; index < kTalkMessagesMax; ++index) {
    chat.say_to_all(fmt::to_string(index));
  }
  loop.advance(1s);
  expect_next(*talk, "0");
  chat.say_to_all("one more");
  loop.advance(1s);
  for (std::size_t index = 1; index < kTalkMessagesMax; ++index) {
    expect_next(*talk, fmt::to_string(index));
  }
  expect_next(*talk, "one more");
  expect_nothing(*talk);
}

TEST_F(TalkInSim, EndsWhenItFallsTooFarBehindAfterWhatItHadHeard) {
  const auto talk = open(*store, "");
  settle();
  for (std::size_t index = 0; index <= kTalkMessagesMax; ++index) {
    chat.say_to_all(fmt::to_string(index));
  }
  loop.advance(1s);
  EXPECT_EQ(server_says("conversations"), "0");
  for (std::size_t index = 0; index < kTalkMessagesMax; ++index) {
    expect_next(*talk, fmt::to_string(index));
  }
  expect_error(await(talk->next(kNever)), ErrorKind::Unavailable, "fell more than 4096 messages");
}

TEST_F(TalkInSim, EndsWhenTooManyBytesAreUnread) {
  const auto talk = open(*store, "");
  settle();
  // One message may be as long as it likes; a second one on top may not.
  const std::string message(kTalkBytesMax, 'm');
  chat.say_to_all(message);
  loop.advance(10s);
  chat.say_to_all("x");
  loop.advance(1s);
  expect_next(*talk, message);
  expect_error(await(talk->next(kNever)), ErrorKind::Unavailable, "bytes behind");
}

TEST_F(TalkInSim, KeepsTheOrderOfMessagesThatAreReadWhileOthersCome) {
  const auto talk = open(*store, "");
  settle();
  int said = 0;
  int read = 0;
  for (int round = 1; round < 40; ++round) {
    for (int count = 0; count < round % 7; ++count) chat.say_to_all(fmt::to_string(said++));
    settle();
    for (int count = 0; count < round % 5 && read < said; ++count) {
      expect_next(*talk, fmt::to_string(read++));
    }
  }
  while (read < said) expect_next(*talk, fmt::to_string(read++));
  expect_nothing(*talk);
}

TEST_F(TalkInSim, OfManyOnOneConnectionHearsWhatItIsTold) {
  std::vector<std::unique_ptr<Talk>> talks;
  for (int index = 0; index < 100; ++index) {
    talks.push_back(open(*store, fmt::format("e{}", index)));
  }
  for (std::size_t index = 0; index < 100; ++index)
    expect_next(*talks[index], fmt::to_string(index));
  chat.say_to_all("hello, all");
  for (const auto& talk : talks) expect_next(*talk, "hello, all");
}

}  // namespace
}  // namespace muster::store::testing
