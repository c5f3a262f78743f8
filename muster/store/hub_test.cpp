#include "muster/store/hub.h"

#include "tests/fuzz/peer.h"
#include "tests/fuzz/requests.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::store {
namespace {

using namespace std::string_literals;
using namespace tests;
using wire::put;
using wire::put_blob;
using wire::put_string;

constexpr Dialect kPyTorchDialects[] = {Dialect::Legacy, Dialect::Modern};

// --- What is expected on the wire ----------------------------------------------------------------

const std::string kStopWaiting("\0", 1);
const std::string kWaitCanceled("\x01", 1);
const std::string kReady("\0", 1);
const std::string kNotReady("\x01", 1);
const std::string kNothing;

std::string number(std::int64_t value) {
  std::string out;
  put(out, value);
  return out;
}

std::string blob(std::string_view value) {
  std::string out;
  put_blob(out, value);
  return out;
}

// Bodies of the extension.
std::string string(std::string_view value) {
  std::string out;
  put_string(out, value);
  return out;
}
std::string flag(bool value) { return std::string(1, value ? '\1' : '\0'); }
std::string item(std::string_view value) { return flag(true) + string(value); }
const std::string kNoItem("\0", 1);

std::string reply(std::uint32_t id, std::uint8_t status, std::string_view body) {
  std::string out;
  const std::size_t start = wire::begin_reply(id, status, out);
  out += body;
  wire::end_reply(start, out);
  return out;
}
std::string ok(std::uint32_t id, std::string_view body = {}) {
  return reply(id, wire::kStatusOk, body);
}
std::string change(std::uint32_t id, Change::Kind kind, std::string_view key,
                   std::string_view value) {
  return reply(id, wire::kStatusChange,
               std::string(1, static_cast<char>(kind)) + string(key) + string(value));
}

// A message of a Legacy watch.
std::string watched(wire::WatchMessage message, std::string_view key, std::string_view old_value,
                    std::string_view new_value) {
  return std::string(1, static_cast<char>(message)) + blob(key) + blob(old_value) + blob(new_value);
}

// The kind of error with which `output` refuses the request `id`; nothing if it is anything but
// that one reply.
std::optional<ErrorKind> refusal(std::string_view output, std::uint32_t id) {
  wire::Reply decoded;
  const auto size = wire::decode_reply(output, output.size(), decoded);
  if (!size || *size != output.size() || decoded.id != id) return std::nullopt;
  const auto error = wire::error_of(decoded);
  if (!error || error->message.empty()) return std::nullopt;
  return error->kind;
}

// --- A client ------------------------------------------------------------------------------------

// A peer that speaks one dialect, with the handshake behind it.
class Client {
 public:
  Client(Hub& hub, Dialect dialect, std::string_view namespace_name = "",
         std::string_view upgrade_to = "")
      : peer_(hub, namespace_name), dialect_(dialect) {
    if (dialect == Dialect::Legacy) return;
    peer_.send(kValidate);
    EXPECT_EQ(peer_.read(), kNothing);
    if (dialect == Dialect::Modern) return;
    peer_.send(bytes_of(upgrade(wire::kExtensionVersion, upgrade_to), Dialect::Modern));
    EXPECT_EQ(peer_.read(), "\x01\0\0\0"s);
  }

  // Sends, and reads nothing.
  void tell(const Request& request) { peer_.send(bytes_of(request, dialect_)); }
  // Sends, and reads everything that has come.
  std::string ask(const Request& request) {
    tell(request);
    return peer_.read();
  }
  std::string read() { return peer_.read(); }
  void close() { peer_.close(); }
  bool closed() const { return peer_.closed(); }
  Peer& peer() { return peer_; }

 private:
  Peer peer_;
  Dialect dialect_;
};

std::int64_t described(const Hub& hub, std::string_view name) {
  for (const auto& [line, value] : hub.describe()) {
    if (line == name) return std::stoll(value);
  }
  ADD_FAILURE() << "the hub does not describe its " << name;
  return -1;
}

class HubTest : public ::testing::Test {
 protected:
  HubOptions options;
  Hub hub{options};
};

// Suites are named after what they are about.
class Sessions : public HubTest {};
class Writes : public HubTest {};
class Counters : public HubTest {};
class Waits : public HubTest {};
class LegacyWaits : public HubTest {};
class ModernWaits : public HubTest {};
class Barriers : public HubTest {};
class Queues : public HubTest {};
class LegacyWatches : public HubTest {};
class Extension : public HubTest {};
class ExtensionWaits : public HubTest {};
class ExtensionWatches : public HubTest {};
class Namespaces : public HubTest {};
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

// --- Writes --------------------------------------------------------------------------------------

TEST_F(Writes, AreNotAcknowledgedInTheDialectsOfPyTorch) {
  Client legacy(hub, Dialect::Legacy);
  EXPECT_EQ(legacy.ask(set("k", "v")), kNothing);
  Client modern(hub, Dialect::Modern);
  EXPECT_EQ(modern.ask(set("k", "v")), kNothing);
  EXPECT_EQ(modern.ask(append("k", "v")), kNothing);
  EXPECT_EQ(modern.ask(multi_set({{"a", "1"}})), kNothing);
  EXPECT_EQ(modern.ask(queue_push("q", "x")), kNothing);
}

TEST_F(Writes, OfAnEmptyValueMakeAKey) {
  for (const Dialect dialect : kPyTorchDialects) {
    Client client(hub, dialect);
    client.tell(set("empty", ""));
    EXPECT_EQ(client.ask(check({"empty"})), kReady);
    EXPECT_EQ(client.ask(get("empty")), blob(""));
    EXPECT_EQ(client.ask(wait({"empty"})), kStopWaiting);
  }
}

TEST_F(Writes, MayBeReadAsEmptyWhenTheKeyIsAbsent) {
  for (const Dialect dialect : kPyTorchDialects) {
    Client client(hub, dialect);
    EXPECT_EQ(client.ask(get("absent")), blob(""));
    EXPECT_FALSE(client.closed());
    EXPECT_EQ(client.ask(num_keys()), number(0));
  }
  Client modern(hub, Dialect::Modern);
  modern.tell(set("b", "2"));
  EXPECT_EQ(modern.ask(multi_get({"a", "b", "c"})), blob("") + blob("2") + blob(""));
}

TEST_F(Writes, ByCompareSetFollowTheTable) {
  for (const Dialect dialect : kPyTorchDialects) {
    Client client(hub, dialect);
    EXPECT_EQ(client.ask(compare_set("k", "x", "new")), blob("x"));
    EXPECT_EQ(client.ask(check({"k"})), kNotReady);
    EXPECT_EQ(client.ask(compare_set("k", "", "first")), blob("first"));
    EXPECT_EQ(client.ask(compare_set("k", "other", "new")), blob("first"));
    EXPECT_EQ(client.ask(compare_set("k", "first", "")), blob(""));
    EXPECT_EQ(client.ask(compare_set("k", "", "third")), blob("third"));
    EXPECT_EQ(client.ask(delete_key("k")), number(1));
  }
}

TEST_F(Writes, ByCompareSetWakeExactlyWhenTheyStore) {
  Client waiter(hub, Dialect::Modern);
  waiter.tell(wait({"k"}));
  Client writer(hub, Dialect::Modern);
  writer.ask(compare_set("k", "x", "new"));
  EXPECT_EQ(waiter.read(), kNothing);
  writer.ask(compare_set("k", "", "new"));
  EXPECT_EQ(waiter.read(), kStopWaiting);
}

TEST_F(Writes, ByAppendCreateAndExtend) {
  Client client(hub, Dialect::Modern);
  client.tell(append("k", "po"));
  EXPECT_EQ(client.ask(get("k")), blob("po"));
  client.tell(append("k", ""));
  client.tell(append("k", "st"));
  EXPECT_EQ(client.ask(get("k")), blob("post"));
}

TEST_F(Writes, ByMultiSetAreAppliedInOrder) {
  Client client(hub, Dialect::Modern);
  client.tell(multi_set({{"a", "1"}, {"b", "2"}, {"a", "3"}}));
  EXPECT_EQ(client.ask(multi_get({"a", "b", "a"})), blob("3") + blob("2") + blob("3"));
  client.tell(multi_set({}));
  EXPECT_EQ(client.ask(multi_get({})), kNothing);
  EXPECT_EQ(client.ask(num_keys()), number(2));
}

TEST_F(Writes, WakeTheWaitersWhateverTheirKind) {
  const std::vector<Request> writes = {set("k", ""), append("k", ""), multi_set({{"k", ""}}),
                                       add("k", 0), compare_set("k", "", "")};
  for (const Request& write : writes) {
    Client waiter(hub, Dialect::Modern);
    waiter.tell(wait({"k"}));
    Client writer(hub, Dialect::Modern);
    writer.tell(write);
    EXPECT_EQ(waiter.read(), kStopWaiting) << name_of(write.operation);
    writer.ask(delete_key("k"));
  }
}

TEST_F(Writes, AreListedSortedAndWithoutQueues) {
  Client client(hub, Dialect::Modern);
  client.ask(add("init/", 1));
  client.tell(multi_set({{"/b", ""}, {"/a", ""}}));
  client.tell(queue_push("/q", "x"));
  EXPECT_EQ(client.ask(list_keys()), number(3) + blob("/a") + blob("/b") + blob("init/"));
  EXPECT_EQ(client.ask(num_keys()), number(3));
}

// --- Counters ------------------------------------------------------------------------------------

TEST_F(Counters, BeginAtZeroAndAreStoredAsText) {
  Client client(hub, Dialect::Modern);
  EXPECT_EQ(client.ask(add("n", 5)), number(5));
  EXPECT_EQ(client.ask(add("n", -7)), number(-2));
  EXPECT_EQ(client.ask(get("n")), blob("-2"));
}

TEST_F(Counters, AreCreatedByAddingNothing) {
  Client client(hub, Dialect::Legacy);
  EXPECT_EQ(client.ask(add("n", 0)), number(0));
  EXPECT_EQ(client.ask(get("n")), blob("0"));
}

TEST_F(Counters, AreReadAsCDoes) {
  Client client(hub, Dialect::Legacy);
  client.tell(set("a", "12abc"));
  EXPECT_EQ(client.ask(add("a", 1)), number(13));
  EXPECT_EQ(client.ask(get("a")), blob("13"));
  client.tell(set("b", "  7"));
  EXPECT_EQ(client.ask(add("b", 1)), number(8));
  client.tell(set("c", "+4"));
  EXPECT_EQ(client.ask(add("c", 1)), number(5));
}

TEST_F(Counters, WrapAroundIn64Bits) {
  Client client(hub, Dialect::Legacy);
  client.tell(set("n", "9223372036854775807"));
  EXPECT_EQ(client.ask(add("n", 1)), number(INT64_MIN));
  EXPECT_EQ(client.ask(get("n")), blob("-9223372036854775808"));
  EXPECT_EQ(client.ask(add("n", INT64_MIN)), number(0));
}

TEST_F(Counters, CloseTheConnectionThatAddsToSomethingElse) {
  Client keeper(hub, Dialect::Modern);
  for (const std::string_view text :
       {"", "abc", " ", "-", "9223372036854775808", "--1", "+-1", "x1"}) {
    for (const Dialect dialect : kPyTorchDialects) {
      keeper.tell(set("k", text));
      Client client(hub, dialect);
      EXPECT_EQ(client.ask(add("k", 1)), kNothing);
      EXPECT_TRUE(client.closed()) << text;
      EXPECT_EQ(keeper.ask(get("k")), blob(text));
    }
    Client barrier_client(hub, Dialect::Modern);
    EXPECT_EQ(barrier_client.ask(barrier("k", 2)), kNothing);
    EXPECT_TRUE(barrier_client.closed()) << text;
    EXPECT_EQ(keeper.ask(get("k")), blob(text));
    EXPECT_FALSE(keeper.closed());
  }
}

TEST_F(Counters, RefuseInTheExtensionWithoutClosing) {
  Client client(hub, Dialect::Extension);
  client.ask(with_id(1, set("k", "text")));
  EXPECT_EQ(refusal(client.ask(with_id(2, add("k", 1))), 2), ErrorKind::Invalid);
  EXPECT_EQ(refusal(client.ask(with_id(3, barrier("k", 1))), 3), ErrorKind::Invalid);
  EXPECT_EQ(client.ask(with_id(4, get("k"))), ok(4, item("text")));
}

// --- Waiting -------------------------------------------------------------------------------------

TEST_F(Waits, EndAtOnceWhenEveryKeyIsThere) {
  for (const Dialect dialect : kPyTorchDialects) {
    Client client(hub, dialect);
    client.tell(set("a", ""));
    client.tell(set("b", ""));
    EXPECT_EQ(client.ask(wait({"a", "b"})), kStopWaiting);
    EXPECT_EQ(client.ask(wait({})), kStopWaiting);
    EXPECT_EQ(client.ask(check({})), kReady);
  }
}

TEST_F(Waits, EndWhenTheLastMissingKeyIsWritten) {
  for (const Dialect dialect : kPyTorchDialects) {
    Client waiter(hub, dialect);
    Client writer(hub, Dialect::Modern);
    writer.tell(set("a", ""));
    waiter.tell(wait({"a", "b", "c"}));
    writer.tell(set("c", ""));
    EXPECT_EQ(waiter.read(), kNothing);
    writer.tell(set("b", ""));
    EXPECT_EQ(waiter.read(), kStopWaiting);
    for (const std::string_view key : {"a", "b", "c"}) writer.ask(delete_key(key));
  }
}

TEST_F(Waits, EndEvenIfAKeyThatWasThereIsDeletedMeanwhile) {
  Client waiter(hub, Dialect::Modern);
  Client writer(hub, Dialect::Modern);
  writer.tell(set("there at first", ""));
  waiter.tell(wait({"there at first", "struck off", "last"}));
  writer.tell(set("struck off", ""));
  writer.ask(delete_key("there at first"));
  writer.ask(delete_key("struck off"));
  EXPECT_EQ(waiter.read(), kNothing);
  writer.tell(set("last", ""));
  EXPECT_EQ(waiter.read(), kStopWaiting);
}

TEST_F(Waits, EndOnceForAKeyThatIsListedTwice) {
  Client waiter(hub, Dialect::Legacy);
  waiter.tell(wait({"k", "other", "k"}));
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", ""));
  EXPECT_EQ(waiter.read(), kNothing);
  writer.tell(set("other", ""));
  writer.tell(set("k", ""));
  EXPECT_EQ(waiter.read(), kStopWaiting);
}

TEST_F(Waits, EndForAllWhoWaitForTheKey) {
  std::vector<std::unique_ptr<Client>> waiters;
  for (int index = 0; index < 20; ++index) {
    waiters.push_back(
        std::make_unique<Client>(hub, index % 2 == 0 ? Dialect::Legacy : Dialect::Modern));
    waiters.back()->tell(wait({"k"}));
  }
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", ""));
  for (const auto& waiter : waiters) EXPECT_EQ(waiter->read(), kStopWaiting);
}

TEST_F(Waits, AreNotTouchedByDeletions) {
  Client waiter(hub, Dialect::Modern);
  waiter.tell(wait({"k"}));
  Client writer(hub, Dialect::Modern);
  EXPECT_EQ(writer.ask(delete_key("k")), number(0));
  EXPECT_EQ(waiter.read(), kNothing);
  writer.tell(set("k", ""));
  EXPECT_EQ(waiter.read(), kStopWaiting);
  EXPECT_EQ(writer.ask(delete_key("k")), number(1));
  EXPECT_EQ(waiter.read(), kNothing);
}

TEST_F(Waits, AreReplacedByALaterWaitOfTheSameClient) {
  for (const Dialect dialect : kPyTorchDialects) {
    Client waiter(hub, dialect);
    waiter.tell(wait({"old"}));
    waiter.tell(wait({"new"}));
    EXPECT_EQ(described(hub, "waiting"), 1);
    Client writer(hub, Dialect::Modern);
    writer.tell(set("old", ""));
    EXPECT_EQ(waiter.read(), kNothing);
    writer.tell(set("new", ""));
    EXPECT_EQ(waiter.read(), kStopWaiting);
    writer.ask(delete_key("old"));
    writer.ask(delete_key("new"));
  }
}

TEST_F(Waits, AreReplacedAlsoByAWaitThatEndsAtOnce) {
  Client waiter(hub, Dialect::Modern);
  waiter.tell(wait({"old"}));
  EXPECT_EQ(waiter.ask(wait({})), kStopWaiting);
  Client writer(hub, Dialect::Modern);
  writer.tell(set("old", ""));
  EXPECT_EQ(waiter.read(), kNothing);
}

TEST_F(LegacyWaits, AreDroppedSilentlyByTheNextRequestWhateverItIs) {
  const std::vector<Request> requests = {
      set("x", "1"),  compare_set("x", "", "1"), get("x"),   add("n", 1),
      check({"x"}),   wait({"other"}),           num_keys(), watch_key("other"),
      delete_key("x")};
  for (const Request& request : requests) {
    Client waiter(hub, Dialect::Legacy);
    waiter.tell(wait({"never"}));
    waiter.ask(request);
    Client writer(hub, Dialect::Modern);
    writer.tell(set("never", ""));
    EXPECT_EQ(waiter.read(), kNothing) << name_of(request.operation);
    writer.ask(delete_key("never"));
  }
}

TEST_F(LegacyWaits, EndBeforeARequestThatWritesTheKeyItself) {
  Client waiter(hub, Dialect::Legacy);
  waiter.tell(wait({"k"}));
  EXPECT_EQ(waiter.ask(set("k", "v")), kNothing);
  EXPECT_EQ(waiter.ask(get("k")), blob("v"));
}

TEST_F(ModernWaits, GoOnWhileOtherRequestsAreServed) {
  Client waiter(hub, Dialect::Modern);
  waiter.tell(wait({"k"}));
  waiter.tell(set("x", "1"));
  EXPECT_EQ(waiter.ask(get("x")), blob("1"));
  EXPECT_EQ(waiter.ask(num_keys()), number(1));
  EXPECT_EQ(waiter.ask(queue_pop("k")), number(0));
  EXPECT_EQ(waiter.ask(ping(7)), "\x07\0\0\0"s);
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", ""));
  EXPECT_EQ(waiter.read(), kStopWaiting);
}

TEST_F(ModernWaits, EndAlsoByTheClientsOwnWrite) {
  Client client(hub, Dialect::Modern);
  client.tell(wait({"k"}));
  EXPECT_EQ(client.ask(set("k", "")), kStopWaiting);
}

TEST_F(ModernWaits, AreCancelledWithExactlyOneAnswer) {
  Client client(hub, Dialect::Modern);
  client.tell(wait({"k"}));
  EXPECT_EQ(client.ask(cancel_wait()), kWaitCanceled);
  EXPECT_EQ(described(hub, "waiting"), 0);
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", ""));
  EXPECT_EQ(client.read(), kNothing);
}

TEST_F(ModernWaits, AreCancelledWithAnAnswerEvenIfThereIsNone) {
  Client client(hub, Dialect::Modern);
  EXPECT_EQ(client.ask(cancel_wait()), kWaitCanceled);
  EXPECT_EQ(client.ask(cancel_wait()), kWaitCanceled);
  client.tell(wait({"k"}));
  client.tell(cancel_wait());
  client.tell(cancel_wait());
  EXPECT_EQ(client.read(), kWaitCanceled + kWaitCanceled);
}

TEST_F(ModernWaits, ThatEndWhileTheyAreCancelledAreAnsweredTwice) {
  Client client(hub, Dialect::Modern);
  client.tell(wait({"k"}));
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", ""));
  client.tell(cancel_wait());
  EXPECT_EQ(client.read(), kStopWaiting + kWaitCanceled);
  EXPECT_EQ(client.ask(num_keys()), number(1));
}

// --- Barriers ------------------------------------------------------------------------------------

TEST_F(Barriers, ReleaseEveryoneWhenTheLastComes) {
  Client first(hub, Dialect::Modern);
  Client second(hub, Dialect::Modern);
  Client third(hub, Dialect::Extension);
  first.tell(barrier("b", 3));
  third.tell(with_id(1, barrier("b", 3)));
  EXPECT_EQ(first.read() + third.read(), kNothing);
  EXPECT_EQ(second.ask(barrier("b", 3)), kStopWaiting);
  EXPECT_EQ(first.read(), kStopWaiting);
  EXPECT_EQ(third.read(), ok(1));
}

TEST_F(Barriers, CountInAKeyThatEveryoneSees) {
  Client client(hub, Dialect::Modern);
  client.tell(barrier("b", 2));
  Client other(hub, Dialect::Modern);
  EXPECT_EQ(other.ask(check({"b"})), kReady);
  EXPECT_EQ(other.ask(get("b")), blob("1"));
  EXPECT_EQ(other.ask(wait({"b"})), kStopWaiting);
}

TEST_F(Barriers, WakeWaitersWhenTheyAreCompleteAndNotBefore) {
  Client waiter(hub, Dialect::Modern);
  waiter.tell(wait({"b"}));
  Client first(hub, Dialect::Modern);
  first.tell(barrier("b", 2));
  EXPECT_EQ(waiter.read(), kNothing);
  Client second(hub, Dialect::Modern);
  second.tell(barrier("b", 2));
  EXPECT_EQ(waiter.read(), kStopWaiting);
}

TEST_F(Barriers, ReleaseEarlyWhenTheKeyIsWritten) {
  for (const Request& write : {set("b", "0"), add("b", 1), append("b", "0")}) {
    Client waiter(hub, Dialect::Modern);
    waiter.tell(barrier("b", 5));
    Client writer(hub, Dialect::Modern);
    writer.tell(write);
    EXPECT_EQ(waiter.read(), kStopWaiting) << name_of(write.operation);
    writer.ask(delete_key("b"));
  }
}

TEST_F(Barriers, ServeOnceAndLetEveryonePassAfterwards) {
  Client client(hub, Dialect::Modern);
  client.tell(barrier("b", 1));
  client.tell(barrier("b", 1));
  client.tell(barrier("b", 0));
  client.tell(barrier("b", -1));
  EXPECT_EQ(client.read(), kStopWaiting + kStopWaiting + kStopWaiting + kStopWaiting);
  EXPECT_EQ(client.ask(get("b")), blob("4"));
}

TEST_F(Barriers, KeepTheCountOfThoseWhoGaveUp) {
  Client client(hub, Dialect::Modern);
  client.tell(barrier("b", 2));
  EXPECT_EQ(client.ask(cancel_wait()), kWaitCanceled);
  EXPECT_EQ(client.ask(get("b")), blob("1"));
  Client other(hub, Dialect::Modern);
  EXPECT_EQ(other.ask(barrier("b", 2)), kStopWaiting);
  EXPECT_EQ(client.read(), kNothing);
}

// --- Queues --------------------------------------------------------------------------------------

TEST_F(Queues, GiveTheirItemsInOrderAndTellTheLengthBefore) {
  Client client(hub, Dialect::Modern);
  client.tell(queue_push("q", "1"));
  client.tell(queue_push("q", ""));
  EXPECT_EQ(client.ask(queue_length("q")), number(2));
  EXPECT_EQ(client.ask(queue_pop("q")), number(2) + blob("1"));
  EXPECT_EQ(client.ask(queue_pop("q")), number(1) + blob(""));
  EXPECT_EQ(client.ask(queue_pop("q")), number(0));
  EXPECT_EQ(client.ask(queue_length("q")), number(0));
}

TEST_F(Queues, AreNotKeys) {
  Client client(hub, Dialect::Modern);
  client.tell(queue_push("q", "item"));
  EXPECT_EQ(client.ask(get("q")), blob(""));
  EXPECT_EQ(client.ask(num_keys()), number(0));
  EXPECT_EQ(client.ask(delete_key("q")), number(0));
  EXPECT_EQ(client.ask(list_keys()), number(0));
  EXPECT_EQ(client.ask(queue_length("q")), number(1));
  client.tell(set("q", "value"));
  EXPECT_EQ(client.ask(delete_key("q")), number(1));
  EXPECT_EQ(client.ask(queue_pop("q")), number(1) + blob("item"));
}

TEST_F(Queues, CountAsPresentWhileTheyAreNotEmpty) {
  Client client(hub, Dialect::Modern);
  EXPECT_EQ(client.ask(check({"q"})), kNotReady);
  client.tell(queue_push("q", "item"));
  EXPECT_EQ(client.ask(check({"q"})), kReady);
  EXPECT_EQ(client.ask(wait({"q"})), kStopWaiting);
  client.tell(set("k", ""));
  EXPECT_EQ(client.ask(wait({"q", "k"})), kStopWaiting);
  Client legacy(hub, Dialect::Legacy);
  EXPECT_EQ(legacy.ask(check({"q"})), kReady);
  client.ask(queue_pop("q"));
  EXPECT_EQ(client.ask(check({"q"})), kNotReady);
}

TEST_F(Queues, WakeOneWaiterForEachItemInTheOrderOfTheirArrival) {
  Client first(hub, Dialect::Modern);
  Client second(hub, Dialect::Modern);
  Client third(hub, Dialect::Modern);
  for (Client* waiter : {&first, &second, &third}) waiter->tell(wait({"q"}));
  Client pusher(hub, Dialect::Modern);
  pusher.tell(queue_push("q", "1"));
  EXPECT_EQ(first.read(), kStopWaiting);
  EXPECT_EQ(second.read() + third.read(), kNothing);
  pusher.tell(queue_push("q", "2"));
  EXPECT_EQ(second.read(), kStopWaiting);
  EXPECT_EQ(first.read() + third.read(), kNothing);
  EXPECT_EQ(first.ask(queue_pop("q")), number(2) + blob("1"));
  EXPECT_EQ(second.ask(queue_pop("q")), number(1) + blob("2"));
  EXPECT_EQ(third.read(), kNothing);
}

TEST_F(Queues, PassTheWakeUpOnWhenTheWokenClientCancels) {
  Client first(hub, Dialect::Modern);
  Client second(hub, Dialect::Modern);
  first.tell(wait({"q"}));
  second.tell(wait({"q"}));
  Client pusher(hub, Dialect::Modern);
  pusher.tell(queue_push("q", "item"));
  first.tell(cancel_wait());
  EXPECT_EQ(first.read(), kStopWaiting + kWaitCanceled);
  EXPECT_EQ(second.read(), kStopWaiting);
  EXPECT_EQ(second.ask(queue_pop("q")), number(1) + blob("item"));
}

TEST_F(Queues, PassTheWakeUpOnWhenTheWokenClientDisconnects) {
  Client first(hub, Dialect::Modern);
  Client second(hub, Dialect::Modern);
  first.tell(wait({"q"}));
  second.tell(wait({"q"}));
  Client pusher(hub, Dialect::Modern);
  pusher.tell(queue_push("q", "item"));
  EXPECT_EQ(second.read(), kNothing);
  first.close();
  EXPECT_EQ(second.read(), kStopWaiting);
  EXPECT_EQ(second.peer().told_of_output(), 1);
}

TEST_F(Queues, PassTheWakeUpOnWhenTheWokenClientDoesSomethingElse) {
  Client first(hub, Dialect::Modern);
  Client second(hub, Dialect::Modern);
  first.tell(wait({"q"}));
  second.tell(wait({"q"}));
  Client pusher(hub, Dialect::Modern);
  pusher.tell(queue_push("q", "item"));
  EXPECT_EQ(first.ask(num_keys()), kStopWaiting + number(0));
  EXPECT_EQ(second.read(), kStopWaiting);
}

TEST_F(Queues, PassTheWakeUpOnFromALegacyClient) {
  Client first(hub, Dialect::Legacy);
  Client second(hub, Dialect::Modern);
  first.tell(wait({"q"}));
  second.tell(wait({"q"}));
  Client pusher(hub, Dialect::Modern);
  pusher.tell(queue_push("q", "item"));
  EXPECT_EQ(first.ask(num_keys()), kStopWaiting + number(0));
  EXPECT_EQ(second.read(), kStopWaiting);
}

TEST_F(Queues, DoNotPassTheWakeUpOnWhenTheItemIsGone) {
  Client first(hub, Dialect::Modern);
  Client second(hub, Dialect::Modern);
  first.tell(wait({"q"}));
  second.tell(wait({"q"}));
  Client pusher(hub, Dialect::Modern);
  pusher.tell(queue_push("q", "item"));
  EXPECT_EQ(pusher.ask(queue_pop("q")), number(1) + blob("item"));
  first.close();
  EXPECT_EQ(second.read(), kNothing);
}

TEST_F(Queues, HandOverToTheOneWhoPopsWithoutWakingTheNext) {
  Client first(hub, Dialect::Modern);
  Client second(hub, Dialect::Modern);
  first.tell(wait({"q"}));
  second.tell(wait({"q"}));
  Client pusher(hub, Dialect::Modern);
  pusher.tell(queue_push("q", "1"));
  EXPECT_EQ(first.read(), kStopWaiting);
  EXPECT_EQ(first.ask(queue_pop("q")), number(1) + blob("1"));
  EXPECT_EQ(first.ask(num_keys()), number(0));
  EXPECT_EQ(second.read(), kNothing);
  pusher.tell(queue_push("q", "2"));
  EXPECT_EQ(second.read(), kStopWaiting);
}

TEST_F(Queues, WakeAWaiterThatAlsoNeedsAKeyOnlyWhenBothAreThere) {
  Client waiter(hub, Dialect::Modern);
  waiter.tell(wait({"q", "k"}));
  Client writer(hub, Dialect::Modern);
  writer.tell(queue_push("q", "item"));
  EXPECT_EQ(waiter.read(), kNothing);
  writer.tell(set("k", ""));
  EXPECT_EQ(waiter.read(), kStopWaiting);
  EXPECT_EQ(waiter.ask(queue_pop("q")), number(1) + blob("item"));
}

// --- Watching, Legacy ----------------------------------------------------------------------------

TEST_F(LegacyWatches, ReportEveryWriteAndDeletion) {
  using wire::WatchMessage;
  Client watcher(hub, Dialect::Legacy);
  EXPECT_EQ(watcher.ask(watch_key("k")), "\x03");
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", "1"));
  writer.tell(set("k", "1"));
  writer.ask(add("k", 4));
  writer.tell(append("k", "0"));
  writer.ask(compare_set("k", "50", "x"));
  writer.ask(compare_set("k", "50", "y"));
  writer.ask(delete_key("k"));
  writer.ask(delete_key("k"));
  writer.tell(queue_push("k", "item"));
  writer.tell(set("other", ""));
  EXPECT_EQ(watcher.read(), watched(WatchMessage::Created, "k", "", "1") +
                                watched(WatchMessage::Updated, "k", "1", "1") +
                                watched(WatchMessage::Updated, "k", "1", "5") +
                                watched(WatchMessage::Updated, "k", "5", "50") +
                                watched(WatchMessage::Updated, "k", "50", "x") +
                                watched(WatchMessage::Deleted, "k", "x", ""));
}

TEST_F(LegacyWatches, AccumulateOnOneConnection) {
  using wire::WatchMessage;
  Client watcher(hub, Dialect::Legacy);
  watcher.tell(watch_key("a"));
  watcher.tell(watch_key("b"));
  EXPECT_EQ(watcher.read(), "\x03\x03");
  Client writer(hub, Dialect::Modern);
  writer.tell(multi_set({{"b", "2"}, {"a", "1"}}));
  EXPECT_EQ(watcher.read(), watched(WatchMessage::Created, "b", "", "2") +
                                watched(WatchMessage::Created, "a", "", "1"));
}

TEST(LegacyWatch, OverTheLimitEndsTheConnection) {
  HubOptions options;
  options.watches_per_session_max = 2;
  Hub hub(options);
  Client client(hub, Dialect::Legacy);
  EXPECT_EQ(client.ask(watch_key("a")), "\x03");
  EXPECT_EQ(client.ask(watch_key("b")), "\x03");
  EXPECT_FALSE(client.closed());
  EXPECT_EQ(client.ask(watch_key("c")), kNothing);
  EXPECT_TRUE(client.closed());
}

// --- The extension -------------------------------------------------------------------------------

TEST_F(Extension, IsAnnouncedByAKeyThatIsNotThere) {
  Client client(hub, Dialect::Modern);
  EXPECT_EQ(client.ask(check({wire::kExtensionKey})), kReady);
  EXPECT_EQ(client.ask(check({"muster/extension/2"})), kNotReady);
  EXPECT_EQ(client.ask(check({wire::kExtensionKey, "absent"})), kNotReady);
  EXPECT_EQ(client.ask(num_keys()), number(0));
  EXPECT_EQ(client.ask(list_keys()), number(0));
}

TEST_F(Extension, BeginsWithTheVersionThatBothSidesKnow) {
  for (const std::uint32_t wanted : {1U, 2U, 0xffffffffU}) {
    Client client(hub, Dialect::Modern);
    EXPECT_EQ(client.ask(upgrade(wanted, "")), "\x01\0\0\0"s);
    EXPECT_EQ(client.peer().session().dialect(), Dialect::Extension);
  }
}

TEST_F(Extension, ServesFramesThatCameTogetherWithTheUpgrade) {
  Peer peer(hub);
  peer.send(std::string(kValidate) + bytes_of(upgrade(1, ""), Dialect::Modern) +
            bytes_of(with_id(9, set("k", "v")), Dialect::Extension) +
            bytes_of(with_id(10, get("k")), Dialect::Extension));
  EXPECT_EQ(peer.read(), "\x01\0\0\0"s + ok(9) + ok(10, item("v")));
}

TEST_F(Extension, AnswersEveryOperationWithTheIdOfTheRequest) {
  Client client(hub, Dialect::Extension);
  EXPECT_EQ(client.ask(with_id(1, set("k", "v"))), ok(1));
  EXPECT_EQ(client.ask(with_id(2, get("k"))), ok(2, item("v")));
  EXPECT_EQ(client.ask(with_id(3, get("absent"))), ok(3, kNoItem));
  EXPECT_EQ(client.ask(with_id(4, append("k", "w"))), ok(4));
  EXPECT_EQ(client.ask(with_id(5, compare_set("k", "vw", "x"))), ok(5, flag(true) + string("x")));
  EXPECT_EQ(client.ask(with_id(6, compare_set("k", "vw", "y"))), ok(6, flag(false) + string("x")));
  EXPECT_EQ(client.ask(with_id(7, compare_set("absent", "e", "y"))),
            ok(7, flag(false) + string("e")));
  EXPECT_EQ(client.ask(with_id(8, add("n", -3))), ok(8, number(-3)));
  EXPECT_EQ(client.ask(with_id(9, check({"k", "n"}))), ok(9, flag(true)));
  EXPECT_EQ(client.ask(with_id(10, check({"k", "absent"}))), ok(10, flag(false)));
  EXPECT_EQ(client.ask(with_id(11, num_keys())), ok(11, number(2)));
  EXPECT_EQ(client.ask(with_id(12, multi_set({{"a", "1"}, {"b", "2"}}))), ok(12));
  EXPECT_EQ(client.ask(with_id(13, multi_get({"b", "absent", "a"}))),
            ok(13, item("2") + kNoItem + item("1")));
  EXPECT_EQ(client.ask(with_id(14, queue_push("q", "i"))), ok(14));
  EXPECT_EQ(client.ask(with_id(15, queue_length("q"))), ok(15, number(1)));
  EXPECT_EQ(client.ask(with_id(16, queue_pop("q"))), ok(16, item("i")));
  EXPECT_EQ(client.ask(with_id(17, queue_pop("q"))), ok(17, kNoItem));
  EXPECT_EQ(client.ask(with_id(18, delete_key("k"))), ok(18, flag(true)));
  EXPECT_EQ(client.ask(with_id(19, delete_key("k"))), ok(19, flag(false)));
  EXPECT_EQ(client.ask(with_id(20, list_keys(""))),
            ok(20, "\x03\0\0\0"s + string("a") + string("b") + string("n")));
  EXPECT_EQ(client.ask(with_id(21, list_keys("b"))), ok(21, "\x01\0\0\0"s + string("b")));
  EXPECT_EQ(client.ask(with_id(22, request(Operation::Ping))), ok(22));
  EXPECT_EQ(client.ask(with_id(23, barrier("bar", 1))), ok(23));
}

TEST_F(Extension, DescribesTheServerToPeople) {
  hub.set_description({{"version", "1.2.3"}});
  Client client(hub, Dialect::Extension);
  const std::string answer = client.ask(with_id(1, info()));
  wire::Reply decoded;
  ASSERT_EQ(wire::decode_reply(answer, answer.size(), decoded), answer.size());
  wire::Reader reader(decoded.body);
  const auto count = reader.integer<std::uint32_t>();
  std::vector<std::string> lines;
  for (std::uint32_t index = 0; index < count; ++index) {
    const std::string name(reader.string(100));
    lines.push_back(name + "=" + std::string(reader.string(100)));
  }
  EXPECT_TRUE(reader.finished());
  ASSERT_GE(lines.size(), 2U);
  EXPECT_EQ(lines[0], "version=1.2.3");
  EXPECT_EQ(lines[1], "connections=1");
}

TEST_F(Extension, RefusesAnOpcodeItDoesNotKnowAndGoesOn) {
  Client client(hub, Dialect::Extension);
  for (int number = 0; number <= 0xff; ++number) {
    const auto opcode = static_cast<std::uint8_t>(number);
    if (wire::operation_of(opcode, Dialect::Extension)) continue;
    std::string frame;
    put<std::uint32_t>(frame, 5 + 3);
    put<std::uint32_t>(frame, 77);
    put(frame, opcode);
    frame += "abc";
    client.peer().send(frame);
    EXPECT_EQ(refusal(client.read(), 77), ErrorKind::Unimplemented) << number;
  }
  EXPECT_EQ(client.ask(with_id(1, set("k", "v"))), ok(1));
}

TEST_F(Extension, ClosesAtAMalformedFrame) {
  Client client(hub, Dialect::Extension);
  client.peer().send("\x05\0\0\0\x01\0\0\0\x03"s);  // a GET without a key
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(client.read(), kNothing);
}

// --- The extension: waiting ----------------------------------------------------------------------

TEST_F(ExtensionWaits, GiveWhatIsThereAtOnce) {
  Client client(hub, Dialect::Extension);
  client.ask(with_id(1, multi_set({{"a", "1"}, {"b", "2"}})));
  client.ask(with_id(2, queue_push("q", "i")));
  EXPECT_EQ(client.ask(with_id(3, wait({"a", "q"}))), ok(3));
  EXPECT_EQ(client.ask(with_id(4, blocking(get("a")))), ok(4, item("1")));
  EXPECT_EQ(client.ask(with_id(5, blocking(multi_get({"b", "a"})))), ok(5, item("2") + item("1")));
  EXPECT_EQ(client.ask(with_id(6, blocking(queue_pop("q")))), ok(6, item("i")));
  EXPECT_EQ(client.ask(with_id(7, blocking(multi_get({})))), ok(7));
  EXPECT_EQ(client.ask(with_id(8, wait({}))), ok(8));
  EXPECT_EQ(described(hub, "waiting"), 0);
}

TEST_F(ExtensionWaits, AreManyAtOnceAndEndInAnyOrder) {
  Client client(hub, Dialect::Extension);
  client.tell(with_id(1, wait({"w"})));
  client.tell(with_id(2, blocking(get("g"))));
  client.tell(with_id(3, blocking(multi_get({"g", "m"}))));
  client.tell(with_id(4, blocking(queue_pop("q"))));
  client.tell(with_id(5, barrier("b", 2)));
  EXPECT_EQ(client.ask(with_id(6, num_keys())), ok(6, number(1)));
  EXPECT_EQ(described(hub, "waiting"), 5);
  Client other(hub, Dialect::Modern);
  other.tell(queue_push("q", "item"));
  EXPECT_EQ(client.read(), ok(4, item("item")));
  other.tell(set("g", "value"));
  EXPECT_EQ(client.read(), ok(2, item("value")));
  other.tell(set("m", ""));
  EXPECT_EQ(client.read(), ok(3, item("value") + item("")));
  EXPECT_EQ(other.ask(barrier("b", 2)), kStopWaiting);
  EXPECT_EQ(client.read(), ok(5));
  other.tell(set("w", ""));
  EXPECT_EQ(client.read(), ok(1));
  EXPECT_EQ(described(hub, "waiting"), 0);
  EXPECT_EQ(other.ask(queue_length("q")), number(0));
}

TEST_F(ExtensionWaits, GiveNoValueForAKeyThatWasDeletedMeanwhile) {
  Client client(hub, Dialect::Extension);
  client.ask(with_id(1, set("a", "1")));
  client.tell(with_id(2, blocking(multi_get({"a", "b"}))));
  Client other(hub, Dialect::Modern);
  other.ask(delete_key("a"));
  other.tell(set("b", "2"));
  EXPECT_EQ(client.read(), ok(2, kNoItem + item("2")));
}

TEST_F(ExtensionWaits, ForAKeyDoNotEndWithAQueueOfThatNameNorTheOtherWayRound) {
  Client client(hub, Dialect::Extension);
  client.tell(with_id(1, blocking(get("name"))));
  client.tell(with_id(2, blocking(queue_pop("other"))));
  Client writer(hub, Dialect::Modern);
  writer.tell(queue_push("name", "item"));
  writer.tell(set("other", "value"));
  EXPECT_EQ(client.read(), kNothing);
  writer.tell(set("name", "value"));
  EXPECT_EQ(client.read(), ok(1, item("value")));
  writer.tell(queue_push("other", "item"));
  EXPECT_EQ(client.read(), ok(2, item("item")));
  EXPECT_EQ(writer.ask(queue_length("name")), number(1));
}

TEST_F(ExtensionWaits, ForAnItemGetOneEachInTheOrderOfTheirArrival) {
  Client first(hub, Dialect::Extension);
  Client second(hub, Dialect::Extension);
  first.tell(with_id(1, blocking(queue_pop("q"))));
  second.tell(with_id(1, blocking(queue_pop("q"))));
  first.tell(with_id(2, blocking(queue_pop("q"))));
  Client pusher(hub, Dialect::Modern);
  pusher.tell(queue_push("q", "1"));
  EXPECT_EQ(first.read(), ok(1, item("1")));
  pusher.tell(queue_push("q", "2"));
  EXPECT_EQ(second.read(), ok(1, item("2")));
  pusher.tell(queue_push("q", "3"));
  EXPECT_EQ(first.read(), ok(2, item("3")));
  EXPECT_EQ(pusher.ask(queue_length("q")), number(0));
}

TEST_F(ExtensionWaits, GetTheItemThatAWokenClientLeftBehind) {
  Client modern(hub, Dialect::Modern);
  modern.tell(wait({"q"}));
  Client extension(hub, Dialect::Extension);
  extension.tell(with_id(1, blocking(queue_pop("q"))));
  Client pusher(hub, Dialect::Modern);
  pusher.tell(queue_push("q", "item"));
  EXPECT_EQ(extension.read(), kNothing);
  modern.close();
  EXPECT_EQ(extension.read(), ok(1, item("item")));
  EXPECT_EQ(hub.memory_bytes(), 0U);
}

TEST_F(ExtensionWaits, OfAClientThatGoesPassAnItemOnPastOneAnother) {
  Client going(hub, Dialect::Extension);
  going.tell(with_id(1, wait({"q", "never"})));
  going.tell(with_id(2, blocking(queue_pop("q"))));
  Client next(hub, Dialect::Extension);
  next.tell(with_id(1, blocking(queue_pop("q"))));
  Client pusher(hub, Dialect::Modern);
  pusher.tell(queue_push("q", "item"));
  EXPECT_EQ(next.read(), kNothing);
  going.close();
  EXPECT_EQ(next.read(), ok(1, item("item")));
  EXPECT_EQ(described(hub, "waiting"), 0);
  EXPECT_EQ(hub.memory_bytes(), 0U);
}

TEST_F(ExtensionWaits, AreCancelledWithAFinalReply) {
  Client client(hub, Dialect::Extension);
  client.tell(with_id(1, wait({"k"})));
  client.tell(with_id(2, blocking(queue_pop("q"))));
  EXPECT_EQ(refusal(client.ask(cancel(1)), 1), ErrorKind::Cancelled);
  EXPECT_EQ(refusal(client.ask(cancel(2)), 2), ErrorKind::Cancelled);
  EXPECT_EQ(described(hub, "waiting"), 0);
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", ""));
  writer.tell(queue_push("q", "item"));
  EXPECT_EQ(client.read(), kNothing);
  EXPECT_EQ(writer.ask(queue_length("q")), number(1));
}

TEST_F(ExtensionWaits, ThatEndedAreCancelledWithoutAWord) {
  Client client(hub, Dialect::Extension);
  client.tell(with_id(1, wait({"k"})));
  EXPECT_EQ(client.ask(with_id(2, set("k", ""))), ok(2) + ok(1));
  EXPECT_EQ(client.ask(cancel(1)), kNothing);
  EXPECT_EQ(client.ask(cancel(99)), kNothing);
  EXPECT_EQ(client.ask(with_id(3, request(Operation::Ping))), ok(3));
}

TEST_F(ExtensionWaits, RefuseAnIdThatIsInUse) {
  Client client(hub, Dialect::Extension);
  client.tell(with_id(1, wait({"k"})));
  EXPECT_EQ(refusal(client.ask(with_id(1, wait({"other"}))), 1), ErrorKind::Invalid);
  EXPECT_EQ(refusal(client.ask(with_id(1, blocking(get("other")))), 1), ErrorKind::Invalid);
  EXPECT_EQ(refusal(client.ask(with_id(1, barrier("b", 2))), 1), ErrorKind::Invalid);
  EXPECT_EQ(described(hub, "waiting"), 1);
  EXPECT_EQ(client.ask(with_id(2, check({"b"}))), ok(2, flag(false)));
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", ""));
  EXPECT_EQ(client.read(), ok(1));
  client.tell(with_id(1, wait({"again"})));
  writer.tell(set("again", ""));
  EXPECT_EQ(client.read(), ok(1));
}

TEST_F(ExtensionWaits, AndWatchesShareTheirIds) {
  Client client(hub, Dialect::Extension);
  client.tell(with_id(1, wait({"k"})));
  EXPECT_EQ(refusal(client.ask(with_id(1, watch_key("k"))), 1), ErrorKind::Invalid);
  client.ask(with_id(2, watch_key("w")));
  EXPECT_EQ(refusal(client.ask(with_id(2, wait({"k"}))), 2), ErrorKind::Invalid);
  EXPECT_EQ(described(hub, "waiting"), 1);
  EXPECT_EQ(described(hub, "watching"), 1);
}

TEST(ExtensionWait, OverTheLimitIsRefusedAndCountsForNothing) {
  HubOptions options;
  options.waits_per_session_max = 2;
  Hub hub(options);
  Client client(hub, Dialect::Extension);
  client.tell(with_id(1, wait({"k"})));
  client.tell(with_id(2, blocking(get("k"))));
  EXPECT_EQ(client.read(), kNothing);
  EXPECT_EQ(refusal(client.ask(with_id(3, wait({"k"}))), 3), ErrorKind::Unavailable);
  EXPECT_EQ(refusal(client.ask(with_id(4, barrier("b", 2))), 4), ErrorKind::Unavailable);
  EXPECT_EQ(client.ask(with_id(5, check({"b"}))), ok(5, flag(false)));
  // Another client has its own share, and a place that becomes free can be used.
  Client other(hub, Dialect::Extension);
  other.tell(with_id(1, wait({"k"})));
  EXPECT_EQ(other.read(), kNothing);
  EXPECT_EQ(refusal(client.ask(cancel(1)), 1), ErrorKind::Cancelled);
  client.tell(with_id(6, wait({"k"})));
  EXPECT_EQ(client.read(), kNothing);
  EXPECT_EQ(other.ask(with_id(2, set("k", "v"))), ok(2) + ok(1));
  EXPECT_EQ(client.read(), ok(2, item("v")) + ok(6));
}

// --- The extension: watching ---------------------------------------------------------------------

TEST_F(ExtensionWatches, OfAKeyBeginWithItsStateAndReportEveryChangeInOrder) {
  using Kind = Change::Kind;
  Client watcher(hub, Dialect::Extension);
  EXPECT_EQ(watcher.ask(with_id(7, watch_key("k"))), ok(7) + change(7, Kind::Absent, "k", ""));
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", "1"));
  writer.tell(set("k", "1"));
  writer.tell(set("kk", "not this one"));
  writer.ask(delete_key("k"));
  writer.tell(set("k", "2"));
  EXPECT_EQ(watcher.read(),
            change(7, Kind::Created, "k", "1") + change(7, Kind::Updated, "k", "1") +
                change(7, Kind::Deleted, "k", "") + change(7, Kind::Created, "k", "2"));
  Client late(hub, Dialect::Extension);
  EXPECT_EQ(late.ask(with_id(8, watch_key("k"))), ok(8) + change(8, Kind::Present, "k", "2"));
}

TEST_F(ExtensionWatches, OfAPrefixBeginWithEveryKeySortedAndReportEveryChange) {
  using Kind = Change::Kind;
  Client writer(hub, Dialect::Modern);
  writer.tell(multi_set({{"p/b", "2"}, {"p/a", "1"}, {"q", "no"}, {"p", "no"}}));
  Client watcher(hub, Dialect::Extension);
  EXPECT_EQ(watcher.ask(with_id(7, watch_prefix("p/"))),
            ok(7) + change(7, Kind::Present, "p/a", "1") + change(7, Kind::Present, "p/b", "2"));
  writer.tell(multi_set({{"p/c", "3"}, {"p/a", "4"}, {"q", "5"}}));
  writer.ask(delete_key("p/b"));
  EXPECT_EQ(watcher.read(), change(7, Kind::Created, "p/c", "3") +
                                change(7, Kind::Updated, "p/a", "4") +
                                change(7, Kind::Deleted, "p/b", ""));
  Client nothing(hub, Dialect::Extension);
  EXPECT_EQ(nothing.ask(with_id(1, watch_prefix("none"))), ok(1));
}

TEST_F(ExtensionWatches, OfTheSameKeyAreToldOnceEach) {
  using Kind = Change::Kind;
  Client watcher(hub, Dialect::Extension);
  watcher.ask(with_id(1, watch_key("k")));
  watcher.ask(with_id(2, watch_key("k")));
  watcher.ask(with_id(3, watch_prefix("")));
  EXPECT_EQ(watcher.ask(with_id(4, set("k", "v"))), ok(4) + change(1, Kind::Created, "k", "v") +
                                                        change(2, Kind::Created, "k", "v") +
                                                        change(3, Kind::Created, "k", "v"));
}

TEST_F(ExtensionWatches, EndWhenTheyAreCancelled) {
  Client watcher(hub, Dialect::Extension);
  watcher.ask(with_id(1, watch_key("k")));
  watcher.ask(with_id(2, watch_prefix("k")));
  EXPECT_EQ(refusal(watcher.ask(cancel(1)), 1), ErrorKind::Cancelled);
  EXPECT_EQ(refusal(watcher.ask(cancel(2)), 2), ErrorKind::Cancelled);
  EXPECT_EQ(described(hub, "watching"), 0);
  EXPECT_EQ(watcher.ask(with_id(3, set("k", "v"))), ok(3));
  EXPECT_EQ(watcher.ask(cancel(1)), kNothing);
}

TEST_F(ExtensionWatches, RefuseAnIdThatIsInUse) {
  Client watcher(hub, Dialect::Extension);
  watcher.ask(with_id(1, watch_key("k")));
  EXPECT_EQ(refusal(watcher.ask(with_id(1, watch_key("other"))), 1), ErrorKind::Invalid);
  EXPECT_EQ(refusal(watcher.ask(with_id(1, watch_prefix(""))), 1), ErrorKind::Invalid);
  EXPECT_EQ(described(hub, "watching"), 1);
}

TEST(ExtensionWatch, OverTheLimitIsRefused) {
  HubOptions options;
  options.watches_per_session_max = 2;
  Hub hub(options);
  Client client(hub, Dialect::Extension);
  client.ask(with_id(1, watch_key("a")));
  client.ask(with_id(2, watch_prefix("b")));
  EXPECT_EQ(refusal(client.ask(with_id(3, watch_key("c"))), 3), ErrorKind::Unavailable);
  EXPECT_FALSE(client.closed());
  client.ask(cancel(2));
  EXPECT_EQ(client.ask(with_id(3, watch_key("c"))),
            ok(3) + change(3, Change::Kind::Absent, "c", ""));
}

// --- Namespaces ----------------------------------------------------------------------------------

TEST_F(Namespaces, DoNotSeeOneAnother) {
  Client outside(hub, Dialect::Extension);
  Client inside(hub, Dialect::Extension, "", "job");
  EXPECT_EQ(inside.peer().session().namespace_name(), "job");
  Client also_inside(hub, Dialect::Legacy, "job");
  inside.ask(with_id(1, set("k", "inside")));
  EXPECT_EQ(also_inside.ask(get("k")), blob("inside"));
  EXPECT_EQ(outside.ask(with_id(1, get("k"))), ok(1, kNoItem));
  outside.tell(with_id(2, wait({"new"})));
  outside.ask(with_id(3, watch_prefix("")));
  also_inside.tell(set("new", ""));
  EXPECT_EQ(outside.read(), kNothing);
  EXPECT_EQ(outside.ask(with_id(4, num_keys())), ok(4, number(0)));
  EXPECT_EQ(hub.namespaces(), (std::vector<std::string>{"", "job"}));
}

TEST_F(Namespaces, OutliveTheirUsersWhileTheyHoldSomething) {
  {
    Client client(hub, Dialect::Extension, "", "data");
    client.ask(with_id(1, queue_push("q", "item")));
    Client empty(hub, Dialect::Extension, "", "empty");
  }
  EXPECT_EQ(hub.namespaces(), (std::vector<std::string>{"data"}));
  {
    Client client(hub, Dialect::Extension, "", "data");
    EXPECT_EQ(client.ask(with_id(1, queue_pop("q"))), ok(1, item("item")));
  }
  EXPECT_EQ(hub.namespaces(), (std::vector<std::string>{}));
}

TEST_F(Namespaces, CloseTheirSessionsWhenTheyAreDropped) {
  Client admin(hub, Dialect::Extension);
  Client inside(hub, Dialect::Extension, "", "job");
  Client legacy(hub, Dialect::Legacy, "job");
  Client elsewhere(hub, Dialect::Extension, "", "other");
  inside.ask(with_id(1, set("k", "v")));
  inside.tell(with_id(2, wait({"never"})));
  legacy.ask(watch_key("k"));
  EXPECT_EQ(admin.ask(with_id(1, drop_namespace("job"))), ok(1, flag(true)));
  EXPECT_TRUE(inside.closed() && legacy.closed());
  EXPECT_FALSE(admin.closed() || elsewhere.closed());
  EXPECT_EQ(admin.ask(with_id(2, drop_namespace("job"))), ok(2, flag(false)));
  // A new namespace of that name has nothing of the old one, also while that lingers.
  Client later(hub, Dialect::Extension, "", "job");
  EXPECT_EQ(later.ask(with_id(1, num_keys())), ok(1, number(0)));
  inside.close();
  legacy.close();
  EXPECT_EQ(hub.memory_bytes(), 0U);
  EXPECT_EQ(described(hub, "waiting") + described(hub, "watching"), 0);
}

TEST_F(Namespaces, AreDroppedAlsoWhenNobodyUsesThem) {
  Client(hub, Dialect::Extension, "", "job").ask(with_id(1, set("k", "v")));
  EXPECT_GT(hub.memory_bytes(), 0U);
  EXPECT_TRUE(hub.drop_namespace("job"));
  EXPECT_FALSE(hub.drop_namespace("job"));
  EXPECT_EQ(hub.memory_bytes(), 0U);
}

TEST_F(Namespaces, CannotBeDroppedFromInside) {
  Client inside(hub, Dialect::Extension, "", "job");
  EXPECT_EQ(refusal(inside.ask(with_id(1, drop_namespace("job"))), 1), ErrorKind::Invalid);
  EXPECT_FALSE(inside.closed());
  EXPECT_EQ(hub.namespaces(), (std::vector<std::string>{"job"}));
}

TEST_F(Namespaces, HaveNamesOfAtMost255Bytes) {
  Client longest(hub, Dialect::Modern);
  const std::string at_limit(255, 'n');
  EXPECT_EQ(longest.ask(upgrade(1, at_limit)), "\x01\0\0\0"s);
  Client past(hub, Dialect::Modern);
  const std::string one_past(256, 'n');
  EXPECT_EQ(past.ask(upgrade(1, one_past)), kNothing);
  EXPECT_TRUE(past.closed());
}

TEST(Namespace, OverTheLimitIsRefused) {
  HubOptions options;
  options.namespaces_max = 2;
  Hub hub(options);
  Client first(hub, Dialect::Extension, "one");
  auto second = std::make_unique<Client>(hub, Dialect::Extension, "two");
  Client third(hub, Dialect::Modern, "one");
  EXPECT_EQ(third.ask(upgrade(1, "three")), kNothing);
  EXPECT_TRUE(third.closed());
  second.reset();
  Client fourth(hub, Dialect::Extension, "one", "three");
  EXPECT_EQ(hub.namespaces(), (std::vector<std::string>{"one", "three"}));

  class NoOwner final : public SessionOwner {
    void output_added() override {}
    void must_close(std::string) override {}
  } owner;
  const auto refused = hub.open(owner, "four");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::Unavailable);
  EXPECT_TRUE(hub.open(owner, "three").has_value());
}

TEST_F(Namespaces, AreLeftWithoutTheWaitOfTheTimeBefore) {
  Client client(hub, Dialect::Modern);
  client.tell(wait({"k"}));
  EXPECT_EQ(client.ask(upgrade(1, "job")), "\x01\0\0\0"s);
  Client writer(hub, Dialect::Modern);
  writer.tell(set("k", ""));
  EXPECT_EQ(client.read(), kNothing);
  EXPECT_EQ(described(hub, "waiting"), 0);
}

// The item that the leaving client had been woken for goes to the next, whose pop must be counted
// in the namespace it happens in.
TEST_F(Namespaces, AreLeftWithTheMemoryCounted) {
  Client leaving(hub, Dialect::Modern);
  leaving.tell(wait({"q"}));
  Client popper(hub, Dialect::Extension);
  popper.tell(with_id(1, blocking(queue_pop("q"))));
  Client pusher(hub, Dialect::Modern);
  pusher.tell(queue_push("q", "item"));
  leaving.tell(upgrade(1, "job"));
  EXPECT_EQ(popper.read(), ok(1, item("item")));
  EXPECT_EQ(hub.memory_bytes(), 0U);
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
