// Memory of the program that calls refer to: nobody looks at what was lent once the program knows
// that the call is over, and whatever happens when it is destroyed happens without a lock.
#include "muster/rpc/network_agent.h"
#include "tests/rpc/cluster.h"
#include "tests/rpc/raw_peer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::RawConnection;
using testing::RawPeer;
using testing::StoreHost;
using testing::Worker;

constexpr Duration kPatience = 60s;
using testing::kPatienceMilliseconds;
// Far more than a connection holds that nobody reads from.
constexpr std::size_t kLentBytes = std::size_t{16} << 20U;
constexpr std::byte kMine{0x11};
constexpr std::byte kChanged{0xee};

// worker0 is real, worker1 is the test.
class LentMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(caller.start(testing::options_for("worker0", 0, 2), store, kPatience));
  }
  Future<Message> call(MessageType type, double timeout_seconds) {
    Message request{type, kNoMessageId, "control", {Buffer::borrow(memory)}};
    return caller.agent->send("worker1", std::move(request), timeout_seconds);
  }
  void take_back() { std::fill(memory.begin(), memory.end(), kChanged); }
  static void expect_whole(const std::optional<Message>& request) {
    ASSERT_TRUE(request);
    ASSERT_EQ(request->buffers.size(), 1U);
    const auto bytes = request->buffers[0].bytes();
    EXPECT_EQ(bytes.size(), kLentBytes);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), kChanged), 0);
  }

  std::vector<std::byte> memory = std::vector<std::byte>(kLentBytes, kMine);
  StoreHost store;
  RawPeer peer{store, "worker1", 1};
  Worker caller;
};

TEST_F(LentMemory, IsNotReadAnyMoreWhenTheCallHasTimedOut) {
  const auto first = caller.agent->send("worker1", {MessageType::ScriptCall, 0, "", {}}, 0.0);
  RawConnection connection = peer.welcome();
  ASSERT_TRUE(connection.read());
  const auto future = call(MessageType::ScriptCall, 0.05);
  const auto& outcome = future.wait();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout);
  take_back();
  expect_whole(connection.read());
  caller.stop();
}

TEST_F(LentMemory, IsNotReadAnyMoreWhenTheAnswerCameBeforeAllWasSent) {
  const auto first = caller.agent->send("worker1", {MessageType::ScriptCall, 0, "", {}}, 0.0);
  RawConnection connection = peer.welcome();
  const auto known = connection.read();
  ASSERT_TRUE(known);
  const auto future = call(MessageType::ScriptCall, 0.0);
  connection.send({MessageType::ScriptRet, known->id + 1, "", {}});
  EXPECT_TRUE(future.wait());
  take_back();
  expect_whole(connection.read());
  caller.stop();
}

// What a reference stands for is made all the same.
TEST_F(LentMemory, IsNotReadAnyMoreWhenTheCallHasTimedOutBeforeThereWasAConnection) {
  const auto future = call(MessageType::ScriptRemoteCall, 0.05);
  RawConnection connection = peer.accept();
  EXPECT_FALSE(future.wait());
  take_back();
  const auto hello = connection.read();
  ASSERT_TRUE(hello);
  connection.send({kWelcome, 0, "", {}});
  expect_whole(connection.read());
  caller.stop();
}

// A thread writes it, and another one finds out that there is nobody any more.
TEST_F(LentMemory, IsNotReadAnyMoreWhenTheConnectionIsCut) {
  for (int round = 0; round < 20; ++round) {
    const auto first = caller.agent->send("worker1", {MessageType::ScriptCall, 0, "", {}}, 0.0);
    RawConnection connection = peer.welcome();
    const auto request = connection.read();
    ASSERT_TRUE(request);
    connection.send({MessageType::ScriptRet, request->id, "", {}});
    EXPECT_TRUE(first.wait());
    std::thread calling([this] {
      auto lent = std::make_unique<std::vector<std::byte>>(memory);
      Message message{MessageType::ScriptCall, kNoMessageId, "", {Buffer::borrow(*lent)}};
      const auto future = caller.agent->send("worker1", std::move(message), 0.0);
      EXPECT_FALSE(future.wait());
      lent.reset();  // AddressSanitizer sees who still reads it
    });
    ASSERT_TRUE(connection.is_readable_within(kPatienceMilliseconds)) << "nothing is written";
    connection.close();
    calling.join();
  }
}

// Memory whose end is a call of its own, as that of an object may be which holds a reference.
class LastWord : public LentMemory {
 protected:
  Message request_that_calls_in_the_end(MessageType type = MessageType::ScriptCall) {
    auto owner = std::shared_ptr<const void>(memory.data(), [this](const void*) {
      Message last{MessageType::ScriptCall, kNoMessageId, "last", {}};
      const auto future = caller.agent->send("worker1", std::move(last), 0.0);
      ++said;
      future.on_done([this](const CallResult<Message>&) { ++over; });
    });
    return {type, kNoMessageId, "first", {Buffer(memory, std::move(owner))}};
  }
  std::atomic<int> said = 0;
  std::atomic<int> over = 0;
};

TEST_F(LastWord, IsSaidWhenTheMemoryHasBeenWritten) {
  const auto future = caller.agent->send("worker1", request_that_calls_in_the_end(), 0.0);
  RawConnection connection = peer.welcome();
  const auto first = connection.read();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->payload, "first");
  const auto last = connection.read();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->payload, "last");
  caller.stop();
  EXPECT_EQ(over, 1);
}

TEST_F(LastWord, IsSaidWhenTheConnectionIsCut) {
  const auto future = caller.agent->send("worker1", request_that_calls_in_the_end(), 0.0);
  peer.welcome().close();
  EXPECT_FALSE(future.wait());
  RawConnection next = peer.welcome();
  const auto last = next.read();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->payload, "last");
  caller.stop();
}

TEST_F(LastWord, IsSaidWhenNoConnectionCameAbout) {
  const auto future = caller.agent->send("worker1", request_that_calls_in_the_end(), 0.0);
  peer.accept().close();
  EXPECT_FALSE(future.wait());
  RawConnection next = peer.welcome();
  const auto last = next.read();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->payload, "last");
  caller.stop();
}

TEST_F(LastWord, IsSaidWhenTheTimeOfACallWasOverBeforeThereWasAConnection) {
  const auto future = caller.agent->send("worker1", request_that_calls_in_the_end(), 0.05);
  RawConnection connection = peer.accept();
  EXPECT_FALSE(future.wait());
  ASSERT_TRUE(connection.read());
  connection.send({kWelcome, 0, "", {}});
  const auto last = connection.read();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->payload, "last");
  caller.stop();
}

}  // namespace
}  // namespace muster::rpc
