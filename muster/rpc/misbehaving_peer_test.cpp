// Peers that do what they must not: a clear error on exactly the calls concerned; the rest goes on.
#include "muster/rpc/network_agent.h"
#include "tests/rpc/cluster.h"
#include "tests/rpc/raw_peer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::RawConnection;
using testing::RawPeer;
using testing::StoreHost;
using testing::Worker;

using Add = std::int64_t(std::int64_t, std::int64_t);

// worker0 and worker2 are real, worker1 is the test.
struct Group {
  void start(const std::function<void(AgentOptions&)>& adjust = {}) {
    std::vector<std::future<Result<>>> starting;
    for (Worker* const worker : {&caller, &other}) {
      ASSERT_TRUE(worker->functions.add("add", [](std::int64_t a, std::int64_t b) { return a + b; },
                                        {.run = Run::Inline}));
      const std::int64_t rank = worker == &caller ? 0 : 2;
      AgentOptions options = testing::options_for("worker" + std::to_string(rank), rank, 3);
      if (adjust) adjust(options);
      starting.push_back(std::async(std::launch::async, [this, worker, options] {
        return worker->start(options, store, 60s);
      }));
    }
    for (auto& one : starting) ASSERT_TRUE(one.get());
  }
  void start_with_silence_of(Duration at_most) {
    start([&](AgentOptions& options) {
      options.sign_of_life_interval = 20ms;
      options.silence_max = at_most;
    });
  }
  // No timeout: it ends only if somebody ends it.
  Future<std::int64_t> call_peer(std::int64_t number) {
    return caller.async<Add>("worker1", 0.0, "add", number, 1);
  }
  static void answer(RawConnection& connection, std::int64_t id, std::int64_t value) {
    Writer writer;
    writer.write(value);
    connection.send({MessageType::ScriptRet, id, writer.take_control(), {}});
  }
  // Serves one call as it should be.
  static void serve(RawConnection& connection, std::int64_t value) {
    const auto request = connection.read();
    if (request) return answer(connection, request->id, value);
    EXPECT_TRUE(connection.is_ended()) << "no call comes";
  }
  void expect_value(const Future<std::int64_t>& future, std::int64_t value) {
    const auto& outcome = future.wait();
    if (has_short_limit && !outcome && outcome.error().kind == CallErrorKind::Unreachable) {
      too_slow = outcome.error().message;
      return;
    }
    ASSERT_TRUE(outcome) << outcome.error().message;
    EXPECT_EQ(*outcome, value);
  }
  void others_go_on() {
    expect_value(caller.async<Add>("worker2", 0.0, "add", 1, 2), 3);
    expect_value(other.async<Add>("worker0", 0.0, "add", 3, 4), 7);
  }
  static void expect_lost(const Future<std::int64_t>& future, std::string_view why,
                          bool sent = true) {
    const auto& outcome = future.wait();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, CallErrorKind::Unreachable);
    EXPECT_NE(outcome.error().message.find("worker1"), std::string::npos);
    EXPECT_NE(outcome.error().message.find(why), std::string::npos) << outcome.error().message;
    EXPECT_EQ(outcome.error().sent, sent);
  }
  // A call that has nothing to do with what went wrong, on a new connection.
  void peer_is_reached_again() {
    const auto next = call_peer(5);
    RawConnection connection = peer.welcome();
    serve(connection, 55);
    expect_value(next, 55);
    others_go_on();
  }

  StoreHost store;
  RawPeer peer{store, "worker1", 1};
  Worker caller;
  Worker other;
  bool has_short_limit = false;  // for the test's sake
  std::string too_slow;          // why one that does as it should was given up, if it was
};

class MisbehavingPeer : public ::testing::Test, protected Group {
 protected:
  // With a group of its own, whose workers wait for each other no longer than they are told; again,
  // with twice the time, if that was too short for those who do as they should.
  static void with_short_limit(const std::function<void(Group&, Duration)>& scenario) {
    std::string too_slow;
    for (Duration limit = 100ms; limit < 60s; limit *= 2) {
      Group group;
      group.has_short_limit = true;
      scenario(group, limit);
      too_slow = group.too_slow;
      if (too_slow.empty() || HasFailure()) return;
    }
    FAIL() << "it cannot be the time: " << too_slow;
  }
};

TEST_F(MisbehavingPeer, ThatAnswersAsItShouldGivesItsValue) {
  start();
  const auto future = call_peer(1);
  RawConnection connection = peer.welcome();
  serve(connection, 10);
  EXPECT_EQ(future.get(), 10);
}

TEST_F(MisbehavingPeer, ThatSendsGarbageFailsTheCallsOnItsConnection) {
  start();
  const std::vector<Future<std::int64_t>> calls = {call_peer(1), call_peer(2)};
  RawConnection connection = peer.welcome();
  serve(connection, 10);
  EXPECT_EQ(calls[0].get(), 10);
  connection.write(std::string(100, '\xff'));
  expect_lost(calls[1], "it breaks the protocol");
  EXPECT_TRUE(connection.is_ended());
  peer_is_reached_again();
}

TEST_F(MisbehavingPeer, ThatDiesWithinAFrameFailsTheCallsOnItsConnection) {
  start();
  const auto future = call_peer(1);
  RawConnection connection = peer.welcome();
  const auto request = connection.read();
  ASSERT_TRUE(request);
  const std::string frame = encode_head({MessageType::ScriptRet, request->id, "12345678", {}});
  connection.write(std::string_view(frame).substr(0, frame.size() - 1));
  connection.close();
  expect_lost(future, "within a message");
  peer_is_reached_again();
}

TEST_F(MisbehavingPeer, ThatAnswersTwiceFailsWhatElseIsUnderWay) {
  start();
  const std::vector<Future<std::int64_t>> calls = {call_peer(1), call_peer(2)};
  RawConnection connection = peer.welcome();
  const auto request = connection.read();
  ASSERT_TRUE(request);
  answer(connection, request->id, 10);
  answer(connection, request->id, 20);
  EXPECT_EQ(calls[0].get(), 10) << "the first answer counts";
  expect_lost(calls[1], "it answered a call that nobody made");
  peer_is_reached_again();
}

TEST_F(MisbehavingPeer, ThatAnswersACallThatNobodyMadeIsLeft) {
  start();
  const auto future = call_peer(1);
  RawConnection connection = peer.welcome();
  ASSERT_TRUE(connection.read());
  answer(connection, 123'456, 10);
  expect_lost(future, "it answered a call that nobody made");
  peer_is_reached_again();
}

TEST_F(MisbehavingPeer, ThatAnswersTheCallOfAnotherWorkerIsLeft) {
  start();
  ASSERT_TRUE(other.functions.add(
      "ask peer", [this] { return other.async<Add>("worker1", 0.0, "add", 1, 1); }));
  // Number 0, to another worker, which is not answered before this one is.
  const auto elsewhere = caller.async<std::int64_t()>("worker2", 0.0, "ask peer");
  RawConnection from_other = peer.welcome();
  const auto future = call_peer(1);
  RawConnection connection = peer.welcome();
  ASSERT_TRUE(connection.read());
  answer(connection, 0, 66);
  expect_lost(future, "it answered a call that nobody made");
  serve(from_other, 7);
  EXPECT_EQ(elsewhere.get(), 7);
}

TEST_F(MisbehavingPeer, ThatAnswersBeforeItWasAskedIsLeft) {
  start();
  const auto future = call_peer(1);
  RawConnection connection = peer.accept();
  ASSERT_TRUE(connection.read());  // the greeting; the call waits for the welcome
  answer(connection, 0, 66);
  expect_lost(future, "it answered a call that nobody made", false);
  peer_is_reached_again();
}

TEST_F(MisbehavingPeer, ThatAnswersLateChangesNothing) {
  start();
  // So that the other one has nothing to wait for before it is sent.
  const auto first = call_peer(0);
  RawConnection connection = peer.welcome();
  serve(connection, 10);
  ASSERT_EQ(first.get(), 10);
  const auto future = caller.async<Add>("worker1", 0.2, "add", 1, 1);
  const auto request = connection.read();
  ASSERT_TRUE(request);
  ASSERT_FALSE(future.wait());
  EXPECT_EQ(future.wait().error().kind, CallErrorKind::Timeout);
  const auto next = call_peer(2);
  answer(connection, request->id, 66);
  serve(connection, 20);
  EXPECT_EQ(next.get(), 20) << "on the same connection";
  EXPECT_EQ(future.wait().error().kind, CallErrorKind::Timeout);
}

// S35.
TEST_F(MisbehavingPeer, ThatGoesWithAControlMessageIsSentTheSameBytesAgain) {
  start();
  Message request{MessageType::RrefUserDelete, kNoMessageId, std::string("\x00payload\xff", 9), {}};
  for (const std::size_t size : {std::size_t{3}, std::size_t{100'000}}) {
    request.buffers.push_back(copy_of(std::vector<std::byte>(size, std::byte{7})));
  }
  const auto future = caller.agent->send_with_retries("worker1", request, {.delay = 1ms});
  for (int attempt = 0; attempt < 3; ++attempt) {
    RawConnection connection = peer.welcome();
    const auto sent = connection.read();
    ASSERT_TRUE(sent) << "attempt " << attempt;
    EXPECT_EQ(sent->type, request.type);
    EXPECT_EQ(sent->payload, request.payload);
    ASSERT_EQ(sent->buffers.size(), request.buffers.size());
    for (std::size_t index = 0; index < request.buffers.size(); ++index) {
      EXPECT_TRUE(std::ranges::equal(sent->buffers[index].bytes(), request.buffers[index].bytes()));
    }
    if (attempt < 2) continue;  // the connection is closed
    connection.send({MessageType::RrefAck, sent->id, "heard", {}});
    ASSERT_TRUE(future.wait());
    EXPECT_EQ(future.wait()->payload, "heard");
  }
}

TEST_F(MisbehavingPeer, ThatSendsAFrameThatIsTooLargeIsLeft) {
  start([](AgentOptions& options) { options.limits = {1 << 20, 1 << 20}; });
  const auto control = call_peer(1);
  RawConnection first = peer.welcome();
  const auto request = first.read();
  ASSERT_TRUE(request);
  const std::string large(std::size_t{2} << 20U, 'x');
  first.write(encode_head({MessageType::ScriptRet, request->id, large, {}}).substr(0, 100));
  expect_lost(control, "a frame announces 2097152 bytes");

  const auto buffers = call_peer(2);
  RawConnection second = peer.welcome();
  const auto again = second.read();
  ASSERT_TRUE(again);
  Message message{MessageType::ScriptRet, again->id, "", {}};
  message.buffers.push_back(copy_of(std::as_bytes(std::span(large))));
  second.write(encode_head(message));
  expect_lost(buffers, "a frame announces more than 1048576 bytes");
  peer_is_reached_again();
}

TEST_F(MisbehavingPeer, ThatSendsARequestWhereAnswersBelongIsLeft) {
  start();
  const auto future = call_peer(1);
  RawConnection connection = peer.welcome();
  ASSERT_TRUE(connection.read());
  connection.send({MessageType::ScriptCall, 0, "", {}});
  expect_lost(future, "it sent a request where answers belong");
  peer_is_reached_again();
}

TEST_F(MisbehavingPeer, ThatAnswersWhatCannotBeReadFailsThatCallOnly) {
  start();
  const std::vector<Future<std::int64_t>> calls = {call_peer(1), call_peer(2), call_peer(3)};
  RawConnection connection = peer.welcome();
  std::vector<std::int64_t> ids;
  for (int count = 0; count < 3; ++count) ids.push_back(connection.read().value().id);
  connection.send({MessageType::ScriptRet, ids[0], "no number", {}});
  connection.send({MessageType::Exception, ids[1], "no exception", {}});
  answer(connection, ids[2], 30);
  for (std::size_t index = 0; index < 2; ++index) {
    ASSERT_FALSE(calls[index].wait());
    EXPECT_EQ(calls[index].wait().error().kind, CallErrorKind::Remote);
  }
  EXPECT_EQ(calls[2].get(), 30);
}

TEST_F(MisbehavingPeer, ThatDoesNotReadHoldsUpItsCallersAndNobodyElse) {
  constexpr std::size_t kQueueBytes = std::size_t{1} << 20U;
  start([](AgentOptions& options) { options.queue_bytes_max = kQueueBytes; });
  using Measure = std::int64_t(std::string);
  const std::string large(std::size_t{256} << 10U, 'x');
  const auto first = call_peer(1);
  RawConnection connection = peer.welcome();
  serve(connection, 10);
  EXPECT_EQ(first.get(), 10) << "from now on calls are sent at once";
  // More than any socket holds, and it is not even full by then.
  constexpr std::size_t kCallsMax = 1000;
  const auto is_unsent = [](const Future<std::int64_t>& call) {
    const auto& outcome = call.wait();
    return !outcome && !outcome.error().sent;
  };
  std::vector<Future<std::int64_t>> calls;
  do {
    calls.push_back(caller.async<Measure>("worker1", 0.02, "measure", large));
  } while (calls.size() < kCallsMax && !is_unsent(calls.back()));
  const auto& outcome = calls.back().wait();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout);
  EXPECT_NE(outcome.error().message.find("RPC ran for more than"), std::string::npos);
  EXPECT_NE(outcome.error().message.find("wait for WorkerInfo(id=1, name=worker1) already"),
            std::string::npos)
      << outcome.error().message;
  EXPECT_FALSE(outcome.error().sent);
  others_go_on();
  // It goes on reading: nothing is lost but what was refused.
  auto last = std::async(std::launch::async, [&] { return call_peer(2).get(); });
  for (std::size_t count = 1; count < calls.size(); ++count) {
    ASSERT_TRUE(connection.read());
  }
  serve(connection, 20);
  EXPECT_EQ(last.get(), 20) << "there was room for it then";
}

TEST_F(MisbehavingPeer, ThatSaysNothingIsGivenUp) {
  with_short_limit([](Group& group, Duration limit) {
    group.start_with_silence_of(limit);
    const auto future = group.call_peer(1);
    RawConnection connection = group.peer.welcome();
    ASSERT_TRUE(connection.read());
    Group::expect_lost(future, "nothing was heard from it");
    group.peer_is_reached_again();
  });
}

TEST_F(MisbehavingPeer, ThatDoesNotGreetIsGivenUpBeforeAnythingWasSent) {
  with_short_limit([](Group& group, Duration limit) {
    group.start([&](AgentOptions& options) { options.connect_timeout = limit; });
    const auto future = group.call_peer(1);
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    Group::expect_lost(future, "did not answer within " + std::to_string(milliseconds) + " ms",
                       false);
    group.peer.accept().close();
    group.peer_is_reached_again();
  });
}

TEST_F(MisbehavingPeer, ThatRefusesSaysWhy) {
  start();
  const auto future = call_peer(1);
  RawConnection connection = peer.accept();
  ASSERT_TRUE(connection.read());
  connection.send(refusal("it is Sunday"));
  expect_lost(future, "it is Sunday", false);
  peer_is_reached_again();
}

// ---- as a client --------------------------------------------------------------------------------

TEST_F(MisbehavingPeer, ThatCallsIsServed) {
  start();
  RawConnection connection = peer.connect(0);
  Message request = encode_call<Add>("add", std::int64_t{1}, std::int64_t{2}).value();
  request.id = 9;
  connection.send(request);
  const auto response = connection.read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->id, 9);
  EXPECT_EQ(decode_response<std::int64_t>(*response).value(), 3);
}

TEST_F(MisbehavingPeer, ThatCallsWithGarbageLosesItsConnectionOnly) {
  start([](AgentOptions& options) { options.limits = {1 << 20, 1 << 20}; });
  const std::string large(std::size_t{2} << 20U, 'x');
  const std::string oversized = encode_head({MessageType::ScriptCall, 1, large, {}});
  const std::string answer = encode_head({MessageType::ScriptRet, 1, "", {}});
  for (const std::string& words : {std::string(100, '\xff'), oversized.substr(0, 50), answer}) {
    RawConnection connection = peer.connect(0);
    connection.write(words);
    EXPECT_TRUE(connection.is_ended());
    others_go_on();
  }
}

TEST_F(MisbehavingPeer, ThatDiesWithinACallIsForgotten) {
  start();
  {
    RawConnection connection = peer.connect(0);
    Message request = encode_call<Add>("add", std::int64_t{1}, std::int64_t{2}).value();
    request.id = 9;
    const std::string frame = encode_head(request);
    connection.write(std::string_view(frame).substr(0, frame.size() - 1));
  }
  others_go_on();
  // An answer may be seen a moment before the call counts as ended.
  const auto active = [this] { return caller.agent->metrics().at("agent.server_active_calls"); };
  for (int i = 0; i < 10'000 && active() != "0"; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(active(), "0");
}

TEST_F(MisbehavingPeer, ThatNeverReadsItsAnswersLosesItsConnection) {
  constexpr std::int64_t kCalls = 64;
  with_short_limit([kCalls](Group& group, Duration limit) {
    group.start([&](AgentOptions& options) {
      options.queue_bytes_max = std::size_t{1} << 20U;
      options.sign_of_life_interval = 20ms;
      options.silence_max = limit;
    });
    ASSERT_TRUE(
        group.caller.functions.add("make", [] { return std::string(std::size_t{1} << 20U, 'x'); }));
    RawConnection connection = group.peer.connect(0);
    Message request = encode_call<std::string()>("make").value();
    for (request.id = 0; request.id < kCalls; ++request.id) connection.send(request);
    // Signs of life do not help: it waits for answers that it does not take.
    for (int looks = 0; looks < 6'000 && !connection.is_reset_within(10); ++looks) {
      connection.send({kSignOfLife, 0, "", {}});
    }
    std::int64_t answers = 0;
    while (connection.read()) ++answers;
    EXPECT_LT(answers, kCalls);
    EXPECT_TRUE(connection.is_ended());
    group.others_go_on();
  });
}

TEST_F(MisbehavingPeer, ThatSaysNothingAfterItsGreetingLosesItsConnection) {
  with_short_limit([](Group& group, Duration limit) {
    group.start_with_silence_of(limit);
    RawConnection connection = group.peer.connect(0);
    EXPECT_TRUE(connection.is_ended());
    group.others_go_on();
  });
}

}  // namespace
}  // namespace muster::rpc
