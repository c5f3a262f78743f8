#include "muster/watchdog/deadlines.h"

#include "muster/base/log.h"
#include "muster/watchdog/watchdog_test.h"

#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

namespace muster::watchdog {
namespace {

using namespace std::chrono_literals;

class DeadlinesTest : public testing::Test {
 protected:
  Timeout timeout(pid_t pid, std::string scope, TimePoint deadline, int signal) {
    Timeout made;
    made.pid = pid;
    made.scope = std::move(scope);
    made.deadline = deadline;
    made.signal = signal;
    return made;
  }

  net::EpollLoop loop_;
  bool belongs_ = true;
  std::vector<std::string> late_;
  // What is done with one that is late; by default it gets its signal.
  std::function<Result<>(const Timeout&)> act_;
  Deadlines deadlines_{loop_,
                       {.belongs = [this](pid_t) { return belongs_; },
                        .expired = [this](const Timeout& late) -> Result<> {
                          late_.push_back(late.scope);
                          if (act_) return act_(late);
                          loop_.stop();
                          if (late.signal == 0) return {};
                          return deadlines_.signal(late.pid, late.signal);
                        },
                        .signal_retry = 1ms,
                        .processes_max = 2}};
};
using Scopes = std::vector<std::string>;

TEST_F(DeadlinesTest, KillsAProcessThatIsLate) {
  Sleeper sleeper;
  ASSERT_TRUE(deadlines_.set(timeout(sleeper.pid(), "step", loop_.now() + 5ms, SIGTERM)));
  EXPECT_TRUE(late_.empty());
  run_until_stopped(loop_);
  EXPECT_EQ(late_, Scopes{"step"});
  EXPECT_EQ(sleeper.wait(), SIGTERM);
  EXPECT_EQ(deadlines_.timer_count(), 0U);
  EXPECT_EQ(deadlines_.expired_count(), 1U);
}

TEST_F(DeadlinesTest, ReportsADeadlineThatHasPassedButNeverInsideTheCall) {
  Sleeper sleeper;
  ASSERT_TRUE(deadlines_.set(timeout(sleeper.pid(), "step", loop_.now() - 1s, 0)));
  EXPECT_TRUE(late_.empty());
  run_until_stopped(loop_);
  EXPECT_EQ(late_, Scopes{"step"});
}

TEST_F(DeadlinesTest, ForgetsATimerThatIsReleasedInTime) {
  Sleeper sleeper;
  ASSERT_TRUE(deadlines_.set(timeout(sleeper.pid(), "released", loop_.now(), SIGKILL)));
  ASSERT_TRUE(deadlines_.set(timeout(sleeper.pid(), "moved", loop_.now(), SIGKILL)));
  ASSERT_TRUE(deadlines_.set(timeout(sleeper.pid(), "moved", loop_.now() + 1h, SIGKILL)));
  EXPECT_TRUE(deadlines_.release(sleeper.pid(), "released"));
  EXPECT_FALSE(deadlines_.release(sleeper.pid(), "released"));
  run_what_is_due(loop_);
  EXPECT_TRUE(late_.empty());
  EXPECT_EQ(deadlines_.timer_count(), 1U);
}

TEST_F(DeadlinesTest, DropsTheTimersOfAProcessThatEnds) {
  Sleeper sleeper;
  ASSERT_TRUE(deadlines_.set(timeout(sleeper.pid(), "step", loop_.now() + 1h, SIGKILL)));
  EXPECT_EQ(deadlines_.process_count(), 1U);
  sleeper.kill();
  run_what_is_due(loop_);
  EXPECT_EQ(deadlines_.process_count(), 0U);
  EXPECT_EQ(deadlines_.timer_count(), 0U);
  EXPECT_TRUE(late_.empty());
}

TEST_F(DeadlinesTest, DoesNotReportAProcessThatEndedBeforeItsDeadlineWasSeen) {
  Sleeper sleeper;
  ASSERT_TRUE(deadlines_.set(timeout(sleeper.pid(), "step", loop_.now(), SIGKILL)));
  sleeper.end();
  run_what_is_due(loop_);
  EXPECT_TRUE(late_.empty());
  EXPECT_EQ(deadlines_.timer_count(), 0U);
}

TEST_F(DeadlinesTest, RefusesProcessesThatHaveEnded) {
  Sleeper sleeper;
  const pid_t pid = sleeper.pid();
  sleeper.end();
  const auto refused = deadlines_.set(timeout(pid, "step", loop_.now(), SIGKILL));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Closed);
}

TEST_F(DeadlinesTest, RefusesProcessesThatAreNotOurs) {
  Sleeper sleeper;
  belongs_ = false;
  const auto refused = deadlines_.set(timeout(sleeper.pid(), "step", loop_.now(), SIGKILL));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
  EXPECT_EQ(deadlines_.process_count(), 0U);
}

TEST_F(DeadlinesTest, NeverTakesTheAgentForAWorker) {
  for (const pid_t pid : {::getpid(), pid_t(1), pid_t(0), pid_t(-1)}) {
    const auto refused = deadlines_.set(timeout(pid, "step", loop_.now(), SIGKILL));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
  }
}

TEST_F(DeadlinesTest, RefusesSignalsThatThereAreNot) {
  Sleeper sleeper;
  EXPECT_FALSE(deadlines_.set(timeout(sleeper.pid(), "step", loop_.now(), SIGRTMAX + 1)));
  EXPECT_TRUE(deadlines_.set(timeout(sleeper.pid(), "step", loop_.now(), SIGRTMAX)));
  EXPECT_TRUE(deadlines_.set(timeout(sleeper.pid(), "step", loop_.now(), -7)));
  act_ = [this](const Timeout& late) -> Result<> {
    EXPECT_EQ(late.signal, 0);
    loop_.stop();
    return {};
  };
  run_until_stopped(loop_);
}

TEST_F(DeadlinesTest, TriesAgainWhatCouldNotBeDone) {
  int warnings = 0;
  log::set_sink([&](log::Level level, std::string_view, std::string_view) {
    if (level == log::Level::Warn) ++warnings;
  });
  Sleeper sleeper;
  act_ = [this](const Timeout& late) -> Result<> {
    if (late_.size() < 3) return fail(ErrorKind::Unavailable, "not yet");
    loop_.stop();
    return deadlines_.signal(late.pid, late.signal);
  };
  ASSERT_TRUE(deadlines_.set(timeout(sleeper.pid(), "step", loop_.now(), SIGTERM)));
  run_until_stopped(loop_);
  log::set_sink({});
  EXPECT_EQ(late_, (Scopes{"step", "step", "step"}));
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(deadlines_.expired_count(), 1U);
  EXPECT_EQ(sleeper.wait(), SIGTERM);
}

TEST_F(DeadlinesTest, StopsTryingWhenTheProcessEnds) {
  Sleeper sleeper;
  log::set_level(log::Level::Error);
  act_ = [&](const Timeout&) -> Result<> {
    sleeper.kill();
    loop_.stop();
    return fail(ErrorKind::Unavailable, "not yet");
  };
  ASSERT_TRUE(deadlines_.set(timeout(sleeper.pid(), "step", loop_.now(), SIGTERM)));
  run_until_stopped(loop_);
  log::set_level(log::Level::Info);
  run_what_is_due(loop_);
  EXPECT_EQ(deadlines_.timer_count(), 0U);
}

TEST_F(DeadlinesTest, MayBeClearedByWhoeverHearsOfTheFirst) {
  Sleeper first;
  Sleeper second;
  act_ = [this](const Timeout&) -> Result<> {
    deadlines_.clear();
    loop_.stop();
    return fail(ErrorKind::Unavailable, "never mind");
  };
  ASSERT_TRUE(deadlines_.set(timeout(first.pid(), "first", loop_.now(), SIGKILL)));
  ASSERT_TRUE(deadlines_.set(timeout(second.pid(), "second", loop_.now(), SIGKILL)));
  run_until_stopped(loop_);
  EXPECT_EQ(late_, Scopes{"first"});
  EXPECT_EQ(deadlines_.timer_count(), 0U);
  EXPECT_EQ(deadlines_.process_count(), 0U);
}

TEST_F(DeadlinesTest, MayForgetAnotherWhileOneIsReported) {
  Sleeper first;
  Sleeper second;
  act_ = [&](const Timeout&) -> Result<> {
    deadlines_.forget(second.pid());
    loop_.stop();
    return {};
  };
  ASSERT_TRUE(deadlines_.set(timeout(first.pid(), "first", loop_.now(), SIGKILL)));
  ASSERT_TRUE(deadlines_.set(timeout(second.pid(), "second", loop_.now(), SIGKILL)));
  run_until_stopped(loop_);
  run_what_is_due(loop_);
  EXPECT_EQ(late_, Scopes{"first"});
}

TEST_F(DeadlinesTest, TakesProcessesUpToTheLimitAndForgetsThoseWithoutTimers) {
  Sleeper first;
  Sleeper second;
  Sleeper third;
  ASSERT_TRUE(deadlines_.set(timeout(first.pid(), "step", loop_.now() + 1h, SIGKILL)));
  ASSERT_TRUE(deadlines_.set(timeout(second.pid(), "step", loop_.now() + 1h, SIGKILL)));
  const auto refused = deadlines_.set(timeout(third.pid(), "step", loop_.now() + 1h, SIGKILL));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Unavailable);
  EXPECT_TRUE(deadlines_.set(timeout(second.pid(), "more", loop_.now() + 1h, SIGKILL)));
  EXPECT_TRUE(deadlines_.release(first.pid(), "step"));
  EXPECT_EQ(deadlines_.process_count(), 2U);
  EXPECT_TRUE(deadlines_.set(timeout(third.pid(), "step", loop_.now() + 1h, SIGKILL)));
  EXPECT_EQ(deadlines_.process_count(), 2U);
}

TEST_F(DeadlinesTest, CountsAProcessThatHasEndedAsSignalled) {
  Sleeper sleeper;
  const pid_t pid = sleeper.pid();
  ASSERT_TRUE(deadlines_.set(timeout(pid, "step", loop_.now() + 1h, SIGKILL)));
  sleeper.end();
  EXPECT_TRUE(deadlines_.signal(pid, SIGKILL));
  deadlines_.forget(pid);
  EXPECT_TRUE(deadlines_.signal(pid, SIGKILL));
}

TEST_F(DeadlinesTest, SaysWhatItCannotSend) {
  Sleeper sleeper;
  EXPECT_FALSE(deadlines_.signal(sleeper.pid(), 1000));
}

}  // namespace
}  // namespace muster::watchdog
