#include "muster/backends/hosted_store.h"

#include "muster/sim/loop.h"
#include "muster/sim/network.h"
#include "muster/store/tcp_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

namespace muster::backends {
namespace {

using namespace std::chrono_literals;

class HostedStoreTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<store::TcpStore>> connect(int port) {
    store::TcpStoreOptions options;
    options.endpoint = {"host", port};
    options.connect_timeout = 2s;
    return loop.block_on(
        store::connect_tcp_store(loop, network.host("client"), random, std::move(options)));
  }

  sim::Loop loop;
  Random random{1};
  sim::Network network{loop, random};
  sim::Host& host = network.host("host");
};

TEST_F(HostedStoreTest, ServesClientsOnThePortThatItWasGiven) {
  const auto store = HostedStore::start(loop, random, host, {"", 7000});
  ASSERT_TRUE(store);
  EXPECT_EQ((*store)->port(), 7000);
  auto client = connect(7000);
  ASSERT_TRUE(client);
  EXPECT_TRUE(loop.block_on((*client)->set("key", "value")));
  EXPECT_EQ((*store)->server().connection_count(), 1U);
}
TEST_F(HostedStoreTest, FindsAPortByItself) {
  const auto one = HostedStore::start(loop, random, host, {});
  const auto two = HostedStore::start(loop, random, host, {});
  ASSERT_TRUE(one && two);
  EXPECT_NE((*one)->port(), (*two)->port());
  EXPECT_TRUE(connect((*two)->port()));
}
TEST_F(HostedStoreTest, SaysThatAPortIsTaken) {
  const auto one = HostedStore::start(loop, random, host, {"", 7000});
  const auto two = HostedStore::start(loop, random, host, {"", 7000});
  ASSERT_TRUE(one);
  ASSERT_FALSE(two);
  EXPECT_FALSE(two.error().message.empty());
}
TEST_F(HostedStoreTest, HostsRendezvous) {
  const auto store = HostedStore::start(loop, random, host, {"", 7000});
  ASSERT_TRUE(store);
  auto client = connect(7000);
  ASSERT_TRUE(client);
  EXPECT_NE((*client)->services(), nullptr);
}
TEST_F(HostedStoreTest, SaysWhatItIs) {
  const auto store = HostedStore::start(loop, random, host, {"", 7000});
  ASSERT_TRUE(store);
  auto client = connect(7000);
  ASSERT_TRUE(client);
  const auto info = loop.block_on((*client)->info());
  ASSERT_TRUE(info);
  const auto server =
      std::ranges::find(*info, "server", [](const auto& line) { return line.first; });
  ASSERT_NE(server, info->end());
  EXPECT_EQ(server->second, "muster");
}
TEST_F(HostedStoreTest, IsGoneWithItsOwner) {
  auto store = HostedStore::start(loop, random, host, {"", 7000});
  ASSERT_TRUE(store);
  auto client = connect(7000);
  ASSERT_TRUE(client);
  store->reset();
  EXPECT_FALSE(connect(7000));
  EXPECT_TRUE(HostedStore::start(loop, random, host, {"", 7000}));
}

}  // namespace
}  // namespace muster::backends
