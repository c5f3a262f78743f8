// Retries on virtual time, with an agent whose network does what the test says.
#include "muster/rpc/retries.h"

#include "muster/rpc/frame.h"
#include "muster/rpc/texts.h"
#include "muster/sim/loop.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

Message request_of(std::string payload) {
  return {MessageType::RrefUserDelete, kNoMessageId, std::move(payload), {}};
}
Message response_of(std::string payload) {
  return {MessageType::RrefAck, kNoMessageId, std::move(payload), {}};
}
CallResult<Message> refused() {
  return call_failed({CallErrorKind::Unreachable, "connection refused", "", false});
}

// Its calls end as the script says, at once and within `submit`; what the script has no ending for
// is never answered, and times out. Lives on one loop, with no thread of its own: the callbacks of
// futures run where they are set, so that one which comes back while a lock is held hangs.
class ScriptedAgent final : public Agent {
 public:
  struct Transmission {
    Duration when{};
    std::string to;
    std::string bytes;
  };
  using Ending = std::optional<CallResult<Message>>;
  using Script = std::function<Ending(std::size_t transmission_index)>;

  explicit ScriptedAgent(sim::Loop& loop) : loop_(loop) { callbacks_.stop(); }

  const WorkerInfo& self() const override { return self_; }
  CallResult<WorkerInfo> find(std::string_view name) const override {
    return call_failed(
        {CallErrorKind::Rejected, unknown_destination_name_text(self_, name), "", false});
  }
  CallResult<WorkerInfo> find(std::int64_t id) const override {
    return call_failed(
        {CallErrorKind::Rejected, unknown_destination_id_text(self_, id), "", false});
  }
  std::vector<WorkerInfo> workers() const override { return {self_}; }
  void submit(std::string_view to, Message request, std::optional<double> timeout_seconds,
              std::unique_ptr<CallSink> sink) override {
    EXPECT_EQ(timeout_seconds, std::nullopt) << "each attempt has the default timeout";
    if (!is_running_) {
      return calls_.refuse(std::move(sink), {CallErrorKind::Rejected,
                                             not_running_text(self_, request.type), "", false});
    }
    const CallStart start{kConnection, loop_.now() + timeout_, timeout_, {}};
    const CallId id = calls_.start(start, sink).value();
    transmissions.push_back({loop_.now().time_since_epoch(), std::string(to), written(request)});
    const Ending ending = script(transmissions.size() - 1);
    if (!ending) return;
    if (!*ending) return calls_.withdraw(id, ending->error());
    Message response = **ending;
    response.id = id;
    EXPECT_TRUE(calls_.responded(kConnection, std::move(response)));
  }
  Future<Message> send_with_retries(std::string_view, Message, RetryOptions) override {
    return Future<Message>::ready(refused());
  }
  Duration timeout() const override { return timeout_; }
  void set_timeout(Duration timeout) override { timeout_ = timeout; }
  Pool& callbacks() override { return callbacks_; }
  Calls& calls() override { return calls_; }
  void shutdown() override { is_running_ = false; }
  std::map<std::string, std::string> metrics() const override { return {}; }

  std::vector<Duration> times() const {
    std::vector<Duration> times;
    for (const Transmission& sent : transmissions) times.push_back(sent.when);
    return times;
  }

  Script script = [](std::size_t) { return refused(); };
  std::vector<Transmission> transmissions;

 private:
  static constexpr PeerId kConnection = 1;

  static std::string written(const Message& message) {
    std::string bytes = encode_head(message);
    for (const Buffer& buffer : message.buffers) {
      bytes.append(reinterpret_cast<const char*>(buffer.data()), buffer.size());
    }
    return bytes;
  }
  void expire() { expiry_.set(calls_.expire(loop_.now())); }

  sim::Loop& loop_;
  const WorkerInfo self_ = WorkerInfo::create_member("worker0", 0).value();
  Pool callbacks_{"test", 1};
  Duration timeout_ = 60s;
  bool is_running_ = true;
  Timer expiry_{loop_, [this] { expire(); }};
  Calls calls_{[this] { loop_.post([this] { expire(); }); }};
};

class RetriesTest : public ::testing::Test {
 protected:
  // As an agent ends.
  ~RetriesTest() override {
    agent.shutdown();
    retries.stop();
    agent.calls().close({CallErrorKind::Rejected, agent_stopped_text(agent.self()), "", true});
    EXPECT_EQ(agent.calls().active_count(), 0);
  }
  Future<Message> send(std::string payload, RetryOptions options = {}) {
    return retries.send("worker1", request_of(std::move(payload)), options);
  }
  void expect_sent_at(const std::vector<Duration>& expected) { EXPECT_EQ(agent.times(), expected); }

  sim::Loop loop;
  ScriptedAgent agent{loop};
  Retries retries{agent, loop, loop};
};

// S26
TEST_F(RetriesTest, SendSixTimesAndThenFailWithTheCountAndTheLastError) {
  const auto future = send("delete");
  loop.advance(9125ms - 1ns);
  EXPECT_FALSE(future.done());
  loop.advance(1h);
  expect_sent_at({0s, 1s, 2s, 3500ms, 5750ms, 9125ms});
  ASSERT_TRUE(future.done());
  EXPECT_EQ(future.wait().error().message,
            "The RPC has not succeeded after the specified number of max retries (5). "
            "Last error: connection refused");
}

TEST_F(RetriesTest, LogEveryAttemptThatFailsTheLastIncluded) {
  const tests::LogCapture log(log::Level::Debug);
  const auto future = send("delete", {.retries_max = 2});
  loop.advance(1h);
  ASSERT_TRUE(future.done());
  EXPECT_EQ(log.count("attempt "), 3U);
  EXPECT_EQ(log.count("attempt 1 to reach worker1 failed, repeating it: connection refused"), 1U);
  EXPECT_EQ(log.count("attempt 2 to reach worker1 failed, repeating it: connection refused"), 1U);
  EXPECT_EQ(log.count("attempt 3 to reach worker1 failed, giving up: connection refused"), 1U);
  EXPECT_TRUE(log.warnings().empty()) << "whoever sends it decides whether that matters";
}

TEST_F(RetriesTest, LogTheOneAttemptThatIsNeverRepeated) {
  const tests::LogCapture log(log::Level::Debug);
  agent.shutdown();
  ASSERT_TRUE(send("delete").done());
  EXPECT_EQ(log.count("attempt 1 to reach worker1 failed, giving up: "), 1U);
}

// S27
TEST_F(RetriesTest, CompleteWithTheFirstResponseAndSendNothingMore) {
  for (std::size_t failure_count = 0; failure_count <= 5; ++failure_count) {
    agent.transmissions.clear();
    agent.script = [failure_count](std::size_t index) -> ScriptedAgent::Ending {
      if (index < failure_count) return refused();
      return response_of("to attempt " + std::to_string(index));
    };
    const auto future = send("delete");
    loop.advance(1h);
    ASSERT_TRUE(future.done());
    ASSERT_TRUE(future.wait());
    EXPECT_EQ(future.wait()->payload, "to attempt " + std::to_string(failure_count));
    EXPECT_EQ(future.wait()->type, MessageType::RrefAck);
    EXPECT_EQ(agent.transmissions.size(), failure_count + 1);
  }
}

// S28
TEST_F(RetriesTest, SendAtOnceWhatFailedAfterItsNextTimeHadCome) {
  agent.set_timeout(10s);
  agent.script = [](std::size_t index) -> ScriptedAgent::Ending {
    if (index == 0) return std::nullopt;
    return response_of("");
  };
  const auto future = send("delete");
  loop.advance(1h);
  expect_sent_at({0s, 10s});
  EXPECT_TRUE(future.wait());
}

// S29
TEST_F(RetriesTest, RefuseOptionsThatCannotBeMeantAndSendNothing) {
  const std::vector<std::pair<RetryOptions, std::string>> refusals = {
      {{.retries_max = -1}, "maxRetries cannot be negative."},
      {{.backoff = 0.5}, "maxRetries cannot be exponentially decaying."},
      {{.delay = -1ms}, "rpcRetryDuration cannot be negative."}};
  for (const auto& [options, text] : refusals) {
    const auto future = send("delete", options);
    ASSERT_TRUE(future.done());
    ASSERT_FALSE(future.wait());
    EXPECT_EQ(future.wait().error(), (CallError{CallErrorKind::Rejected, text, "", false}));
  }
  loop.advance(1h);
  expect_sent_at({});
}

// S30
TEST_F(RetriesTest, FailAtTheFirstFailureIfThereAreToBeNone) {
  const auto future = send("delete", {.retries_max = 0});
  ASSERT_TRUE(future.done());
  EXPECT_NE(future.wait().error().message.find("max retries (0)"), std::string::npos);
  loop.advance(1h);
  expect_sent_at({0s});
}

// S31
TEST_F(RetriesTest, SendInOneStepWhatIsDueInTheSameMillisecond) {
  loop.advance(100us);
  const auto one = send("one", {.retries_max = 1});
  loop.advance(800us);
  const auto two = send("two", {.retries_max = 1});
  loop.advance(1h);
  expect_sent_at({100us, 900us, 1s, 1s});
  EXPECT_FALSE(one.wait());
  EXPECT_FALSE(two.wait());
}

// S32
TEST_F(RetriesTest, WakeForAnEarlierOneThatComesWhileALaterOneWaits) {
  agent.script = [](std::size_t index) -> ScriptedAgent::Ending {
    if (index < 2) return refused();
    return response_of("");
  };
  const auto late = send("late", {.delay = 60s});
  loop.advance(3s);
  const auto early = send("early", {.delay = 2s});
  loop.advance(2s);
  EXPECT_TRUE(early.done());
  EXPECT_FALSE(late.done());
  loop.advance(1h);
  expect_sent_at({0s, 3s, 5s, 60s});
  EXPECT_TRUE(late.wait());
  EXPECT_TRUE(early.wait());
}

// S33
TEST_F(RetriesTest, FailWhatWaitsWhenTheAgentStopsAndSendNothingMore) {
  const auto one = send("one", {.delay = 9s});
  const auto two = send("two");
  agent.shutdown();
  retries.stop();
  for (const auto& future : {one, two}) {
    ASSERT_TRUE(future.done());
    ASSERT_FALSE(future.wait());
    EXPECT_EQ(future.wait().error(),
              (CallError{CallErrorKind::Rejected, agent_stopped_text(agent.self()), "", false}));
  }
  loop.advance(1h);
  expect_sent_at({0s, 0s});
}

TEST_F(RetriesTest, SayWhenTheAgentStopsThatAnAttemptMayHaveLeft) {
  agent.set_timeout(1s);
  agent.script = [](std::size_t) { return std::nullopt; };
  const auto future = send("delete", {.delay = 9s});
  loop.advance(2s);
  agent.shutdown();
  retries.stop();
  ASSERT_TRUE(future.done());
  EXPECT_TRUE(future.wait().error().sent);
}

TEST_F(RetriesTest, GiveWhatIsOnItsWayWhenTheAgentStopsTheErrorOfThatAttempt) {
  agent.script = [](std::size_t) { return std::nullopt; };
  const auto future = send("delete");
  agent.shutdown();
  retries.stop();
  EXPECT_FALSE(future.done());
  loop.advance(1h);
  ASSERT_TRUE(future.done());
  EXPECT_EQ(future.wait().error().kind, CallErrorKind::Timeout);
  expect_sent_at({0s});
}

// S34
TEST_F(RetriesTest, LetACallbackOfWhatHasEndedSendAgain) {
  std::vector<Future<Message>> all;
  std::function<void()> send_one = [&] {
    if (all.size() == 3) return;
    all.push_back(send("delete", {.retries_max = 1}));
    // By value: the callback may run later.
    const Future<Message> future = all.back();
    future.on_done([&](const auto&) { send_one(); });
  };
  send_one();
  loop.advance(1h);
  expect_sent_at({0s, 1s, 1s, 2s, 2s, 3s});
  ASSERT_EQ(all.size(), 3U);
  for (const auto& future : all) EXPECT_TRUE(future.done());
}

// S34
TEST_F(RetriesTest, LetACallbackOfWhatFailsByTheStopSendAgainInVain) {
  std::optional<Future<Message>> again;
  send("delete").on_done([&](const auto&) { again = send("delete"); });
  agent.shutdown();
  retries.stop();
  ASSERT_TRUE(again);
  ASSERT_TRUE(again->done());
  EXPECT_EQ(again->wait().error().message,
            not_running_text(agent.self(), MessageType::RrefUserDelete));
  expect_sent_at({0s});
}

// S35
TEST_F(RetriesTest, SendTheSameBytesAgainAfterTheyHaveLeft) {
  agent.script = [](std::size_t index) -> ScriptedAgent::Ending {
    if (index < 2) return std::nullopt;
    return response_of("");
  };
  Message request = request_of(std::string("\x00payload\xff", 9));
  for (const std::size_t size : {3U, 100'000U}) {
    request.buffers.push_back(copy_of(std::vector<std::byte>(size, std::byte{7})));
  }
  const auto future = retries.send("worker1", request, {});
  loop.advance(1h);
  EXPECT_TRUE(future.wait());
  ASSERT_EQ(agent.transmissions.size(), 3U);
  EXPECT_GT(agent.transmissions[0].bytes.size(), 100'000U);
  for (const auto& sent : agent.transmissions) {
    EXPECT_EQ(sent.to, "worker1");
    EXPECT_TRUE(sent.bytes == agent.transmissions[0].bytes);
  }
}

}  // namespace
}  // namespace muster::rpc
