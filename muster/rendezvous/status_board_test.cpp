#include "muster/rendezvous/status_board.h"

#include "muster/sim/loop.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <utility>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;

template <typename T>
Task<void> keep(Task<T> task, std::optional<T>& result) {
  result.emplace(co_await task);
}
Status waiting(std::int64_t count) {
  Status status;
  status.waiting = count;
  return status;
}

class StatusBoardTest : public ::testing::Test {
 protected:
  sim::Loop loop;
  StatusBoard board{loop};
};

TEST_F(StatusBoardTest, ReturnsAtOnceWhenTheStatusIsAnotherAlready) {
  board.set(waiting(1));
  EXPECT_EQ(loop.block_on(board.wait(Status(), kNever)), waiting(1));
  EXPECT_EQ(loop.now(), TimePoint());
}

TEST_F(StatusBoardTest, WakesThoseWhoWaitForAnother) {
  std::optional<Status> seen;
  TaskScope scope;
  scope.start(keep(board.wait(Status(), TimePoint(1h)), seen));
  board.set(Status());
  loop.advance(1s);
  EXPECT_FALSE(seen);
  board.set(waiting(2));
  loop.run_until_idle();
  EXPECT_EQ(seen, waiting(2));
}

TEST_F(StatusBoardTest, ReturnsTheOldStatusAtTheDeadline) {
  EXPECT_EQ(loop.block_on(board.wait(Status(), TimePoint(5s))), Status());
  EXPECT_EQ(loop.now(), TimePoint(5s));
}

TEST_F(StatusBoardTest, TellsOfEverySetEvenIfToTheSame) {
  std::optional<bool> set;
  TaskScope scope;
  scope.start(keep(board.wait_next(TimePoint(1h)), set));
  loop.advance(1s);
  EXPECT_FALSE(set);
  board.set(Status());
  loop.run_until_idle();
  EXPECT_EQ(set, true);
  EXPECT_FALSE(loop.block_on(board.wait_next(TimePoint(1h))));
}

TEST_F(StatusBoardTest, ForgetsAWaitThatIsCancelled) {
  std::optional<Status> kept;
  std::optional<Status> cancelled;
  TaskScope scope;
  {
    TaskScope brief;
    brief.start(keep(board.wait(Status(), kNever), cancelled));
    scope.start(keep(board.wait(Status(), kNever), kept));
  }
  board.set(waiting(1));
  loop.run_until_idle();
  EXPECT_FALSE(cancelled);
  EXPECT_EQ(kept, waiting(1));
}

TEST_F(StatusBoardTest, WakesEachWaiterByWhatItHasSeen) {
  std::optional<Status> first;
  std::optional<Status> second;
  board.set(waiting(1));
  TaskScope scope;
  scope.start(keep(board.wait(waiting(1), kNever), first));
  scope.start(keep(board.wait(waiting(1), kNever), second));
  board.set(waiting(3));
  loop.run_until_idle();
  EXPECT_EQ(first, waiting(3));
  EXPECT_EQ(second, waiting(3));
}

}  // namespace
}  // namespace muster::rendezvous
