#include "muster/store/plain_store.h"

#include "tests/net/talker.h"
#include "tests/server/tcp_store_base.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::store::testing {
namespace {

using tests::Talker;

class PlainStoreTest : public TcpStoreBase, public ::testing::TestWithParam<Dialect> {
 protected:
  PlainStoreTest() { store = connect_to(client_host, GetParam(), default_options()); }
  static constexpr int kConnectionsMax = 64;         // of one store
  static constexpr int kWaitingConnectionsMax = 56;  // of these, for waits
};
using PlainStore = PlainStoreTest;
INSTANTIATE_TEST_SUITE_P(Dialect, PlainStore, ::testing::Values(Dialect::Modern, Dialect::Legacy),
                         dialect_name);

TEST_P(PlainStore, WritesThoughAsManyWaitAsConnectionsAreAllowed) {
  std::vector<std::unique_ptr<Call<std::string>>> waiting;
  for (int index = 0; index < kConnectionsMax + 20; ++index) {
    waiting.push_back(begin(store->get("k", kNever)));
  }
  loop.advance(1s);
  EXPECT_LE(server->connection_count(), static_cast<std::size_t>(kConnectionsMax) + 1);
  // The write that they all wait for comes from here.
  ASSERT_TRUE(await(store->set("k", "v")));
  for (const auto& call : waiting) EXPECT_TRUE(gives(finish(*call), "v"));
}

TEST_P(PlainStore, EndsAWaitAtItsDeadlineThoughNoConnectionWasFree) {
  std::vector<std::unique_ptr<Call<std::string>>> waiting;
  for (int index = 0; index < kConnectionsMax; ++index) {
    waiting.push_back(begin(store->get("never", kNever)));
  }
  loop.advance(1s);
  const TimePoint start = loop.now();
  const auto result = await(store->get("k", start + 2s));
  expect_error(result, ErrorKind::Unavailable,
               "connections to the store at server:4400 are in use");
  EXPECT_EQ(loop.now() - start, 2s);
}

TEST_P(PlainStore, PassesAConnectionOnWhenTheOneWhoseTurnItWasIsDestroyed) {
  std::vector<std::unique_ptr<Call<std::string>>> waiting;
  for (int index = 0; index < kWaitingConnectionsMax; ++index) {
    waiting.push_back(begin(store->get("never", kNever)));
  }
  loop.advance(1s);
  auto first = begin(store->get("k", kNever));
  const auto second = begin(store->get("k", kNever));
  ASSERT_TRUE(await(writer->set("k", "v")));
  loop.advance(1s);
  waiting.back().reset();  // its connection is free, and `first` is told...
  first.reset();           // ... and is gone before it could take it
  EXPECT_TRUE(gives(finish(*second), "v"));
}

TEST_P(PlainStore, LeavesNobodyBehindWhenTheServerDoesNotComeBack) {
  TcpStoreOptions options = default_options();
  options.connect_timeout = 10s;
  store = connect_to(client_host, GetParam(), options);
  stop_server();
  std::vector<std::unique_ptr<Call<std::string>>> waiting;
  for (int index = 0; index < 3 * kConnectionsMax; ++index) {
    waiting.push_back(begin(store->get("k", kNever)));
  }
  loop.advance(2min);
  for (const auto& call : waiting) {
    ASSERT_TRUE(call->done());
    EXPECT_EQ(call->result().error().kind, ErrorKind::Unavailable);
  }
}

TEST_P(PlainStore, WatchesAKeyByAsking) {
  const auto call = begin(store->watch("k", Store::WatchScope::Key));
  auto watch = finish(*call);
  ASSERT_TRUE(watch) << watch.error().message;
  using Kind = Change::Kind;
  const auto expect_change = [&](const Change& expected) {
    EXPECT_TRUE(gives(await((*watch)->next(loop.now() + 1h)), expected));
  };
  expect_change({Kind::Absent, "k", ""});
  ASSERT_TRUE(await(writer->set("k", "1")));
  expect_change({Kind::Created, "k", "1"});
  ASSERT_TRUE(await(writer->set("k", "2")));
  expect_change({Kind::Updated, "k", "2"});
  network.reset_all(client_host);
  ASSERT_TRUE(await(writer->delete_key("k")));
  expect_change({Kind::Deleted, "k", ""});
  expect_error(await((*watch)->next(loop.now() + 1s)), ErrorKind::Timeout, "no change of \"k\"");
  ASSERT_TRUE(await(writer->set("k", "3")));
  expect_change({Kind::Created, "k", "3"});
}

TEST_P(PlainStore, WatchesAPrefixByAskingIfTheServerCanListKeys) {
  if (GetParam() == Dialect::Legacy)
    GTEST_SKIP() << "not applicable: PyTorch 1.13 cannot list keys";
  ASSERT_TRUE(await(writer->set("n/a", "1")));
  auto watch = await(store->watch("n/", Store::WatchScope::Prefix));
  ASSERT_TRUE(watch) << watch.error().message;
  using Kind = Change::Kind;
  const auto expect_change = [&](const Change& expected) {
    EXPECT_TRUE(gives(await((*watch)->next(loop.now() + 1h)), expected));
  };
  expect_change({Kind::Present, "n/a", "1"});
  ASSERT_TRUE(await(writer->set("n/b", "2")));
  expect_change({Kind::Created, "n/b", "2"});
  ASSERT_TRUE(await(writer->delete_key("n/a")));
  expect_change({Kind::Deleted, "n/a", ""});
}

TEST_P(PlainStore, CallsAnAdditionUncertainWhenTheConnectionBrokeThoughTheValueIsATextNow) {
  // It must not conclude from the text that nothing was added: the reset came first.
  for (const Duration moment : moments()) {
    ASSERT_TRUE(await(store->ping()));  // so that the addition is sent at once
    ASSERT_TRUE(await(writer->set("n", "5")));
    const auto add = begin(store->add("n", 1));
    loop.advance(moment);
    network.reset_all(client_host);
    ASSERT_TRUE(await(writer->set("n", "text")));
    const auto added = finish(*add);
    if (!added && added.error().kind == ErrorKind::Invalid) {
      ADD_FAILURE() << "after " << describe(moment) << ": " << added.error().message;
    }
  }
}

TEST_P(PlainStore, DoesNotAskForEverWhenTheServerClosesEveryWait) {
  // A server that hands out connections and ends each one at its first wait.
  std::vector<std::unique_ptr<Talker>> talkers;
  const auto listener =
      server_host.listen({"server", 81}, [&](std::unique_ptr<net::Stream> stream) {
        talkers.push_back(std::make_unique<Talker>(std::move(stream)));
      });
  ASSERT_TRUE(listener);
  std::size_t ended_count = 0;
  std::vector<std::size_t> answered(1000, 0);
  const auto serve = [&] {
    for (std::size_t index = 0; index < talkers.size(); ++index) {
      const std::string& received = talkers[index]->received();
      if (received.size() == answered[index]) continue;
      answered[index] = received.size();
      if (GetParam() == Dialect::Modern && received == wire::kProbe) {
        talkers[index]->send(std::string(wire::kProbeReplyBytes, '\0'));
      } else if (received[0] == '\xff') {
        talkers[index]->shutdown_write();
      } else if (received.find("muster/extension/1", 0) == std::string::npos &&
                 received.find("?uster/extension/1") == std::string::npos) {
        ++ended_count;
        talkers[index]->shutdown_write();
      } else if (received.size() < 50) {
        talkers[index]->send("\x01");
      } else {
        ++ended_count;
        talkers[index]->shutdown_write();
      }
    }
  };
  TcpStoreOptions options = default_options();
  options.endpoint.port = 81;
  options.reply_timeout = 20s;
  transports.push_back(std::make_unique<DialectTransport>(client_host, GetParam()));
  std::optional<ConnectedStore> connected;
  {
    TaskScope scope;
    scope.start(keep(connect_tcp_store(client_host.loop(), *transports.back(), random, options),
                     connected));
    ASSERT_TRUE(loop.run_until(
        [&] {
          serve();
          return connected.has_value();
        },
        loop.now() + 1min));
  }
  ASSERT_TRUE(*connected) << (*connected).error().message;
  {
    const TimePoint start = loop.now();
    Call<std::string> get((**connected)->get("k", start + 10s));
    EXPECT_TRUE(loop.run_until(
        [&] {
          serve();
          return get.done() || talkers.size() > 900;
        },
        start + 1min));
    ASSERT_TRUE(get.done());
    EXPECT_FALSE(get.result());
    EXPECT_LE(loop.now() - start, 11s);
    EXPECT_LT(ended_count, 200U);
  }
  (*connected)->reset();
}

}  // namespace
}  // namespace muster::store::testing
