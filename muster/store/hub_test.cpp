#include "muster/store/hub.h"

#include "tests/fuzz/hub_client.h"
#include "tests/fuzz/requests.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace muster::store {
namespace {

using namespace std::string_literals;
using namespace tests;
using namespace tests::hub;

// Suites are named after what they are about.
class Sessions : public HubTest {};
class Memory : public ::testing::Test {};
class Output : public ::testing::Test {};

// --- Connections ---------------------------------------------------------------------------------

TEST_F(Sessions, StayOpenWhileNothingHasCome) {
  Peer silent(hub);
  silent.send("");
  EXPECT_FALSE(silent.closed());
  EXPECT_EQ(silent.session().dialect(), Dialect::Undecided);
  Client other(hub, Dialect::Modern);
  other.tell(set("k", "v"));
  EXPECT_FALSE(silent.closed());
  EXPECT_EQ(silent.read(), kNothing);
}

TEST_F(Sessions, AreClosedWhenTheirFirstByteIsNoClients) {
  for (int first = 0x09; first <= 0xff; ++first) {
    Peer peer(hub);
    peer.send(std::string(1, static_cast<char>(first)));
    EXPECT_TRUE(peer.closed()) << first;
    EXPECT_NE(peer.close_reason(), "");
    EXPECT_EQ(peer.read(), kNothing);
  }
}

TEST_F(Sessions, OfAllDialectsShareOneKeySpace) {
  Client legacy(hub, Dialect::Legacy);
  Client modern(hub, Dialect::Modern);
  Client extension(hub, Dialect::Extension);
  legacy.tell(set("from legacy", "1"));
  modern.tell(set("from modern", "2"));
  EXPECT_EQ(extension.ask(with_id(1, set("from extension", "3"))), ok(1));
  for (const std::string_view key : {"from legacy", "from modern", "from extension"}) {
    const std::string value = key == "from legacy" ? "1" : key == "from modern" ? "2" : "3";
    EXPECT_EQ(legacy.ask(get(key)), blob(value));
    EXPECT_EQ(modern.ask(get(key)), blob(value));
    EXPECT_EQ(extension.ask(with_id(2, get(key))), ok(2, item(value)));
  }
  EXPECT_EQ(legacy.ask(num_keys()), number(3));
}

TEST_F(Sessions, OfAllDialectsWakeOneAnother) {
  Client legacy(hub, Dialect::Legacy);
  Client modern(hub, Dialect::Modern);
  Client extension(hub, Dialect::Extension);
  legacy.tell(wait({"k"}));
  modern.tell(wait({"k"}));
  extension.tell(with_id(1, wait({"k"})));
  Client writer(hub, Dialect::Legacy);
  writer.tell(add("k", 1));
  EXPECT_EQ(legacy.read(), kStopWaiting);
  EXPECT_EQ(modern.read(), kStopWaiting);
  EXPECT_EQ(extension.read(), ok(1));
}

TEST_F(Sessions, AnswerPingAtAnyTimeAndValidateNever) {
  Client client(hub, Dialect::Modern);
  EXPECT_EQ(client.ask(ping(0x2b58db)), "\xdb\x58\x2b\0"s);
  client.tell(set("k", "v"));
  EXPECT_EQ(client.ask(ping(0xffffffff)), "\xff\xff\xff\xff"s);
  client.tell(wait({"absent"}));
  EXPECT_EQ(client.ask(ping(0)), "\0\0\0\0"s);
  client.peer().send(kValidate);
  EXPECT_TRUE(client.closed());
}

TEST_F(Sessions, AnswerInTheOrderOfTheRequests) {
  Peer peer(hub);
  std::string many(kValidate);
  std::string expected;
  for (int index = 1; index <= 100; ++index) {
    many += bytes_of(add("n", 1), Dialect::Modern) + bytes_of(get("n"), Dialect::Modern);
    expected += number(index) + blob(std::to_string(index));
  }
  peer.send(many);
  EXPECT_EQ(peer.read(), expected);
}

TEST_F(Sessions, ApplyARequestOnlyWhenItIsComplete) {
  Client reader(hub, Dialect::Legacy);
  for (const Dialect dialect : kPyTorchDialects) {
    Client writer(hub, dialect);
    const std::string bytes = bytes_of(set("k", "v"), dialect);
    for (const char byte : bytes) {
      EXPECT_EQ(reader.ask(check({"k"})), kNotReady);
      writer.peer().send({&byte, 1});
    }
    EXPECT_EQ(reader.ask(check({"k"})), kReady);
    reader.ask(delete_key("k"));
  }
}

TEST_F(Sessions, ApplyAMultiSetOnceAfterAllOfItHasArrived) {
  Client watcher(hub, Dialect::Legacy);
  watcher.ask(watch_key("a"));
  Client writer(hub, Dialect::Modern);
  const std::string bytes = bytes_of(multi_set({{"a", "1"}, {"b", "2"}}), Dialect::Modern);
  for (const char byte : bytes) {
    EXPECT_EQ(watcher.read(), kNothing);
    writer.peer().send({&byte, 1});
  }
  EXPECT_EQ(watcher.read(), watched(wire::WatchMessage::Created, "a", "", "1"));
}

TEST_F(Sessions, AreNotHeldUpByTheUnfinishedRequestOfAnother) {
  Peer unfinished(hub);
  unfinished.send(std::string(1, '\0'));
  Client dangling(hub, Dialect::Modern);
  dangling.peer().send("\x01\xff"s);
  Client other(hub, Dialect::Modern);
  other.tell(set("k", "v"));
  EXPECT_EQ(other.ask(get("k")), blob("v"));
}

TEST_F(Sessions, AreClosedAloneForWhatTheyDidWrong) {
  const std::vector<std::string> wrongs = {
      std::string(kValidate) + "\x13",                                         // unknown opcode
      std::string(kValidate) + "\x01" + number(8193),                          // key over the limit
      std::string(kValidate) + "\x01" + blob("k") + number((8 << 20) + 1),     // value likewise
      std::string(kValidate) + "\x06" + number(131'073),                       // count likewise
      std::string(kValidate) + bytes_of(add("text", 1), Dialect::Modern),      // not a number
      std::string(kValidate) + bytes_of(barrier("text", 1), Dialect::Modern),  // likewise
      std::string(kValidate) + bytes_of(upgrade(0, ""), Dialect::Modern),      // no such version
      "\x09",
  };
  Client other(hub, Dialect::Modern);
  other.tell(set("text", "abc"));
  for (const std::string& wrong : wrongs) {
    Peer peer(hub);
    peer.send(wrong);
    EXPECT_TRUE(peer.closed());
    EXPECT_NE(peer.close_reason(), "");
    EXPECT_EQ(peer.read(), kNothing);
    EXPECT_EQ(other.ask(get("text")), blob("abc"));
  }
}

TEST_F(Sessions, SendWhatTheyHadAnsweredBeforeTheyAreClosed) {
  Client client(hub, Dialect::Modern);
  client.peer().send(bytes_of(num_keys(), Dialect::Modern) + "\xff");
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(client.read(), number(0));
}

TEST_F(Sessions, LeaveTheirDataBehindWhenTheyGo) {
  {
    Client client(hub, Dialect::Modern);
    client.tell(set("k", "v"));
    client.ask(add("n", 5));
    client.tell(queue_push("q", "x"));
  }
  Client later(hub, Dialect::Modern);
  EXPECT_EQ(later.ask(get("k")), blob("v"));
  EXPECT_EQ(later.ask(add("n", 0)), number(5));
  EXPECT_EQ(later.ask(queue_length("q")), number(1));
}

TEST_F(Sessions, TakeTheirWaitsAndWatchesWithThemWhenTheyGo) {
  {
    Client legacy(hub, Dialect::Legacy);
    legacy.ask(watch_key("k"));
    legacy.tell(wait({"k"}));
    Client modern(hub, Dialect::Modern);
    modern.tell(barrier("b", 2));
    Client extension(hub, Dialect::Extension);
    extension.tell(with_id(1, wait({"k"})));
    extension.tell(with_id(2, blocking(queue_pop("q"))));
    extension.ask(with_id(3, watch_key("k")));
    extension.ask(with_id(4, watch_prefix("")));
    EXPECT_EQ(described(hub, "waiting"), 4);
    EXPECT_EQ(described(hub, "watching"), 3);
  }
  EXPECT_EQ(described(hub, "waiting"), 0);
  EXPECT_EQ(described(hub, "watching"), 0);
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", "v"));
  writer.tell(queue_push("q", "x"));
  EXPECT_EQ(writer.ask(queue_length("q")), number(1));
}

TEST_F(Sessions, SayThatOthersHaveOutput) {
  Client waiter(hub, Dialect::Modern);
  waiter.tell(wait({"k"}));
  Client watcher(hub, Dialect::Legacy);
  watcher.ask(watch_key("k"));
  EXPECT_EQ(waiter.peer().told_of_output() + watcher.peer().told_of_output(), 0);
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", "v"));
  EXPECT_EQ(waiter.peer().told_of_output(), 1);
  EXPECT_EQ(watcher.peer().told_of_output(), 1);
}

// --- Memory --------------------------------------------------------------------------------------

constexpr std::size_t kEntry = Table::kEntryOverheadBytes;

HubOptions memory_for(std::size_t bytes) {
  HubOptions options;
  options.memory_bytes_max = bytes;
  return options;
}

TEST_F(Memory, IsCountedForKeysValuesAndQueuesAndReturnsToZero) {
  Hub hub{HubOptions{}};
  Client client(hub, Dialect::Modern);
  client.tell(set("key", "value"));
  EXPECT_EQ(hub.memory_bytes(), kEntry + 8);
  client.tell(append("key", "!!"));
  EXPECT_EQ(hub.memory_bytes(), kEntry + 10);
  client.tell(set("key", ""));
  EXPECT_EQ(hub.memory_bytes(), kEntry + 3);
  client.tell(queue_push("q", "item"));
  EXPECT_EQ(hub.memory_bytes(), 3 * kEntry + 8);
  client.ask(queue_pop("q"));
  client.ask(delete_key("key"));
  EXPECT_EQ(hub.memory_bytes(), 0U);
  client.tell(multi_set({{"a", "1"}, {"b", "2"}}));
  client.ask(add("n", 100));
  client.ask(compare_set("c", "", "x"));
  client.tell(barrier("bar", 2));
  client.ask(cancel_wait());
  for (const std::string_view key : {"a", "b", "n", "c", "bar"}) client.ask(delete_key(key));
  EXPECT_EQ(hub.memory_bytes(), 0U);
}

TEST_F(Memory, CountsWhatConnectionsHaveBuffered) {
  Hub hub(memory_for(1000));
  hub.set_buffered_bytes(400);
  EXPECT_EQ(hub.memory_bytes(), 400U);
  EXPECT_TRUE(hub.has_room_for(600));
  EXPECT_FALSE(hub.has_room_for(601));
}

TEST_F(Memory, TakesAWriteAtTheLimitAndRefusesOneByteMore) {
  Hub hub(memory_for(kEntry + 10));
  Client client(hub, Dialect::Extension);
  EXPECT_EQ(refusal(client.ask(with_id(1, set("k", "0123456789"))), 1), ErrorKind::Unavailable);
  EXPECT_EQ(hub.memory_bytes(), 0U);
  EXPECT_EQ(client.ask(with_id(2, set("k", "012345678"))), ok(2));
}

TEST_F(Memory, ThatIsFullClosesAPyTorchClientThatWrites) {
  const std::vector<Request> writes = {
      set("x", "1"),  append("x", "1"),          multi_set({{"x", "1"}}),
      add("x", 1),    compare_set("x", "", "1"), queue_push("x", "1"),
      barrier("x", 1)};
  for (const Request& write : writes) {
    Hub hub(memory_for(kEntry + 10));
    Client client(hub, Dialect::Modern);
    client.tell(set("k", "123456789"));
    EXPECT_EQ(client.ask(get("k")), blob("123456789"));
    EXPECT_EQ(client.ask(write), kNothing);
    EXPECT_TRUE(client.closed()) << name_of(write.operation);
    EXPECT_NE(client.peer().close_reason().find("--max-memory"), std::string::npos);
    EXPECT_EQ(hub.memory_bytes(), kEntry + 10);
  }
}

TEST_F(Memory, ThatIsFullRefusesAMusterClientThatWritesAndServesItsReads) {
  const std::vector<Request> writes = {
      set("x", "1"),  append("x", "1"),          multi_set({{"x", "1"}}),
      add("x", 1),    compare_set("x", "", "1"), queue_push("x", "1"),
      barrier("x", 1)};
  Hub hub(memory_for(kEntry + 10));
  Client client(hub, Dialect::Extension);
  EXPECT_EQ(client.ask(with_id(1, set("k", "123456789"))), ok(1));
  for (const Request& write : writes) {
    EXPECT_EQ(refusal(client.ask(with_id(2, write)), 2), ErrorKind::Unavailable)
        << name_of(write.operation);
  }
  EXPECT_EQ(client.ask(with_id(3, get("k"))), ok(3, item("123456789")));
  EXPECT_EQ(client.ask(with_id(4, check({"x"}))), ok(4, flag(false)));
}

TEST_F(Memory, CanBeUsedAgainAfterADeletion) {
  Hub hub(memory_for(kEntry + 10));
  Client client(hub, Dialect::Extension);
  client.ask(with_id(1, set("k", "123456789")));
  EXPECT_EQ(refusal(client.ask(with_id(2, set("x", "1"))), 2), ErrorKind::Unavailable);
  client.ask(with_id(3, delete_key("k")));
  EXPECT_EQ(client.ask(with_id(4, set("x", "1"))), ok(4));
}

TEST_F(Memory, CanBeUsedAgainAfterANamespaceWasDropped) {
  Hub hub(memory_for(kEntry + 10));
  auto full = std::make_unique<Client>(hub, Dialect::Extension, "", "job");
  full->ask(with_id(1, set("k", "123456789")));
  Client client(hub, Dialect::Extension);
  EXPECT_EQ(client.ask(with_id(1, drop_namespace("job"))), ok(1, flag(true)));
  EXPECT_TRUE(full->closed());
  full.reset();
  EXPECT_EQ(client.ask(with_id(2, set("k", "123456789"))), ok(2));
}

// --- Output --------------------------------------------------------------------------------------

TEST_F(Output, AtItsHighMarkStopsTheServingUntilItIsRead) {
  HubOptions options;
  options.output_bytes_high = 100;
  Hub hub(options);
  Client client(hub, Dialect::Modern);
  std::string expected;
  for (int index = 1; index <= 50; ++index) {
    client.tell(add("n", 1));
    expected += number(index);
  }
  // 13 sums have 104 bytes; the fourteenth request waits.
  EXPECT_TRUE(client.peer().session().output_is_high());
  EXPECT_EQ(client.peer().session().output().size(), 104U);
  EXPECT_GT(client.peer().held_back_bytes(), 0U);
  Client other(hub, Dialect::Modern);
  EXPECT_EQ(other.ask(get("n")), blob("13"));
  EXPECT_EQ(client.read(), expected);
  EXPECT_EQ(client.peer().held_back_bytes(), 0U);
}

TEST_F(Output, MayBeReadInPieces) {
  Hub hub{HubOptions{}};
  Client client(hub, Dialect::Modern);
  const std::string value(10'000, 'v');
  client.tell(set("k", value));
  client.tell(get("k"));
  client.tell(get("k"));
  std::string all;
  for (const std::size_t bytes : {1U, 7U, 5000U, 9999U, 1U}) {
    all += client.peer().read_some(bytes);
  }
  all += client.ask(num_keys());
  EXPECT_EQ(all, blob(value) + blob(value) + number(1));
}

TEST_F(Output, OfChangesThatNobodyReadsEndsTheConnection) {
  for (const Dialect dialect : {Dialect::Legacy, Dialect::Extension}) {
    HubOptions options;
    options.output_bytes_high = 100;
    options.output_bytes_max = 1000;
    Hub hub(options);
    Client watcher(hub, dialect);
    watcher.ask(with_id(1, watch_key("k")));
    Client writer(hub, Dialect::Modern);
    const std::string value(90, 'v');
    int writes = 0;
    for (; writes < 100 && !watcher.closed(); ++writes) writer.tell(set("k", value));
    EXPECT_TRUE(watcher.closed());
    EXPECT_GT(writes, 4);
    EXPECT_LT(watcher.peer().session().output().size(), 1300U);
    EXPECT_EQ(writer.ask(get("k")), blob(value));
  }
}

TEST_F(Output, OfChangesThatAreReadNeverEndsTheConnection) {
  HubOptions options;
  options.output_bytes_max = 1000;
  Hub hub(options);
  Client watcher(hub, Dialect::Extension);
  watcher.ask(with_id(1, watch_key("k")));
  Client writer(hub, Dialect::Modern);
  const std::string value(500, 'v');
  for (int writes = 0; writes < 100; ++writes) {
    writer.tell(set("k", value));
    EXPECT_NE(watcher.read(), kNothing);
  }
  EXPECT_FALSE(watcher.closed());
}

TEST_F(Output, OfOneReplyIsLimited) {
  HubOptions options;
  options.reply_bytes_max = 2 * (8 + 100);
  Hub hub(options);
  const std::string value(100, 'v');
  Client modern(hub, Dialect::Modern);
  modern.tell(set("k", value));
  EXPECT_EQ(modern.ask(multi_get({"k", "k"})), blob(value) + blob(value));
  EXPECT_EQ(modern.ask(multi_get({"k", "k", "absent"})), kNothing);
  EXPECT_TRUE(modern.closed());
  Client extension(hub, Dialect::Extension);
  EXPECT_EQ(extension.ask(with_id(1, multi_get({"k", "k"}))), ok(1, item(value) + item(value)));
  EXPECT_EQ(refusal(extension.ask(with_id(2, multi_get({"k", "k", "k"}))), 2), ErrorKind::Invalid);
  EXPECT_EQ(refusal(extension.ask(with_id(3, blocking(multi_get({"k", "k", "k"})))), 3),
            ErrorKind::Invalid);
  EXPECT_FALSE(extension.closed());
}

}  // namespace
}  // namespace muster::store
