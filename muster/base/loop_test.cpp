#include "muster/base/loop.h"

#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/sim/loop.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace muster {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration since_start) { return TimePoint(since_start); }

TEST(Timer, CallsItsFunctionOnceWhenItsTimeHasCome) {
  sim::Loop loop;
  int count = 0;
  Timer timer(loop, [&] { ++count; });
  EXPECT_FALSE(timer.pending());
  timer.set(at(1s));
  EXPECT_TRUE(timer.pending());
  loop.run_until(at(1s) - 1ns);
  EXPECT_EQ(count, 0);
  loop.run_until(at(1s));
  EXPECT_EQ(count, 1);
  EXPECT_FALSE(timer.pending());
  loop.advance(1h);
  EXPECT_EQ(count, 1);
}

TEST(Timer, KeepsTheOrderOfTimeAndThenTheOrderOfSetting) {
  sim::Loop loop;
  std::vector<int> order;
  Timer first(loop, [&] { order.push_back(1); });
  Timer second(loop, [&] { order.push_back(2); });
  Timer third(loop, [&] { order.push_back(3); });
  Timer fourth(loop, [&] { order.push_back(4); });
  fourth.set(at(2s));
  second.set(at(1s));
  third.set(at(1s));
  first.set(at(500ms));
  loop.advance(10s);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
}

TEST(Timer, CanBeCancelledAndSetAgain) {
  sim::Loop loop;
  int count = 0;
  Timer timer(loop, [&] { ++count; });
  timer.cancel();
  timer.set(at(1s));
  timer.cancel();
  loop.run_until(at(2s));
  EXPECT_EQ(count, 0);
  timer.set(at(3s));
  timer.set(kNever);
  EXPECT_FALSE(timer.pending());
  timer.set(at(4s));
  loop.run_until(at(5s));
  EXPECT_EQ(count, 1);
}

TEST(Timer, CanBeMovedEarlierAndLater) {
  sim::Loop loop;
  std::vector<TimePoint> times;
  Timer timer(loop, [&] { times.push_back(loop.now()); });
  timer.set(at(10s));
  timer.set(at(2s));
  loop.run_until(at(5s));
  timer.set(at(6s));
  timer.set(at(8s));
  loop.run_until(at(20s));
  EXPECT_EQ(times, (std::vector<TimePoint>{at(2s), at(8s)}));
}

TEST(Timer, IsCancelledByItsDestruction) {
  sim::Loop loop;
  auto timer = std::make_unique<Timer>(loop, [] { FAIL(); });
  timer->set(at(1s));
  timer.reset();
  loop.advance(2s);
}

TEST(Timer, MayDestroyItself) {
  sim::Loop loop;
  std::string last_words;
  std::unique_ptr<Timer> timer;
  // The text is too long to be stored in place, so that using it after it is freed would show.
  timer = std::make_unique<Timer>(
      loop, [&last_words, &timer, text = std::string("a sentence that lives on the heap")] {
        timer.reset();
        last_words = text;
      });
  timer->set(at(1s));
  loop.advance(2s);
  EXPECT_EQ(last_words, "a sentence that lives on the heap");
}

TEST(Timer, MayCancelOrDestroyOthersThatAreDueWithIt) {
  sim::Loop loop;
  auto destroyed = std::make_unique<Timer>(loop, [] { FAIL(); });
  Timer cancelled(loop, [] { FAIL(); });
  Timer first(loop, [&] {
    destroyed.reset();
    cancelled.cancel();
  });
  first.set(at(1s));
  destroyed->set(at(1s));
  cancelled.set(at(1s));
  loop.advance(2s);
}

TEST(Timer, ExpiresInTheNextTurnWhenSetIntoThePast) {
  sim::Loop loop;
  loop.advance(10s);
  std::vector<std::string> log;
  Timer again(loop, [&] {
    log.emplace_back("again");
    if (log.size() < 5) again.set(at(1s));
  });
  Timer other(loop, [&] { log.emplace_back("other"); });
  again.set(at(5s));
  other.set(at(10s));
  loop.run_until_idle();
  EXPECT_EQ(loop.now(), at(10s));
  EXPECT_EQ(log, (std::vector<std::string>{"again", "other", "again", "again", "again"}));
}

TEST(Timer, DoesNotStarveOthersByAlwaysSettingItselfIntoThePast) {
  sim::Loop loop;
  loop.set_turns_max(100);
  bool other_ran = false;
  Timer greedy(loop, [&] {
    if (!other_ran) greedy.set(TimePoint());
  });
  Timer other(loop, [&] { other_ran = true; });
  greedy.set(at(1s));
  other.set(at(1s));
  loop.run_until(at(1s));
  EXPECT_TRUE(other_ran);
}

TEST(Timer, ComesInOrderForAHundredThousand) {
  constexpr int kCount = 100'000;
  sim::Loop loop;
  Random random(1);
  TimePoint last;
  int fired_count = 0;
  int cancelled_count = 0;
  std::vector<std::unique_ptr<Timer>> timers;
  for (int index = 0; index < kCount; ++index) {
    timers.push_back(std::make_unique<Timer>(loop, [&] {
      EXPECT_GE(loop.now(), last);
      last = loop.now();
      ++fired_count;
    }));
    timers.back()->set(TimePoint(std::chrono::microseconds(random.below(1'000'000))));
  }
  for (const auto& timer : timers) {
    const std::uint64_t fate = random.below(10);
    if (fate == 0) {
      timer->cancel();
      ++cancelled_count;
    } else if (fate < 4) {
      timer->set(TimePoint(std::chrono::microseconds(random.below(1'000'000))));
    }
  }
  loop.advance(1s);
  EXPECT_EQ(fired_count, kCount - cancelled_count);
}

Task<void> note(Loop& loop, TimePoint when, std::string text, std::vector<std::string>& log) {
  co_await sleep_until(loop, when);
  log.push_back(std::move(text));
}

TEST(SleepUntil, WakesCoroutinesInOrder) {
  sim::Loop loop;
  std::vector<std::string> log;
  TaskScope scope;
  scope.start(note(loop, at(2s), "late", log));
  scope.start(note(loop, at(1s), "early", log));
  scope.start(note(loop, at(1s), "just as early", log));
  scope.start(note(loop, at(-1s), "at once, but not inside the call", log));
  EXPECT_TRUE(log.empty());
  loop.advance(3s);
  EXPECT_EQ(log, (std::vector<std::string>{"at once, but not inside the call", "early",
                                           "just as early", "late"}));
}

TEST(SleepUntil, WaitsForEverIfToldTo) {
  sim::Loop loop;
  std::vector<std::string> log;
  TaskScope scope;
  scope.start(note(loop, kNever, "never", log));
  EXPECT_FALSE(loop.run_until([&] { return !log.empty(); }));
  EXPECT_FALSE(scope.empty());
}

// Gives way to the others that are ready, for ever.
class Yield {
 public:
  explicit Yield(Loop& loop) : loop_(loop) {}
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> coroutine) { loop_.soon(ready_, coroutine); }
  void await_resume() const {}

 private:
  Loop& loop_;
  Ready ready_;
};
Yield yield_to(Loop& loop) { return Yield(loop); }

Task<void> spin(Loop& loop, int& count, int count_max) {
  while (count < count_max) {
    ++count;
    co_await yield_to(loop);
  }
}

TEST(Loop, LetsOthersInBetweenCoroutinesThatAreAlwaysReady) {
  sim::Loop loop;
  int count = 0;
  int count_when_posted_ran = 0;
  TaskScope scope;
  scope.start(spin(loop, count, 100'000));
  loop.post([&] { count_when_posted_ran = count; });
  loop.run_until_idle();
  EXPECT_EQ(count, 100'000);
  EXPECT_LT(count_when_posted_ran, 100'000);
}

TEST(Loop, TakesReadyCoroutinesInTurns) {
  sim::Loop loop;
  int one = 0;
  int other = 0;
  TaskScope scope;
  scope.start(spin(loop, one, 1'000));
  scope.start(spin(loop, other, 10));
  loop.post([&] { scope.cancel_all(); });
  loop.run_until_idle();
  EXPECT_TRUE(scope.empty());
}

TEST(LoopDeathTest, InsistsThatItsTimersGoFirst) {
  EXPECT_DEATH(
      {
        auto loop = std::make_unique<sim::Loop>();
        Timer timer(*loop, [] {});
        timer.set(at(1s));
        loop.reset();
      },
      "assertion failed");
}

}  // namespace
}  // namespace muster
