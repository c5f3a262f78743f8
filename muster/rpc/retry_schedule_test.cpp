#include "muster/rpc/retry_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration time) { return TimePoint(1h) + time; }

CallError error_of(CallErrorKind kind, std::string message) {
  CallError error;
  error.kind = kind;
  error.message = std::move(message);
  return error;
}
CallError timeout() {
  CallError error = error_of(CallErrorKind::Timeout, "RPC ran for more than");
  error.sent = true;
  return error;
}
CallError refused() { return error_of(CallErrorKind::Unreachable, "connection refused"); }

// What an agent does around a schedule, on virtual time: it keeps the bytes, sends outside of the
// schedule, and completes the caller's future.
class Agent {
 public:
  struct Transmission {
    TimePoint when;
    std::string bytes;
  };
  // Answers how the attempt that is just sent ends: by nothing for success.
  using Network = std::function<std::optional<CallError>(std::size_t transmission_index)>;

  explicit Agent(Network network) : network_(std::move(network)) {}

  Result<RetryEntry> send(std::string bytes, RetryOptions options = {}) {
    Result<RetryEntry> entry = schedule.add(options, now);
    if (!entry) return entry;
    bytes_[*entry] = std::move(bytes);
    attempt(*entry);
    return entry;
  }

  // Lets time pass up to `end`, waking only when the schedule asks for it.
  void run_until(TimePoint end) {
    while (schedule.next_deadline() <= end) {
      now = std::max(now, schedule.next_deadline());
      ++wake_count;
      for (const RetryEntry entry : schedule.due(now)) attempt(entry);
    }
    now = end;
  }

  void stop() {
    for (const RetryEntry entry : schedule.stop()) {
      over(entry, error_of(CallErrorKind::Rejected, "agent stopped"));
    }
  }

  RetrySchedule schedule;
  TimePoint now = at(0s);
  std::size_t wake_count = 0;
  std::vector<Transmission> transmissions;
  std::map<RetryEntry, std::optional<CallError>> outcomes;  // nothing: success
  std::function<void()> on_completion = [] {};

 private:
  void attempt(RetryEntry entry) {
    transmissions.push_back({now, bytes_.at(entry)});
    const std::optional<CallError> error = network_(transmissions.size() - 1);
    if (!error) {
      schedule.succeeded(entry);
      return over(entry, std::nullopt);
    }
    const RetrySchedule::Failure failure = schedule.failed(entry, *error, now);
    if (failure.error) over(entry, failure.error);
  }

  void over(RetryEntry entry, std::optional<CallError> outcome) {
    bytes_.erase(entry);
    EXPECT_TRUE(outcomes.emplace(entry, std::move(outcome)).second) << "completed twice";
    on_completion();
  }

  Network network_;
  std::map<RetryEntry, std::string> bytes_;
};

Agent::Network always(const CallError& error) {
  return [error](std::size_t) { return error; };
}

std::vector<Duration> times_of(const Agent& agent) {
  std::vector<Duration> times;
  for (const Agent::Transmission& sent : agent.transmissions) times.push_back(sent.when - at(0s));
  return times;
}

// ---- the rules of S26 to S35; those of the engine around it are in retries_test.cpp ------------

TEST(RetrySchedule, SendsSixTimesByDefaultAndThenNamesTheFiveRetriesAndTheLastError) {
  Agent agent(always(refused()));
  const RetryEntry entry = agent.send("delete").value();
  agent.run_until(at(1h));

  const std::vector<Duration> expected = {0s, 1s, 2s, 3500ms, 5750ms, 9125ms};
  EXPECT_EQ(times_of(agent), expected);
  ASSERT_TRUE(agent.outcomes.at(entry));
  EXPECT_EQ(agent.outcomes.at(entry)->message,
            "The RPC has not succeeded after the specified number of max retries (5). "
            "Last error: connection refused");
  EXPECT_EQ(agent.schedule.entry_count(), 0u);
  EXPECT_EQ(agent.schedule.next_deadline(), kNever);
}

TEST(RetrySchedule, EndsWithTheFirstAttemptThatSucceeds) {
  for (std::size_t success_index = 0; success_index <= 5; ++success_index) {
    Agent agent([&](std::size_t index) -> std::optional<CallError> {
      if (index == success_index) return std::nullopt;
      return refused();
    });
    const RetryEntry entry = agent.send("fork").value();
    agent.run_until(at(1h));
    EXPECT_EQ(agent.transmissions.size(), success_index + 1);
    EXPECT_EQ(agent.outcomes.at(entry), std::nullopt);
    EXPECT_EQ(agent.schedule.entry_count(), 0u);
  }
}

TEST(RetrySchedule, CountsTheDelayFromWhenTheAttemptWasSent) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({}, at(0s)).value();
  const auto failure = schedule.failed(entry, timeout(), at(10s));
  EXPECT_EQ(failure.error, std::nullopt);
  EXPECT_EQ(failure.retry_at, at(10s));
  EXPECT_EQ(schedule.due(at(10s)), std::vector<RetryEntry>{entry});

  // The retry was sent at 10 s: the next one is counted from there.
  EXPECT_EQ(schedule.failed(entry, timeout(), at(10200ms)).retry_at, at(11s));
  EXPECT_TRUE(schedule.due(at(10999ms)).empty());
  EXPECT_EQ(schedule.due(at(11s)), std::vector<RetryEntry>{entry});
}

TEST(RetrySchedule, RefusesOptionsThatCannotBeMeantBeforeAnythingIsSent) {
  Agent agent(always(refused()));
  const auto negative = agent.send("x", {.retries_max = -1});
  const auto decaying = agent.send("x", {.backoff = 0.5});
  const auto backwards = agent.send("x", {.delay = -1ms});
  EXPECT_EQ(negative.error().message, "maxRetries cannot be negative.");
  EXPECT_EQ(decaying.error().message, "maxRetries cannot be exponentially decaying.");
  EXPECT_EQ(backwards.error().message, "rpcRetryDuration cannot be negative.");
  for (const auto& result : {negative, decaying, backwards}) {
    EXPECT_EQ(result.error().kind, ErrorKind::Invalid);
  }
  EXPECT_TRUE(agent.transmissions.empty());
  EXPECT_EQ(agent.schedule.entry_count(), 0u);
}

TEST(RetrySchedule, FailsWithTheFirstFailureWhenThereAreNoRetries) {
  Agent agent(always(refused()));
  const RetryEntry entry = agent.send("x", {.retries_max = 0}).value();
  EXPECT_EQ(agent.transmissions.size(), 1u);
  EXPECT_EQ(agent.outcomes.at(entry)->message,
            "The RPC has not succeeded after the specified number of max retries (0). "
            "Last error: connection refused");
}

TEST(RetrySchedule, SendsWhatIsDueInTheSameMillisecondInOneStep) {
  Agent agent([](std::size_t index) -> std::optional<CallError> {
    if (index >= 2) return std::nullopt;
    return refused();
  });
  agent.now = at(100us);
  agent.send("one").value();
  agent.now = at(900us);
  agent.send("two").value();
  agent.run_until(at(1h));
  EXPECT_EQ(agent.wake_count, 1u);
  ASSERT_EQ(agent.transmissions.size(), 4u);
  EXPECT_EQ(agent.transmissions[2].when, at(1s));
  EXPECT_EQ(agent.transmissions[3].when, at(1s));
}

TEST(RetrySchedule, ServesAnEarlierEntryThatComesWhileALaterOneWaits) {
  Agent agent([](std::size_t index) -> std::optional<CallError> {
    if (index >= 2) return std::nullopt;
    return refused();
  });
  agent.send("late", {.delay = 60s}).value();
  EXPECT_EQ(agent.schedule.next_deadline(), at(60s));
  agent.run_until(at(3s));
  agent.send("early", {.delay = 2s}).value();
  EXPECT_EQ(agent.schedule.next_deadline(), at(5s));
  agent.run_until(at(1h));
  ASSERT_EQ(agent.transmissions.size(), 4u);
  EXPECT_EQ(agent.transmissions[2].bytes, "early");
  EXPECT_EQ(agent.transmissions[2].when, at(5s));
  EXPECT_EQ(agent.transmissions[3].bytes, "late");
  EXPECT_EQ(agent.transmissions[3].when, at(60s));
}

TEST(RetrySchedule, FailsWhatWaitsWhenTheAgentStopsAndSendsNothingMore) {
  Agent agent(always(refused()));
  const RetryEntry first = agent.send("one", {.delay = 9s}).value();
  const RetryEntry second = agent.send("two").value();
  agent.stop();
  agent.run_until(at(1h));
  EXPECT_EQ(agent.transmissions.size(), 2u);
  EXPECT_EQ(agent.outcomes.at(first)->message, "agent stopped");
  EXPECT_EQ(agent.outcomes.at(second)->message, "agent stopped");
  EXPECT_EQ(agent.schedule.entry_count(), 0u);
  EXPECT_EQ(agent.schedule.next_deadline(), kNever);
}

TEST(RetrySchedule, MayBeCalledAgainByWhatItsAnswersComplete) {
  Agent agent(always(refused()));
  int follow_up_count = 0;
  agent.on_completion = [&] {
    if (++follow_up_count <= 3) agent.send("again", {.retries_max = 1}).value();
  };
  agent.send("first", {.retries_max = 1}).value();
  agent.run_until(at(1h));
  EXPECT_EQ(agent.outcomes.size(), 4u);
  const std::vector<Duration> expected = {0s, 1s, 1s, 2s, 2s, 3s, 3s, 4s};
  EXPECT_EQ(times_of(agent), expected);
}

TEST(RetrySchedule, LetsTheAgentSendTheSameBytesAgainAfterTheyHaveLeft) {
  Agent agent([](std::size_t index) -> std::optional<CallError> {
    if (index == 0) return timeout();
    return std::nullopt;
  });
  const std::string bytes("\x00payload\xff", 9);
  agent.send(bytes).value();
  agent.run_until(at(1h));
  ASSERT_EQ(agent.transmissions.size(), 2u);
  EXPECT_EQ(agent.transmissions[0].bytes, bytes);
  EXPECT_EQ(agent.transmissions[1].bytes, bytes);
}

// ---- the schedule -------------------------------------------------------------------------------

TEST(RetrySchedule, WaitsEquallyLongTwiceAndThenGrows) {
  const RetryOptions options;
  const std::vector<Duration> expected = {1s, 1s, 1500ms, 2250ms, 3375ms, 5062ms, 7593ms};
  for (std::size_t index = 0; index < expected.size(); ++index) {
    EXPECT_EQ(retry_delay(options, static_cast<std::int64_t>(index)), expected[index]) << index;
  }
}

TEST(RetrySchedule, CutsDelaysToWholeMilliseconds) {
  EXPECT_EQ(retry_delay({.delay = 1999us}, 0), 1ms);
  EXPECT_EQ(retry_delay({.delay = 999us}, 0), 0ms);
  // The product is cut, not the delay: 1.9 ms * 1.5 = 2.85 ms.
  EXPECT_EQ(retry_delay({.delay = 1900us}, 2), 2ms);
}

TEST(RetrySchedule, StaysAtTheSameDelayWithoutBackoff) {
  const RetryOptions options{.delay = 20ms, .backoff = 1.0};
  for (const std::int64_t index : {0, 1, 2, 100, 1'000'000}) {
    EXPECT_EQ(retry_delay(options, index), 20ms);
  }
}

TEST(RetrySchedule, NeverWaitsLongerThanTheLimit) {
  EXPECT_EQ(retry_delay({.backoff = 10}, 11), kRetryDelayMax);
  EXPECT_EQ(retry_delay({.backoff = 10}, std::numeric_limits<std::int64_t>::max()), kRetryDelayMax);
  EXPECT_EQ(retry_delay({.backoff = std::numeric_limits<double>::infinity()}, 2), kRetryDelayMax);
  EXPECT_EQ(retry_delay({.delay = Duration::max()}, 0), kRetryDelayMax);
  EXPECT_EQ(retry_delay({.delay = kRetryDelayMax - 1ms}, 0), kRetryDelayMax - 1ms);
}

TEST(RetrySchedule, SendsAtOnceWithoutADelay) {
  EXPECT_EQ(retry_delay({.delay = 0ms, .backoff = std::numeric_limits<double>::infinity()}, 9),
            0ms);
  Agent agent(always(refused()));
  const RetryEntry entry = agent.send("x", {.retries_max = 3, .delay = 0ms}).value();
  agent.run_until(at(0s));
  EXPECT_EQ(times_of(agent), std::vector<Duration>(4, 0s));
  EXPECT_TRUE(agent.outcomes.at(entry));
}

TEST(RetrySchedule, AnswersNothingBeforeTheTimeHasCome) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({}, at(0s)).value();
  EXPECT_EQ(schedule.next_deadline(), kNever);
  EXPECT_EQ(schedule.failed(entry, refused(), at(3ms)).retry_at, at(1s));
  EXPECT_EQ(schedule.next_deadline(), at(1s));
  EXPECT_TRUE(schedule.due(at(1s) - 1ns).empty());
  EXPECT_EQ(schedule.due(at(1s)).size(), 1u);
  EXPECT_TRUE(schedule.due(at(1h)).empty());
}

TEST(RetrySchedule, CountsFromWhenARetryReallyWent) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({}, at(0s)).value();
  std::ignore = schedule.failed(entry, refused(), at(0s));
  // The agent wakes late.
  EXPECT_EQ(schedule.due(at(1700ms)).size(), 1u);
  EXPECT_EQ(schedule.failed(entry, refused(), at(1700ms)).retry_at, at(2700ms));
}

TEST(RetrySchedule, AnswersTheEarliestFirst) {
  RetrySchedule schedule;
  const RetryEntry slow = schedule.add({.delay = 3s}, at(0s)).value();
  const RetryEntry fast = schedule.add({.delay = 1s}, at(0s)).value();
  const RetryEntry middle = schedule.add({.delay = 2s}, at(0s)).value();
  for (const RetryEntry entry : {slow, fast, middle}) {
    std::ignore = schedule.failed(entry, refused(), at(0s));
  }
  EXPECT_EQ(schedule.waiting_count(), 3u);
  EXPECT_EQ(schedule.due(at(5s)), (std::vector<RetryEntry>{fast, middle, slow}));
  EXPECT_EQ(schedule.waiting_count(), 0u);
  EXPECT_EQ(schedule.entry_count(), 3u);
}

TEST(RetrySchedule, NumbersTheAttemptsFromOne) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({}, at(0s)).value();
  for (std::int64_t number = 1; number <= 6; ++number) {
    const TimePoint now = at(std::chrono::minutes(number));
    EXPECT_EQ(schedule.failed(entry, refused(), now).attempt_number, number);
    std::ignore = schedule.due(now);
  }
}

// ---- outcomes -----------------------------------------------------------------------------------

TEST(RetrySchedule, RetriesWhateverTheErrorIs) {
  for (const CallErrorKind kind : {CallErrorKind::Timeout, CallErrorKind::Injected,
                                   CallErrorKind::Unreachable, CallErrorKind::Remote}) {
    RetrySchedule schedule;
    const RetryEntry entry = schedule.add({}, at(0s)).value();
    EXPECT_EQ(schedule.failed(entry, error_of(kind, "x"), at(0s)).error, std::nullopt);
  }
}

TEST(RetrySchedule, GivesUpAtOnceWhatCannotBeSent) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({}, at(0s)).value();
  const CallError rejected = error_of(CallErrorKind::Rejected, "could not find destination");
  const auto failure = schedule.failed(entry, rejected, at(0s));
  EXPECT_EQ(failure.error, rejected);
  EXPECT_EQ(failure.retry_at, kNever);
  EXPECT_EQ(schedule.entry_count(), 0u);
}

TEST(RetrySchedule, FailsWithTheErrorOfTheAttemptWhenTheAgentHasStopped) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({}, at(0s)).value();
  EXPECT_TRUE(schedule.stop().empty());
  EXPECT_EQ(schedule.entry_count(), 1u);
  EXPECT_EQ(schedule.failed(entry, timeout(), at(1s)).error, timeout());
  EXPECT_EQ(schedule.entry_count(), 0u);
}

TEST(RetrySchedule, CountsAsStoppedFirstWhenNoRetryIsLeftEither) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({.retries_max = 0}, at(0s)).value();
  std::ignore = schedule.stop();
  EXPECT_EQ(schedule.failed(entry, timeout(), at(1s)).error, timeout());
}

TEST(RetrySchedule, LetsAnAttemptSucceedAfterTheAgentHasStopped) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({}, at(0s)).value();
  std::ignore = schedule.stop();
  schedule.succeeded(entry);
  EXPECT_EQ(schedule.entry_count(), 0u);
}

TEST(RetrySchedule, NamesWhatWaitedOldestFirstWhenItStops) {
  RetrySchedule schedule;
  std::vector<RetryEntry> entries;
  for (const Duration delay : {5s, 1s, 3s}) {
    entries.push_back(schedule.add({.delay = delay}, at(0s)).value());
    std::ignore = schedule.failed(entries.back(), refused(), at(0s));
  }
  EXPECT_EQ(schedule.stop(), entries);
  EXPECT_TRUE(schedule.stop().empty());
}

TEST(RetrySchedule, GivesAnErrorWithoutACodeWhenAllRetriesAreUsed) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({.retries_max = 0}, at(0s)).value();
  const CallError error = schedule.failed(entry, timeout(), at(60s)).error.value();
  EXPECT_EQ(error.kind, CallErrorKind::Unreachable);
  EXPECT_EQ(code_of(error), 0);
  EXPECT_TRUE(error.sent);
}

TEST(RetrySchedule, KeepsTheTypeOfWhatThePeerAnswered) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({.retries_max = 0}, at(0s)).value();
  CallError remote = error_of(CallErrorKind::Remote, "boom");
  remote.type = "ValueError";
  const CallError error = schedule.failed(entry, remote, at(0s)).error.value();
  EXPECT_EQ(error.kind, CallErrorKind::Remote);
  EXPECT_EQ(error.type, "ValueError");
}

TEST(RetrySchedule, RemembersThatAnEarlierAttemptMayHaveLeft) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({}, at(0s)).value();
  std::ignore = schedule.failed(entry, timeout(), at(0s));
  std::ignore = schedule.due(at(1s));
  const CallError rejected = error_of(CallErrorKind::Rejected, "not running");
  EXPECT_TRUE(schedule.failed(entry, rejected, at(1s)).error.value().sent);
}

// ---- options and limits -------------------------------------------------------------------------

TEST(RetryOptions, NameTheFirstThatIsWrongOfRetriesBackoffAndDelay) {
  RetryOptions options{.retries_max = -1, .delay = -1ms, .backoff = 0.5};
  EXPECT_EQ(check(options).error().message, "maxRetries cannot be negative.");
  options.retries_max = 0;
  EXPECT_EQ(check(options).error().message, "maxRetries cannot be exponentially decaying.");
  options.backoff = 1;
  EXPECT_EQ(check(options).error().message, "rpcRetryDuration cannot be negative.");
  options.delay = 0ms;
  EXPECT_TRUE(check(options));
}

TEST(RetryOptions, RefuseABackoffThatIsNoNumber) {
  EXPECT_FALSE(check({.backoff = std::numeric_limits<double>::quiet_NaN()}));
  EXPECT_FALSE(check({.backoff = -2}));
  EXPECT_FALSE(check({.backoff = 0.999}));
}

TEST(RetrySchedule, IsBounded) {
  RetrySchedule schedule(3);
  const RetryEntry first = schedule.add({}, at(0s)).value();
  const RetryEntry second = schedule.add({}, at(0s)).value();
  ASSERT_TRUE(schedule.add({}, at(0s)));
  // One that waits takes its place, too.
  std::ignore = schedule.failed(first, refused(), at(0s));
  const auto one_more = schedule.add({}, at(0s));
  ASSERT_FALSE(one_more);
  EXPECT_EQ(one_more.error().kind, ErrorKind::Unavailable);
  schedule.succeeded(second);
  EXPECT_TRUE(schedule.add({}, at(0s)));
}

TEST(RetryScheduleDeathTest, AbortsWhenAnAttemptEndsTwice) {
  RetrySchedule schedule;
  const RetryEntry entry = schedule.add({}, at(0s)).value();
  std::ignore = schedule.failed(entry, refused(), at(0s));
  EXPECT_DEATH(schedule.succeeded(entry), "is_waiting");
  EXPECT_DEATH(schedule.succeeded(entry + 1), "entries_.end");
}

}  // namespace
}  // namespace muster::rpc
