#include "muster/watchdog/timers.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

namespace muster::watchdog {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration since) { return TimePoint(since); }

Timeout timeout(pid_t pid, std::string scope, Duration deadline, int signal) {
  Timeout made;
  made.pid = pid;
  made.scope = std::move(scope);
  made.deadline = at(deadline);
  made.signal = signal;
  return made;
}

// "PID SCOPE SIGNAL" of each.
std::vector<std::string> names(const std::vector<Timeout>& late) {
  std::vector<std::string> all;
  for (const Timeout& one : late)
    all.push_back(std::to_string(one.pid) + " " + one.scope + " " + std::to_string(one.signal));
  return all;
}
using Names = std::vector<std::string>;

TEST(Timers, HaveNoDeadlineWhenEmpty) {
  Timers timers;
  EXPECT_FALSE(timers.next_deadline());
  EXPECT_TRUE(timers.expire(kNever).empty());
}

TEST(Timers, ExpireAtTheirDeadlineAndOnce) {
  Timers timers;
  ASSERT_TRUE(timers.set(timeout(10, "step", 5s, SIGKILL)));
  EXPECT_EQ(timers.next_deadline(), at(5s));
  EXPECT_TRUE(timers.expire(at(5s) - 1ns).empty());
  EXPECT_EQ(names(timers.expire(at(5s))), Names{"10 step 9"});
  EXPECT_TRUE(timers.expire(at(6s)).empty());
  EXPECT_EQ(timers.size(), 0U);
}

TEST(Timers, ThatAreSetAgainAreMoved) {
  Timers timers;
  ASSERT_TRUE(timers.set(timeout(10, "step", 5s, SIGKILL)));
  ASSERT_TRUE(timers.set(timeout(10, "step", 9s, SIGTERM)));
  EXPECT_EQ(timers.size(), 1U);
  EXPECT_TRUE(timers.expire(at(8s)).empty());
  EXPECT_EQ(names(timers.expire(at(9s))), Names{"10 step 15"});
}

TEST(Timers, ThatAreReleasedDoNotExpire) {
  Timers timers;
  ASSERT_TRUE(timers.set(timeout(10, "step", 5s, SIGKILL)));
  ASSERT_TRUE(timers.set(timeout(11, "step", 6s, SIGKILL)));
  EXPECT_TRUE(timers.release(10, "step"));
  EXPECT_FALSE(timers.release(10, "step"));
  EXPECT_FALSE(timers.release(11, "other"));
  EXPECT_FALSE(timers.release(12, "step"));
  EXPECT_EQ(timers.next_deadline(), at(6s));
  EXPECT_EQ(names(timers.expire(at(7s))), Names{"11 step 9"});
}

TEST(Timers, GoWithTheirProcess) {
  Timers timers;
  ASSERT_TRUE(timers.set(timeout(10, "a", 5s, SIGKILL)));
  ASSERT_TRUE(timers.set(timeout(10, "b", 6s, SIGKILL)));
  ASSERT_TRUE(timers.set(timeout(11, "a", 7s, SIGKILL)));
  EXPECT_EQ(timers.count(10), 2U);
  EXPECT_EQ(timers.drop(10), 2U);
  EXPECT_EQ(timers.drop(10), 0U);
  EXPECT_EQ(timers.count(10), 0U);
  EXPECT_EQ(names(timers.expire(at(9s))), Names{"11 a 9"});
}

TEST(Timers, ExpireInTheOrderOfTheirDeadlines) {
  Timers timers;
  ASSERT_TRUE(timers.set(timeout(10, "late", 7s, 0)));
  ASSERT_TRUE(timers.set(timeout(12, "early", 5s, 0)));
  ASSERT_TRUE(timers.set(timeout(11, "first of two", 6s, 0)));
  ASSERT_TRUE(timers.set(timeout(9, "second of two", 6s, 0)));
  EXPECT_EQ(names(timers.expire(at(9s))),
            (Names{"12 early 0", "11 first of two 0", "9 second of two 0", "10 late 0"}));
}

TEST(Timers, ReportAProcessUpToTheFirstTimerWithASignal) {
  Timers timers;
  ASSERT_TRUE(timers.set(timeout(10, "warn", 1s, 0)));
  ASSERT_TRUE(timers.set(timeout(10, "kill", 2s, SIGTERM)));
  ASSERT_TRUE(timers.set(timeout(10, "kill later", 3s, SIGKILL)));
  ASSERT_TRUE(timers.set(timeout(10, "not late", 30s, SIGKILL)));
  ASSERT_TRUE(timers.set(timeout(11, "other", 3s, SIGKILL)));
  EXPECT_EQ(names(timers.expire(at(5s))), (Names{"10 warn 0", "10 kill 15", "11 other 9"}));
  EXPECT_EQ(timers.size(), 0U);
}

TEST(Timers, OfAProcessThatIsNotSignalledGoOn) {
  Timers timers;
  ASSERT_TRUE(timers.set(timeout(10, "warn", 1s, 0)));
  ASSERT_TRUE(timers.set(timeout(10, "kill", 9s, SIGKILL)));
  EXPECT_EQ(names(timers.expire(at(5s))), Names{"10 warn 0"});
  EXPECT_EQ(names(timers.expire(at(9s))), Names{"10 kill 9"});
}

TEST(Timers, ThatNeverExpireAreNoDeadline) {
  Timers timers;
  Timeout endless = timeout(10, "endless", 0s, SIGKILL);
  endless.deadline = kNever;
  ASSERT_TRUE(timers.set(endless));
  EXPECT_FALSE(timers.next_deadline());
  EXPECT_TRUE(timers.expire(at(1h)).empty());
  EXPECT_EQ(timers.size(), 1U);
}

TEST(Timers, TakeScopesUpToTheLimit) {
  Timers timers;
  EXPECT_TRUE(timers.set(timeout(10, std::string(kScopeBytesMax, 'x'), 1s, 0)));
  const auto refused = timers.set(timeout(10, std::string(kScopeBytesMax + 1, 'x'), 1s, 0));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
}

TEST(Timers, AreBoundedInNumberAndCanBeMovedAtTheLimit) {
  Timers timers;
  for (std::size_t index = 0; index < kTimersMax; ++index)
    ASSERT_TRUE(timers.set(timeout(10, std::to_string(index), 1s, 0)));
  const auto refused = timers.set(timeout(11, "one more", 1s, 0));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(timers.count(11), 0U);
  EXPECT_TRUE(timers.set(timeout(10, "7", 2s, 0)));
  EXPECT_TRUE(timers.release(10, "8"));
  EXPECT_TRUE(timers.set(timeout(11, "one more", 1s, 0)));
  timers.clear();
  EXPECT_EQ(timers.size(), 0U);
}

}  // namespace
}  // namespace muster::watchdog
