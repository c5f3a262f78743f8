// Waits, barriers and watches of PyTorch's dialects in the Hub.
#include "muster/store/hub.h"
#include "tests/fuzz/hub_client.h"
#include "tests/fuzz/requests.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster::store {
namespace {

using namespace std::string_literals;
using namespace tests;
using namespace tests::hub;

// Suites are named after what they are about.
class Waits : public HubTest {};
class LegacyWaits : public HubTest {};
class ModernWaits : public HubTest {};
class Barriers : public HubTest {};
class LegacyWatches : public HubTest {};

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

}  // namespace
}  // namespace muster::store
