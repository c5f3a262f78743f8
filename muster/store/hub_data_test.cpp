// What the Hub does with keys, counters and queues.
#include "muster/store/hub.h"
#include "tests/fuzz/hub_client.h"
#include "tests/fuzz/requests.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace muster::store {
namespace {

using namespace tests;
using namespace tests::hub;

// Suites are named after what they are about.
class Writes : public HubTest {};
class Counters : public HubTest {};
class Queues : public HubTest {};

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

}  // namespace
}  // namespace muster::store
