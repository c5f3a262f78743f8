#include "muster/base/task.h"

#include "muster/sim/loop.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration since_start) { return TimePoint(since_start); }

// Counts how many of it are alive.
class Witness {
 public:
  explicit Witness(int& alive_count) : alive_count_(&alive_count) { ++*alive_count_; }
  Witness(Witness&& other) noexcept : alive_count_(std::exchange(other.alive_count_, nullptr)) {}
  Witness& operator=(Witness&&) = delete;
  ~Witness() {
    if (alive_count_ != nullptr) --*alive_count_;
  }

 private:
  int* alive_count_;
};

// Runs a function when it goes.
class AtEnd {
 public:
  explicit AtEnd(std::function<void()> action) : action_(std::move(action)) {}
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  ~AtEnd() { action_(); }

 private:
  std::function<void()> action_;
};

Task<int> number(int value) { co_return value; }

Task<std::unique_ptr<std::string>> boxed(std::string text) {
  co_return std::make_unique<std::string>(std::move(text));
}

Task<Result<std::unique_ptr<int>>> boxed_or_failed(bool good) {
  if (!good) co_return fail(ErrorKind::Conflict, "no");
  co_return std::make_unique<int>(5);
}

Task<int> number_after(Loop& loop, Duration pause, int value) {
  co_await sleep_until(loop, loop.now() + pause);
  co_return value;
}

Task<Result<int>> result_after(Loop& loop, Duration pause, int value) {
  co_await sleep_until(loop, loop.now() + pause);
  co_return value;
}

Task<void> note_start_and_end(Loop& loop, Duration pause, std::string name,
                              std::vector<std::string>& log) {
  log.push_back(name + " starts");
  co_await sleep_until(loop, loop.now() + pause);
  log.push_back(name + " ends");
}

Task<void> hold(Loop& loop, Witness witness, Duration pause) {
  const Witness local = std::move(witness);
  co_await sleep_until(loop, loop.now() + pause);
}

Task<void> hold_nested(Loop& loop, int depth, int& alive_count) {
  const Witness local(alive_count);
  if (depth == 0) {
    co_await sleep_until(loop, kNever);
  } else {
    co_await hold_nested(loop, depth - 1, alive_count);
  }
}

Task<std::string> joined(Loop& loop) {
  std::string text = "joined";
  const std::unique_ptr<std::string> word = co_await boxed(std::move(text));
  const int one = co_await number(1);
  const int two = co_await number_after(loop, 1s, 2);
  co_return *word + std::to_string(one) + std::to_string(two);
}

TEST(Task, ProducesValues) {
  sim::Loop loop;
  EXPECT_EQ(loop.block_on(number(7)), 7);
  EXPECT_EQ(loop.block_on(joined(loop)), "joined12");
  EXPECT_EQ(loop.now(), at(1s));
}

TEST(Task, ProducesWhatCanOnlyBeMoved) {
  sim::Loop loop;
  EXPECT_EQ(*loop.block_on(boxed("text")), "text");
  EXPECT_EQ(**loop.block_on(boxed_or_failed(true)), 5);
  EXPECT_EQ(loop.block_on(boxed_or_failed(false)).error(), (Error{ErrorKind::Conflict, "no"}));
}

Task<void> mark(bool& ran) {
  ran = true;
  co_return;
}

TEST(Task, DoesNothingUntilItIsAwaited) {
  bool ran = false;
  {
    const Task<void> task = mark(ran);
    EXPECT_FALSE(ran);
  }
  EXPECT_FALSE(ran);
  TaskScope scope;
  scope.start(mark(ran));
  EXPECT_TRUE(ran);
}

TEST(Task, CanBeMovedResetAndReplaced) {
  int alive_count = 0;
  sim::Loop loop;
  Task<void> task = hold(loop, Witness(alive_count), 1s);
  EXPECT_EQ(alive_count, 1);
  Task<void> moved = std::move(task);
  EXPECT_EQ(alive_count, 1);
  moved = hold(loop, Witness(alive_count), 1s);
  EXPECT_EQ(alive_count, 1);
  moved.reset();
  EXPECT_EQ(alive_count, 0);
  moved.reset();
}

Task<int> number_and_frame(int value, std::uintptr_t& frame) {
  frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  co_return value;
}

Task<std::int64_t> sum_of_many(int count, std::uintptr_t& first_frame, std::uintptr_t& last_frame) {
  std::int64_t sum = 0;
  for (int index = 0; index < count; ++index) {
    std::uintptr_t& frame = index == 0 ? first_frame : last_frame;
    sum += co_await number_and_frame(index, frame);
  }
  co_return sum;
}

TEST(Task, DoesNotDeepenTheStackOverChildrenThatFinishAtOnce) {
  sim::Loop loop;
  std::uintptr_t first_frame = 0;
  std::uintptr_t last_frame = 0;
  EXPECT_EQ(loop.block_on(sum_of_many(1'000'000, first_frame, last_frame)), 499'999'500'000);
  EXPECT_EQ(first_frame, last_frame);
}

Task<std::int64_t> sum_of_waits(Loop& loop, int count) {
  std::int64_t sum = 0;
  for (int index = 0; index < count; ++index) {
    const Duration pause = index % 3 == 0 ? 1us : 0us;
    sum += co_await number_after(loop, pause, index);
  }
  co_return sum;
}

TEST(Task, DoesNotDeepenTheStackOverChildrenThatWait) {
  sim::Loop loop;
  EXPECT_EQ(loop.block_on(sum_of_waits(loop, 200'000)), 19'999'900'000);
}

TEST(Task, DestroysEverythingInItWhenDestroyedWhileWaiting) {
  sim::Loop loop;
  int alive_count = 0;
  {
    TaskScope scope;
    scope.start(hold_nested(loop, 10, alive_count));
    EXPECT_EQ(alive_count, 11);
  }
  EXPECT_EQ(alive_count, 0);
}

TEST(Task, WithdrawsItsTimerWhenDestroyed) {
  sim::Loop loop;
  int alive_count = 0;
  TaskScope scope;
  scope.start(hold(loop, Witness(alive_count), 1s));
  EXPECT_TRUE(loop.next_event());
  scope.cancel_all();
  EXPECT_EQ(alive_count, 0);
  EXPECT_FALSE(loop.next_event());
}

Task<void> wait_for(Oneshot<int>& value, int& result, Witness witness) {
  const Witness local = std::move(witness);
  result = co_await value;
}

TEST(Task, LeavesTheQueueWhenDestroyedJustBeforeItGoesOn) {
  sim::Loop loop;
  int alive_count = 0;
  int result = 0;
  Oneshot<int> value(loop);
  TaskScope scope;
  scope.start(wait_for(value, result, Witness(alive_count)));
  value.set(3);  // queued
  scope.cancel_all();
  EXPECT_EQ(alive_count, 0);
  loop.run_until_idle();
  EXPECT_EQ(result, 0);
}

TEST(TaskScope, StartsTasksAtOnceAndForgetsThoseThatFinish) {
  sim::Loop loop;
  std::vector<std::string> log;
  TaskScope scope;
  EXPECT_TRUE(scope.empty());
  scope.start(note_start_and_end(loop, 2s, "slow", log));
  scope.start(note_start_and_end(loop, 1s, "fast", log));
  EXPECT_EQ(log, (std::vector<std::string>{"slow starts", "fast starts"}));
  loop.advance(1s);
  EXPECT_FALSE(scope.empty());
  loop.advance(1s);
  EXPECT_TRUE(scope.empty());
  EXPECT_EQ(log.back(), "slow ends");
}

TEST(TaskScope, FreesATaskThatFinishes) {
  sim::Loop loop;
  int alive_count = 0;
  TaskScope scope;
  for (int index = 0; index < 100; ++index) {
    scope.start(hold(loop, Witness(alive_count), std::chrono::seconds(1 + index % 7)));
  }
  EXPECT_EQ(alive_count, 100);
  loop.advance(3s);
  EXPECT_EQ(alive_count, 100 - 15 - 15 - 14);
  loop.advance(4s);
  EXPECT_EQ(alive_count, 0);
  EXPECT_TRUE(scope.empty());
}

TEST(TaskScope, CancelsWhatIsLeftAndCanBeUsedAgain) {
  sim::Loop loop;
  int alive_count = 0;
  TaskScope scope;
  scope.start(hold(loop, Witness(alive_count), 1s));
  scope.start(hold(loop, Witness(alive_count), 2s));
  scope.cancel_all();
  EXPECT_EQ(alive_count, 0);
  EXPECT_TRUE(scope.empty());
  scope.start(hold(loop, Witness(alive_count), 1s));
  EXPECT_EQ(alive_count, 1);
}

Task<void> call_when_destroyed(Loop& loop, std::function<void()> action) {
  const AtEnd at_end(std::move(action));
  co_await sleep_until(loop, kNever);
}

TEST(TaskScope, MayBeCancelledAgainByATaskThatIsBeingCancelled) {
  sim::Loop loop;
  int alive_count = 0;
  TaskScope scope;
  scope.start(hold(loop, Witness(alive_count), 1s));
  scope.start(call_when_destroyed(loop, [&] { scope.cancel_all(); }));
  scope.start(hold(loop, Witness(alive_count), 1s));
  scope.cancel_all();
  EXPECT_EQ(alive_count, 0);
  EXPECT_TRUE(scope.empty());
}

TEST(TaskScope, CancelsATaskThatAnotherStartsWhileItIsCancelled) {
  sim::Loop loop;
  int alive_count = 0;
  TaskScope scope;
  scope.start(
      call_when_destroyed(loop, [&] { scope.start(hold(loop, Witness(alive_count), 1s)); }));
  scope.cancel_all();
  EXPECT_EQ(alive_count, 0);
  EXPECT_TRUE(scope.empty());
}

TEST(Oneshot, NeverRunsItsWaiterInline) {
  sim::Loop loop;
  int alive_count = 0;
  int result = 0;
  Oneshot<int> value(loop);
  TaskScope scope;
  scope.start(wait_for(value, result, Witness(alive_count)));
  EXPECT_FALSE(value.is_set());
  value.set(3);
  EXPECT_TRUE(value.is_set());
  EXPECT_EQ(result, 0);
  loop.run_until_idle();
  EXPECT_EQ(result, 3);
}

TEST(Oneshot, KeepsItsFirstValue) {
  sim::Loop loop;
  int alive_count = 0;
  int result = 0;
  Oneshot<int> waited_for(loop);
  TaskScope scope;
  scope.start(wait_for(waited_for, result, Witness(alive_count)));
  waited_for.set(1);
  waited_for.set(2);
  loop.run_until_idle();
  EXPECT_EQ(result, 1);

  Oneshot<int> set_before(loop);
  set_before.set(3);
  set_before.set(4);
  scope.start(wait_for(set_before, result, Witness(alive_count)));
  EXPECT_EQ(result, 3);

  Oneshot<std::unique_ptr<int>> looked_at(loop);
  looked_at.set(std::make_unique<int>(5));
  looked_at.set(nullptr);
  EXPECT_EQ(*looked_at.take(), 5);
  EXPECT_TRUE(looked_at.is_set());
}

TEST(Oneshot, OutlivesAWaiterThatIsCancelled) {
  sim::Loop loop;
  int alive_count = 0;
  int result = 0;
  Oneshot<int> value(loop);
  TaskScope scope;
  scope.start(wait_for(value, result, Witness(alive_count)));
  scope.cancel_all();
  value.set(3);
  loop.run_until_idle();
  EXPECT_EQ(result, 0);
  scope.start(wait_for(value, result, Witness(alive_count)));
  EXPECT_EQ(result, 3);
}

TEST(Oneshot, MayBeForgottenAsSoonAsItIsSet) {
  sim::Loop loop;
  int alive_count = 0;
  int result = 0;
  std::map<int, Oneshot<int>> table;
  table.try_emplace(1, loop);
  TaskScope scope;
  scope.start(wait_for(table.at(1), result, Witness(alive_count)));
  table.at(1).set(3);
  table.erase(1);
  loop.run_until_idle();
  EXPECT_EQ(result, 3);
}

TEST(Oneshot, LeavesItsWaiterWaitingWhenItGoesUnset) {
  sim::Loop loop;
  int alive_count = 0;
  int result = 0;
  TaskScope scope;
  {
    Oneshot<int> value(loop);
    scope.start(wait_for(value, result, Witness(alive_count)));
  }
  loop.run_until_idle();
  EXPECT_EQ(alive_count, 1);
  scope.cancel_all();
  EXPECT_EQ(alive_count, 0);
}

TEST(OneshotDeathTest, HasOneWaiter) {
  sim::Loop loop;
  int alive_count = 0;
  int result = 0;
  Oneshot<int> value(loop);
  TaskScope scope;
  scope.start(wait_for(value, result, Witness(alive_count)));
  EXPECT_DEATH(scope.start(wait_for(value, result, Witness(alive_count))), "assertion failed");
}

TEST(WithDeadline, GivesTheResultThatComesInTime) {
  sim::Loop loop;
  const Result<int> result =
      loop.block_on(with_deadline(loop, at(5s), result_after(loop, 4s, 7), "too slow"));
  EXPECT_EQ(result.value(), 7);
  EXPECT_EQ(loop.now(), at(4s));
  EXPECT_FALSE(loop.next_event());
}

Task<Result<int>> held_result(Loop& loop, Witness witness) {
  const Witness local = std::move(witness);
  co_await sleep_until(loop, kNever);
  co_return 1;
}

TEST(WithDeadline, CancelsTheTaskAndSaysWhatTookTooLong) {
  sim::Loop loop;
  int alive_count = 0;
  const Result<int> result = loop.block_on(
      with_deadline(loop, at(5s), held_result(loop, Witness(alive_count)), "no answer from b"));
  EXPECT_EQ(result.error(), (Error{ErrorKind::Timeout, "no answer from b"}));
  EXPECT_EQ(loop.now(), at(5s));
  EXPECT_EQ(alive_count, 0);
}

Task<Result<int>> immediate(int value) { co_return value; }

TEST(WithDeadline, PrefersAResultThatIsThereAtOnceToADeadlineThatHasPassed) {
  sim::Loop loop;
  loop.advance(10s);
  EXPECT_EQ(loop.block_on(with_deadline(loop, at(1s), immediate(3), "late")).value(), 3);
  EXPECT_EQ(
      loop.block_on(with_deadline(loop, at(1s), result_after(loop, 1s, 4), "late")).error().kind,
      ErrorKind::Timeout);
  EXPECT_EQ(loop.now(), at(10s));
}

TEST(WithDeadline, WaitsForEverIfToldTo) {
  sim::Loop loop;
  EXPECT_EQ(loop.block_on(with_deadline(loop, kNever, result_after(loop, 24h, 5), "late")).value(),
            5);
}

TEST(WithDeadline, CancelsItsTaskWhenItIsCancelledItself) {
  sim::Loop loop;
  int alive_count = 0;
  {
    Task<Result<int>> unstarted =
        with_deadline(loop, at(5s), held_result(loop, Witness(alive_count)), "late");
    EXPECT_EQ(alive_count, 1);
  }
  EXPECT_EQ(alive_count, 0);
  std::optional<Result<int>> result;
  TaskScope scope;
  scope.start(sim::internal::keep_result(
      with_deadline(loop, at(5s), held_result(loop, Witness(alive_count)), "late"), result));
  EXPECT_EQ(alive_count, 1);
  scope.cancel_all();
  EXPECT_EQ(alive_count, 0);
  EXPECT_FALSE(loop.next_event());
}

}  // namespace
}  // namespace muster
