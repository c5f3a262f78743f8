// The timeout of calls that give none: said at `init`, asked for and changed later.
#include "muster/rpc/call.h"
#include "muster/worker/worker.h"
#include "tests/rpc/store_host.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::StoreHost;

// Answers never, and holds no thread.
const Procedure<void()> kSilent("worker timeout test, never");

class WorkerTimeout : public ::testing::Test {
 protected:
  void SetUp() override {
    static const bool kDefined = [] {
      static const auto* const kPromise = new Promise<void>;
      return define(kSilent, [] { return kPromise->future(); }).has_value();
    }();
    ASSERT_TRUE(kDefined);
  }
  Result<> start(Duration timeout) {
    InitOptions options;
    options.rank = 0;
    options.world_size = 1;
    options.timeout = timeout;
    options.start_timeout = 60s;
    options.store = "127.0.0.1:" + std::to_string(store_.port());
    return init(options);
  }
  void TearDown() override {
    if (is_running()) (void)shutdown({.graceful = false});
  }

  StoreHost store_;
};

std::string text_of_timeout(const std::string& length) {
  return "RPC ran for more than set timeout (" + length +
         " ms) and will now be marked with an error";
}

TEST_F(WorkerTimeout, IsWhatInitWasGiven) {
  ASSERT_TRUE(start(5s));
  EXPECT_EQ(timeout(), 5s);
}

TEST_F(WorkerTimeout, IsAtLeastOneMillisecondHoweverLittleInitWasGiven) {
  ASSERT_TRUE(start(1us));
  EXPECT_EQ(timeout(), 1ms);
  const auto outcome = call("worker0", kSilent);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout);
  EXPECT_EQ(outcome.error().message, text_of_timeout("1"));
}

TEST_F(WorkerTimeout, IsRefusedByInitIfItIsNegative) {
  const auto started = start(-1ns);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().kind, ErrorKind::Invalid);
  EXPECT_EQ(started.error().message, "RPC Timeout must be non-negative, got -1e-09");
}

TEST_F(WorkerTimeout, OfCallsThatAreMadeAfterwardsCanBeChanged) {
  ASSERT_TRUE(start(60s));
  const auto before = async("worker0", kSilent);
  ASSERT_TRUE(set_timeout(3ms));
  EXPECT_EQ(timeout(), 3ms);
  const auto outcome = call("worker0", kSilent);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().message, text_of_timeout("3"));
  EXPECT_FALSE(before.done()) << "it has the time it was given";
  ASSERT_TRUE(shutdown({.graceful = false}));
  EXPECT_FALSE(before.wait());
}

TEST_F(WorkerTimeout, IsRoundedAsThatOfACall) {
  ASSERT_TRUE(start(60s));
  ASSERT_TRUE(set_timeout(1ns));
  EXPECT_EQ(timeout(), 1ms);
  ASSERT_TRUE(set_timeout(1999us));
  EXPECT_EQ(timeout(), 1ms);
  ASSERT_TRUE(set_timeout(0s));
  EXPECT_EQ(timeout(), 0s);
  ASSERT_TRUE(set_timeout(Duration::max()));
  EXPECT_EQ(timeout(), 0s) << "longer than anybody waits is for ever";
}

TEST_F(WorkerTimeout, IsRefusedIfItIsNegative) {
  ASSERT_TRUE(start(60s));
  for (const Duration wrong : {Duration(-1), Duration(-1s), Duration::min()}) {
    const auto set = set_timeout(wrong);
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().kind, CallErrorKind::Rejected);
    EXPECT_TRUE(set.error().message.starts_with("RPC Timeout must be non-negative, got -"));
  }
  EXPECT_EQ(timeout(), 60s);
}

TEST_F(WorkerTimeout, IsNothingWithoutRpc) {
  EXPECT_THROW((void)timeout(), CallException);
  const auto set = set_timeout(1s);
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().kind, CallErrorKind::Rejected);
  EXPECT_NE(set.error().message.find("RPC has not been initialized"), std::string::npos);
}

}  // namespace
}  // namespace muster::rpc
