#include "muster/agent/restarts.h"

#include <gtest/gtest.h>

namespace muster::agent {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration time) { return TimePoint(1h) + time; }

RestartPolicy policy(std::int64_t restarts_max, Duration window = 0s) {
  return {.restarts_max = restarts_max, .window = window};
}

TEST(RestartHistory, CountsARoundOnceHoweverManyWorkersFailed) {
  RestartHistory history;
  history.add(3, at(0s));
  history.add(3, at(1s));
  EXPECT_EQ(history.used(policy(5), at(2s)), 1);
}

TEST(RestartHistory, IsExhaustedWhenAllRestartsAreUsed) {
  RestartHistory history;
  EXPECT_TRUE(history.exhausted(policy(0), at(0s)));
  EXPECT_FALSE(history.exhausted(policy(1), at(0s)));
  history.add(0, at(0s));
  EXPECT_TRUE(history.exhausted(policy(1), at(1s)));
}

TEST(RestartHistory, ForgetsWhatIsOlderThanTheWindow) {
  RestartHistory history;
  history.add(0, at(0s));
  history.add(1, at(50s));
  EXPECT_EQ(history.used(policy(9, 60s), at(59s)), 2);
  EXPECT_EQ(history.used(policy(9, 60s), at(60s)), 1);
  EXPECT_EQ(history.used(policy(9, 60s), at(110s)), 0);
}

TEST(RestartHistory, IsTheSameForANodeThatHearsOfItFromOthers) {
  RestartHistory old_node;
  old_node.add(0, at(0s));
  old_node.add(4, at(30s));
  RestartHistory new_node;
  // Its clock is another one.
  new_node.agree(old_node.known(at(40s)), at(1000s));
  EXPECT_EQ(new_node.used(policy(9), at(1000s)), 2);
  EXPECT_EQ(new_node.used(policy(9, 20s), at(1000s)), 1);
  EXPECT_EQ(new_node.known(at(1000s)), old_node.known(at(40s)));
}

TEST(RestartHistory, KeepsTheFirstTimeOfAFailureThatItHearsOfAgain) {
  RestartHistory history;
  history.add(0, at(0s));
  history.agree({{0, 1s}}, at(100s));
  EXPECT_EQ(history.used(policy(9, 60s), at(100s)), 0);
}

TEST(RestartHistory, ForgetsARoundThatTheOthersDoNotCount) {
  RestartHistory history;
  history.add(0, at(0s));
  history.add(1, at(1s));
  history.agree({{0, 3s}}, at(3s));
  EXPECT_EQ(history.used(policy(9), at(3s)), 1);
}

TEST(RestartHistory, WaitsTwiceAsLongBeforeEachFurtherRestart) {
  RestartPolicy backing_off = policy(9);
  backing_off.delay = 1s;
  backing_off.delay_max = 5s;
  RestartHistory history;
  const std::vector<Duration> expected = {1s, 2s, 4s, 5s, 5s};
  for (std::size_t round = 0; round < expected.size(); ++round) {
    history.add(round, at(0s));
    EXPECT_EQ(history.delay(backing_off, at(0s)), expected[round]) << round;
  }
}

TEST(RestartHistory, DoesNotWaitUnlessAskedTo) {
  RestartHistory history;
  history.add(0, at(0s));
  EXPECT_EQ(history.delay(policy(3), at(0s)), 0s);
}

TEST(RestartHistory, IsBounded) {
  RestartHistory history;
  for (std::uint64_t round = 0; round < kFailedRoundsMax + 10; ++round) history.add(round, at(0s));
  EXPECT_EQ(history.known(at(0s)).size(), kFailedRoundsMax);
}

}  // namespace
}  // namespace muster::agent
