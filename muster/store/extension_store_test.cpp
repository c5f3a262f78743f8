#include "muster/store/extension_store.h"

#include "tests/server/tcp_store_base.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::store::testing {
namespace {

class ExtensionStoreTest : public TcpStoreBase, public ::testing::Test {
 protected:
  ExtensionStoreTest() { store = connect_to(client_host, Dialect::Extension, default_options()); }

  std::unique_ptr<Watch> watch(const std::string& key, Store::WatchScope scope) {
    auto watch = await(store->watch(key, scope));
    EXPECT_TRUE(watch) << watch.error().message;
    return watch ? std::move(*watch) : nullptr;
  }
  void expect_change(Watch& watch, const Change& expected) {
    EXPECT_TRUE(gives(await(watch.next(loop.now() + 1h)), expected));
  }
};
using ExtensionStore = ExtensionStoreTest;
using Kind = Change::Kind;

TEST_F(ExtensionStore, SendsManyRequestsOverOneConnectionWithoutWaitingForAnswers) {
  const std::size_t connections = server->connection_count();
  std::vector<std::unique_ptr<Call<std::int64_t>>> calls;
  const TimePoint start = loop.now();
  for (int index = 0; index < 1000; ++index) calls.push_back(begin(store->add("n", 1)));
  for (std::size_t index = 0; index < calls.size(); ++index) {
    EXPECT_TRUE(gives(finish(*calls[index]), static_cast<std::int64_t>(index + 1)));
  }
  EXPECT_LE(loop.now() - start, 1ms);  // two latencies, not two thousand
  EXPECT_EQ(server->connection_count(), connections);
}

TEST_F(ExtensionStore, SendsARequestBehindOneThatIsStillOnTheWayAfterALoss) {
  sim::Weather weather;
  weather.window_bytes = 10'000;
  network.set_weather(weather);
  network.pause(server_host);
  // The first fills the window, so the second waits behind it and is never sent.
  const auto set = begin(store->set("k", std::string(100'000, 'v')));
  const auto add = begin(store->add("n", 1));
  loop.advance(1s);
  network.reset_all(client_host);
  network.resume(server_host);
  expect_error(finish(*set), ErrorKind::Closed, "may or may not");
  EXPECT_TRUE(gives(finish(*add), 1));
}

TEST_F(ExtensionStore, SaysThatAPopAndABarrierAreUncertainWhenTheyWereWaiting) {
  const auto pop = begin(store->queue_pop("q", kNever));
  const auto barrier = begin(store->barrier("b", 2, kNever));
  settle();
  network.reset_all(client_host);
  expect_error(finish(*pop), ErrorKind::Closed, "QUEUE_POP of queue \"q\"");
  expect_error(finish(*barrier), ErrorKind::Closed, "may or may not");
}

TEST_F(ExtensionStore, BeginsAWatchAgainWithThePresentValueAfterALoss) {
  ASSERT_TRUE(await(writer->set("k", "1")));
  const auto changes = watch("k", Store::WatchScope::Key);
  expect_change(*changes, {Kind::Present, "k", "1"});
  network.reset_all(client_host);
  ASSERT_TRUE(await(writer->set("k", "2")));
  ASSERT_TRUE(await(writer->set("k", "3")));
  expect_change(*changes, {Kind::Present, "k", "3"});
  ASSERT_TRUE(await(writer->set("k", "4")));
  expect_change(*changes, {Kind::Updated, "k", "4"});
}

TEST_F(ExtensionStore, BeginsAWatchAgainWithAbsentAfterTheServerWasStartedAgain) {
  ASSERT_TRUE(await(writer->set("k", "1")));
  const auto changes = watch("k", Store::WatchScope::Key);
  expect_change(*changes, {Kind::Present, "k", "1"});
  const auto next = begin(changes->next(kNever));
  stop_server();
  loop.advance(20s);
  EXPECT_FALSE(next->done());
  start_server();
  EXPECT_TRUE(gives(finish(*next), Change{Kind::Absent, "k", ""}));
  ASSERT_TRUE(await(writer->set("k", "2")));
  expect_change(*changes, {Kind::Created, "k", "2"});
}

TEST_F(ExtensionStore, BeginsAPrefixWatchAgainWithWhatIsThere) {
  ASSERT_TRUE(await(writer->set("n/a", "1")));
  const auto changes = watch("n/", Store::WatchScope::Prefix);
  expect_change(*changes, {Kind::Present, "n/a", "1"});
  network.reset_all(client_host);
  ASSERT_TRUE(await(writer->set("n/b", "2")));
  expect_change(*changes, {Kind::Present, "n/a", "1"});
  expect_change(*changes, {Kind::Present, "n/b", "2"});
}

TEST_F(ExtensionStore, ReportsTheStateOnceThoughTheConnectionBreaksOften) {
  ASSERT_TRUE(await(writer->set("n/a", "1")));
  const auto changes = watch("n/", Store::WatchScope::Prefix);
  for (int count = 0; count < 5; ++count) {
    settle();
    network.reset_all(client_host);
    loop.advance(1s);
  }
  expect_change(*changes, {Kind::Present, "n/a", "1"});
  expect_error(await(changes->next(loop.now() + 1s)), ErrorKind::Timeout, "no change");
}

TEST_F(ExtensionStore, LosesNoItemWhenAPopTimesOut) {
  for (const Duration moment : moments()) {
    const auto pop = begin(store->queue_pop("q", loop.now() + moment + 300us));
    const auto push = begin(writer->queue_push("q", "item"));
    const auto popped = finish(*pop);
    ASSERT_TRUE(finish(*push));
    const auto left = await(writer->try_queue_pop("q"));
    ASSERT_TRUE(left) << left.error().message;
    if (popped) {
      EXPECT_EQ(*popped, "item");
      EXPECT_FALSE(*left) << describe(moment);
    } else {
      expect_error(popped, ErrorKind::Timeout, "queue \"q\"");
      EXPECT_EQ(*left, "item") << describe(moment);
    }
  }
}

TEST_F(ExtensionStore, LosesNoItemWhenAPopIsDestroyed) {
  for (const Duration moment : moments()) {
    auto pop = begin(store->queue_pop("q", kNever));
    auto look = begin(store->try_queue_pop("q"));
    const auto push = begin(writer->queue_push("q", "item"));
    loop.advance(moment);
    const bool popped = pop->done() || (look->done() && look->result() && *look->result());
    pop.reset();
    look.reset();
    ASSERT_TRUE(finish(*push));
    settle();
    const auto left = await(writer->try_queue_pop("q"));
    ASSERT_TRUE(left) << left.error().message;
    EXPECT_EQ(left->has_value(), !popped) << describe(moment);
  }
  EXPECT_EQ(server_says("waiting"), "0");
}

TEST_F(ExtensionStore, LosesNoItemWhenAPopIsDestroyedInTheTurnInWhichItsItemCame) {
  auto pop = begin(store->queue_pop("q", kNever));
  settle();
  ASSERT_TRUE(await(writer->queue_push("q", "item")));
  // Destroyed by somebody who runs before it does: the loop is looked at after every turn.
  bool arrived = false;
  ASSERT_TRUE(loop.run_until(
      [&] {
        arrived = arrived || server_says("waiting") == "0";
        return arrived;
      },
      loop.now() + 1s));
  pop.reset();
  settle();
  EXPECT_TRUE(gives(await(writer->try_queue_pop("q")), "item"));
}

TEST_F(ExtensionStore, StartsAWatchThoughTheConnectionBreaksMeanwhile) {
  for (const Duration moment : moments()) {
    const auto call = begin(store->watch("k", Store::WatchScope::Key));
    loop.advance(moment);
    network.reset_all(client_host);
    auto watch = finish(*call);
    ASSERT_TRUE(watch) << watch.error().message;
    expect_change(**watch, {Kind::Absent, "k", ""});
  }
  settle();
  EXPECT_EQ(server_says("watching"), "0");  // all of them were destroyed
}

TEST_F(ExtensionStore, EndsAWatchWhenTheServerDoesNotComeBackAndLeavesItEnded) {
  TcpStoreOptions options = default_options();
  options.connect_timeout = 10s;
  store = connect_to(client_host, Dialect::Extension, options);
  const auto changes = watch("k", Store::WatchScope::Key);
  expect_change(*changes, {Kind::Absent, "k", ""});
  stop_server();
  expect_error(await(changes->next(kNever)), ErrorKind::Unavailable, "server:4400");
  start_server();
  ASSERT_TRUE(await(store->set("k", "v")));
  settle();
  expect_error(await(changes->next(loop.now() + 1s)), ErrorKind::Unavailable, "server:4400");
  EXPECT_EQ(server_says("watching"), "0");
}

TEST_F(ExtensionStore, EndsAWatchThatFallsTooFarBehindAfterWhatItHadSeen) {
  const auto changes = watch("k", Store::WatchScope::Key);
  std::vector<KeyValue> pairs;
  for (std::size_t index = 0; index <= kWatchChangesMax; ++index) {
    pairs.push_back({"k", std::to_string(index)});
  }
  ASSERT_TRUE(await(writer->multi_set(pairs)));
  loop.advance(1s);
  EXPECT_EQ(server_says("watching"), "0");
  expect_change(*changes, {Kind::Absent, "k", ""});
  expect_change(*changes, {Kind::Created, "k", "0"});
  for (std::size_t index = 1; index < kWatchChangesMax; ++index) {
    expect_change(*changes, {Kind::Updated, "k", std::to_string(index)});
  }
  expect_error(await(changes->next(loop.now() + 1s)), ErrorKind::Unavailable,
               fmt::format("fell more than {} changes behind", kWatchChangesMax));
  const auto again = watch("k", Store::WatchScope::Key);
  expect_change(*again, {Kind::Present, "k", std::to_string(kWatchChangesMax)});
}

TEST_F(ExtensionStore, KeepsAWatchThatIsAsFarBehindAsAllowed) {
  const auto changes = watch("k", Store::WatchScope::Key);
  std::vector<KeyValue> pairs;
  for (std::size_t index = 0; index < kWatchChangesMax; ++index) {
    pairs.push_back({"k", std::to_string(index)});
  }
  ASSERT_TRUE(await(writer->multi_set(pairs)));
  loop.advance(1s);
  expect_change(*changes, {Kind::Absent, "k", ""});
  expect_change(*changes, {Kind::Created, "k", "0"});
  ASSERT_TRUE(await(writer->set("k", "one more")));
  loop.advance(1s);
  for (std::size_t index = 1; index < kWatchChangesMax; ++index) {
    expect_change(*changes, {Kind::Updated, "k", std::to_string(index)});
  }
  expect_change(*changes, {Kind::Updated, "k", "one more"});
}

TEST_F(ExtensionStore, WatchesAPrefixWithMoreKeysThanChangesMayBePending) {
  const std::size_t key_count = kWatchChangesMax + 100;
  std::vector<KeyValue> pairs;
  for (std::size_t index = 0; index < key_count; ++index) {
    pairs.push_back({fmt::format("node/{:05}", index), "x"});
  }
  ASSERT_TRUE(await(writer->multi_set(pairs)));
  const auto changes = watch("node/", Store::WatchScope::Prefix);
  loop.advance(1s);
  ASSERT_TRUE(await(writer->set("node/new", "y")));
  loop.advance(1s);
  for (const KeyValue& pair : pairs) expect_change(*changes, {Kind::Present, pair.key, "x"});
  expect_change(*changes, {Kind::Created, "node/new", "y"});
}

TEST_F(ExtensionStore, AsksWithoutWaitingWhenTheDeadlineHasPassed) {
  const TimePoint past = loop.now() - 1s;
  ASSERT_TRUE(await(writer->set("k", "v")));
  ASSERT_TRUE(await(writer->queue_push("q", "item")));
  EXPECT_TRUE(gives(await(store->get("k", past)), "v"));
  EXPECT_TRUE(gives(await(store->queue_pop("q", past)), "item"));
  EXPECT_TRUE(await(store->wait({"k"}, past)));
  expect_error(await(store->get("absent", past)), ErrorKind::Timeout, "key \"absent\"");
  expect_error(await(store->queue_pop("q", past)), ErrorKind::Timeout, "queue \"q\"");
  expect_error(await(store->wait({"absent"}, past)), ErrorKind::Timeout, "key \"absent\"");
  expect_error(await(store->multi_get({"k", "absent"}, past)), ErrorKind::Timeout, "\"absent\"");
  EXPECT_EQ(server_says("waiting"), "0");
}

TEST_F(ExtensionStore, KeepsNamespacesApart) {
  TcpStoreOptions options = default_options();
  options.namespace_name = "job-1";
  const auto first = connect_to(client_host, Dialect::Extension, options);
  options.namespace_name = "job-2";
  const auto second = connect_to(client_host, Dialect::Extension, options);
  ASSERT_TRUE(await(first->set("k", "1")));
  ASSERT_TRUE(await(second->set("k", "2")));
  EXPECT_TRUE(gives(await(first->try_get("k")), "1"));
  EXPECT_TRUE(gives(await(second->try_get("k")), "2"));
  EXPECT_TRUE(gives(await(store->try_get("k")), std::nullopt));
  // And after a loss it is still there.
  network.reset_all(client_host);
  EXPECT_TRUE(gives(await(first->try_get("k")), "1"));
}

TEST_F(ExtensionStore, DropsANamespaceAndTheConnectionsInIt) {
  TcpStoreOptions options = default_options();
  options.namespace_name = "job-1";
  const auto inside = connect_to(client_host, Dialect::Extension, options);
  ASSERT_TRUE(await(inside->set("k", "1")));
  expect_error(await(inside->drop_namespace("job-1")), ErrorKind::Invalid, "from inside");
  EXPECT_TRUE(gives(await(store->drop_namespace("job-1")), true));
  EXPECT_TRUE(gives(await(store->drop_namespace("job-1")), false));
  // Whoever comes back finds a new one.
  EXPECT_TRUE(gives(await(inside->try_get("k")), std::nullopt));
}

TEST_F(ExtensionStore, DescribesTheServer) {
  server->hub().set_description({{"server", "muster"}});
  ASSERT_TRUE(await(store->set("k", "v")));
  const auto info = await(store->info());
  ASSERT_TRUE(info) << info.error().message;
  ASSERT_FALSE(info->empty());
  EXPECT_EQ(info->front(), (std::pair<std::string, std::string>{"server", "muster"}));
  EXPECT_NE(std::find(info->begin(), info->end(),
                      (std::pair<std::string, std::string>{"connections", "2"})),
            info->end());
}

TEST_F(ExtensionStore, WarnsOnceWhenTheServerStaysOutOfReach) {
  writer.reset();  // it would have its own say
  const std::size_t before = log.warnings().size();
  stop_server();
  loop.advance(1s);
  EXPECT_EQ(log.warnings().size(), before);
  loop.advance(10s);
  ASSERT_EQ(log.warnings().size(), before + 1);
  EXPECT_NE(log.warnings().back().find("server:4400 has been out of reach"), std::string::npos);
}

}  // namespace
}  // namespace muster::store::testing
