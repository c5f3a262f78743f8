#include "muster/rendezvous/turnstile.h"

#include "muster/sim/loop.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;

class TurnstileTest : public ::testing::Test {
 protected:
  // Passes, stays for `length`, goes.
  Task<void> visit(std::string name, Duration length) {
    const auto pass = co_await turnstile.pass();
    log.push_back(name + " in");
    const TimePoint until = loop.now() + length;
    co_await sleep_until(loop, until);
    log.push_back(name + " out");
  }

  sim::Loop loop;
  Turnstile turnstile{loop};
  std::vector<std::string> log;
};
using Log = std::vector<std::string>;

TEST_F(TurnstileTest, LetsTheFirstOneThroughAtOnce) {
  TaskScope scope;
  scope.start(visit("a", 1s));
  EXPECT_EQ(log, Log{"a in"});
}

TEST_F(TurnstileTest, LetsTheOthersThroughOneByOneInTheirOrder) {
  TaskScope scope;
  for (const char* name : {"a", "b", "c"}) scope.start(visit(name, 1s));
  loop.advance(500ms);
  EXPECT_EQ(log, Log{"a in"});
  loop.advance(10s);
  EXPECT_EQ(log, (Log{"a in", "a out", "b in", "b out", "c in", "c out"}));
  log.clear();
  scope.start(visit("d", 1s));
  EXPECT_EQ(log, Log{"d in"});
}

TEST_F(TurnstileTest, LetsTheNextOneThroughWhenTheOneInsideIsCancelled) {
  TaskScope inside;
  TaskScope others;
  inside.start(visit("a", 1h));
  others.start(visit("b", 1s));
  inside.cancel_all();
  loop.run_until_idle();
  EXPECT_EQ(log, (Log{"a in", "b in"}));
}

TEST_F(TurnstileTest, ForgetsOneThatIsCancelledInTheQueue) {
  TaskScope cancelled;
  TaskScope others;
  others.start(visit("a", 1s));
  cancelled.start(visit("b", 1s));
  others.start(visit("c", 1s));
  cancelled.cancel_all();
  loop.advance(1s);
  EXPECT_EQ(log, (Log{"a in", "a out", "c in"}));
}

TEST_F(TurnstileTest, PassesTheTurnOnWhenTheOneWhoHasItIsCancelledBeforeTakingIt) {
  TaskScope first;
  TaskScope second;
  TaskScope third;
  first.start(visit("a", 1h));
  second.start(visit("b", 1s));
  third.start(visit("c", 1s));
  first.cancel_all();   // b has the turn, and will run in this turn of the loop
  second.cancel_all();  // but does not live to see it
  loop.run_until_idle();
  EXPECT_EQ(log, (Log{"a in", "c in"}));
}

TEST_F(TurnstileTest, IsOpenAgainWhenTheLastOneWhoHadTheTurnIsCancelled) {
  TaskScope first;
  TaskScope second;
  first.start(visit("a", 1h));
  second.start(visit("b", 1s));
  first.cancel_all();
  second.cancel_all();
  TaskScope third;
  third.start(visit("c", 1s));
  EXPECT_EQ(log, (Log{"a in", "c in"}));
}

}  // namespace
}  // namespace muster::rendezvous
