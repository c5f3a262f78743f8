#include "muster/rendezvous/store_info.h"

#include "muster/sim/loop.h"
#include "muster/store/memory_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;

Result<int> no_port() { return fail(ErrorKind::Unavailable, "no port is free"); }
Result<int> port_4711() { return 4711; }

StoreInfoOffer offer(std::string local_addr, int server_port) {
  return {.local_addr = std::move(local_addr),
          .host_name = "node-1.example.com",
          .server_port = server_port,
          .free_port = no_port};
}

Task<void> keep(Task<Result<StoreInfo>> task, std::optional<Result<StoreInfo>>& result) {
  result.emplace(co_await task);
}

class StoreInfoTest : public testing::Test {
 protected:
  Result<StoreInfo> build(std::int64_t rank, StoreInfoOffer own) {
    return loop_.block_on(build_store_info(rank, *store_, std::move(own), loop_.now() + 10s));
  }
  std::string stored(std::string key) {
    const auto value = loop_.block_on(store_->try_get(std::move(key)));
    return value && *value ? **value : "(absent)";
  }

  sim::Loop loop_;
  std::unique_ptr<store::Store> store_ = store::make_memory_store(loop_);
};

// Row 107, as far as it is about what is published.
TEST_F(StoreInfoTest, IsRankZerosLocalAddressAndServerPort) {
  const auto info = build(0, offer("127.0.0.2", 29501));
  ASSERT_TRUE(info);
  EXPECT_EQ(*info, (StoreInfo{"127.0.0.2", 29501}));
  EXPECT_EQ(stored("MASTER_ADDR"), "127.0.0.2");
  EXPECT_EQ(stored("MASTER_PORT"), "29501");
}

TEST_F(StoreInfoTest, HasTheMachinesNameWhereThereIsNoLocalAddress) {
  EXPECT_EQ(*build(0, offer("", 29501)), (StoreInfo{"node-1.example.com", 29501}));
}

TEST_F(StoreInfoTest, HasAFreePortWhereThereIsNoServer) {
  StoreInfoOffer own = offer("a", 0);
  own.free_port = port_4711;
  EXPECT_EQ(*build(0, std::move(own)), (StoreInfo{"a", 4711}));
}

TEST_F(StoreInfoTest, WritesNothingWhenNoPortCanBeHad) {
  EXPECT_EQ(build(0, offer("a", 0)).error().kind, ErrorKind::Unavailable);
  StoreInfoOffer own = offer("a", 0);
  own.free_port = nullptr;
  EXPECT_EQ(build(0, std::move(own)).error().kind, ErrorKind::Invalid);
  EXPECT_EQ(*loop_.block_on(store_->num_keys()), 0);
}

TEST_F(StoreInfoTest, ReachesTheOthersWhoWaitForIt) {
  std::optional<Result<StoreInfo>> second;
  TaskScope scope;
  scope.start(keep(build_store_info(1, *store_, offer("own", 1), loop_.now() + 10s), second));
  loop_.advance(5s);
  EXPECT_FALSE(second);
  const auto first = build(0, offer("127.0.0.2", 29501));
  loop_.run_until_idle();
  ASSERT_TRUE(first && second && *second);
  EXPECT_EQ(**second, *first);
}

TEST_F(StoreInfoTest, TimesOutWhenRankZeroDoesNotWrite) {
  const auto info = build(1, offer("own", 1));
  ASSERT_FALSE(info);
  EXPECT_EQ(info.error().kind, ErrorKind::Timeout);
  EXPECT_EQ(loop_.now(), TimePoint(10s));
}

TEST_F(StoreInfoTest, IsCorruptWhenThePortIsNone) {
  for (const char* port : {"", "x", "70000", "-1", "5 "}) {
    ASSERT_TRUE(loop_.block_on(store_->set("MASTER_ADDR", "a")));
    ASSERT_TRUE(loop_.block_on(store_->set("MASTER_PORT", port)));
    const auto info = build(1, offer("own", 1));
    ASSERT_FALSE(info) << port;
    EXPECT_EQ(info.error().kind, ErrorKind::Corrupt) << port;
  }
}

}  // namespace
}  // namespace muster::rendezvous
