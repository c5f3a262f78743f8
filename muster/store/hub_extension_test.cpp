// The extension in the Hub, and namespaces.
#include "muster/store/hub.h"
#include "tests/fuzz/hub_client.h"
#include "tests/fuzz/requests.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace muster::store {
namespace {

using namespace std::string_literals;
using namespace tests;
using namespace tests::hub;

// Suites are named after what they are about.
class Extension : public HubTest {};
class ExtensionWaits : public HubTest {};
class ExtensionWatches : public HubTest {};
class Namespaces : public HubTest {};

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

}  // namespace
}  // namespace muster::store
