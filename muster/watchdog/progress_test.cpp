#include "muster/watchdog/progress.h"

#include <gtest/gtest.h>

#include <vector>

namespace muster::watchdog {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration since) { return TimePoint(since); }
using Lates = std::vector<Late>;

constexpr ProgressOptions kStart{.start_timeout = 30s};
constexpr ProgressOptions kHang{.hang_timeout = 10s};
constexpr ProgressOptions kHangFromStart{.hang_timeout = 10s, .hang_from_start = true};

TEST(Progress, ExpectsNothingUnlessAsked) {
  Progress progress({}, 2, at(0s));
  progress.alive(0, at(1s));
  EXPECT_FALSE(progress.next_deadline());
  EXPECT_TRUE(progress.check(at(1000h)).empty());
}

TEST(Progress, TellsOnceWhoWasNotReadyInTime) {
  Progress progress(kStart, 3, at(5s));
  EXPECT_EQ(progress.next_deadline(), at(35s));
  EXPECT_TRUE(progress.ready(1, at(20s)));
  EXPECT_FALSE(progress.ready(1, at(21s)));
  EXPECT_TRUE(progress.check(at(35s) - 1ns).empty());
  EXPECT_EQ(progress.check(at(36s)),
            (Lates{{0, Late::Kind::NotReady, 31s, 30s}, {2, Late::Kind::NotReady, 31s, 30s}}));
  EXPECT_TRUE(progress.check(at(1h)).empty());
  EXPECT_FALSE(progress.next_deadline());
}

TEST(Progress, KnowsWhenAllAreReady) {
  Progress progress({}, 2, at(0s));
  EXPECT_FALSE(progress.all_ready());
  progress.alive(0, at(1s));
  EXPECT_FALSE(progress.is_ready(0));
  progress.ready(0, at(2s));
  EXPECT_TRUE(progress.is_ready(0));
  EXPECT_FALSE(progress.all_ready());
  progress.ended(1);
  EXPECT_TRUE(progress.all_ready());
  EXPECT_TRUE(Progress({}, 0, at(0s)).all_ready());
}

TEST(Progress, WatchesOnlyWorkersThatHaveSaidThatTheyAreAlive) {
  Progress progress(kHang, 2, at(0s));
  progress.ready(0, at(1s));
  progress.ready(1, at(1s));
  EXPECT_FALSE(progress.next_deadline());
  EXPECT_TRUE(progress.alive(1, at(3s)));
  EXPECT_FALSE(progress.alive(1, at(4s)));
  EXPECT_EQ(progress.next_deadline(), at(14s));
  EXPECT_EQ(progress.check(at(15s)), (Lates{{1, Late::Kind::Hung, 11s, 10s}}));
}

TEST(Progress, CanWatchFromTheStart) {
  Progress progress(kHangFromStart, 2, at(0s));
  EXPECT_TRUE(progress.alive(0, at(4s)));
  EXPECT_EQ(progress.check(at(10s)), (Lates{{1, Late::Kind::Hung, 10s, 10s}}));
  EXPECT_EQ(progress.check(at(14s)), (Lates{{0, Late::Kind::Hung, 10s, 10s}}));
}

TEST(Progress, TakesReadyForASignOfLife) {
  Progress progress(kHangFromStart, 1, at(0s));
  progress.ready(0, at(8s));
  EXPECT_EQ(progress.next_deadline(), at(18s));
  EXPECT_EQ(progress.last_alive(0), at(8s));
}

TEST(Progress, TellsAHangAgainOnlyAfterANewSignOfLife) {
  Progress progress(kHang, 1, at(0s));
  progress.alive(0, at(0s));
  EXPECT_EQ(progress.check(at(10s)).size(), 1U);
  EXPECT_TRUE(progress.check(at(30s)).empty());
  progress.alive(0, at(31s));
  EXPECT_EQ(progress.next_deadline(), at(41s));
  EXPECT_EQ(progress.check(at(41s)), (Lates{{0, Late::Kind::Hung, 10s, 10s}}));
}

TEST(Progress, ExpectsNothingOfAWorkerThatHasEnded) {
  Progress progress({.start_timeout = 5s, .hang_timeout = 5s}, 1, at(0s));
  progress.alive(0, at(0s));
  progress.ended(0);
  EXPECT_FALSE(progress.next_deadline());
  EXPECT_FALSE(progress.alive(0, at(1s)));
  EXPECT_FALSE(progress.ready(0, at(1s)));
  EXPECT_TRUE(progress.check(at(1h)).empty());
  EXPECT_EQ(progress.silence(at(1h)), 0s);
}

TEST(Progress, BeginsAnewForAWorkerThatWasRestarted) {
  Progress progress({.start_timeout = 5s, .hang_timeout = 3s}, 2, at(0s));
  for (int worker = 0; worker < 2; ++worker) {
    progress.ready(worker, at(1s));
    progress.alive(worker, at(1s));
  }
  progress.ended(1);
  progress.restarted(1, at(2s));
  EXPECT_FALSE(progress.is_ready(1));
  EXPECT_FALSE(progress.last_alive(1));
  EXPECT_EQ(progress.check(at(20s)),
            (Lates{{0, Late::Kind::Hung, 19s, 3s}, {1, Late::Kind::NotReady, 18s, 5s}}));
  EXPECT_TRUE(progress.alive(1, at(21s)));
}

TEST(Progress, IgnoresRanksThatAreNotThere) {
  Progress progress(kHang, 1, at(0s));
  for (const int worker : {-1, 1, 1000}) {
    EXPECT_FALSE(progress.alive(worker, at(1s)));
    EXPECT_FALSE(progress.ready(worker, at(1s)));
    EXPECT_FALSE(progress.is_ready(worker));
    EXPECT_FALSE(progress.last_alive(worker));
    progress.ended(worker);
  }
  EXPECT_FALSE(progress.next_deadline());
}

TEST(Progress, KnowsTheLongestSilence) {
  Progress progress({}, 3, at(0s));
  EXPECT_EQ(progress.silence(at(9s)), 0s);
  progress.alive(0, at(2s));
  progress.alive(1, at(5s));
  EXPECT_EQ(progress.silence(at(9s)), 7s);
  progress.ended(0);
  EXPECT_EQ(progress.silence(at(9s)), 4s);
  EXPECT_EQ(Progress(kHangFromStart, 1, at(1s)).silence(at(4s)), 3s);
}

TEST(Progress, OfManyWorkersIsToldByDeadline) {
  Progress progress(kHang, 3, at(0s));
  progress.alive(2, at(1s));
  progress.alive(0, at(2s));
  progress.alive(1, at(2s));
  std::vector<int> order;
  for (const Late& late : progress.check(at(1h))) order.push_back(late.worker);
  EXPECT_EQ(order, (std::vector<int>{2, 0, 1}));
}

TEST(Late, IsDescribedInWords) {
  EXPECT_EQ(describe(Late{0, Late::Kind::NotReady, 31s, 30s}), "was not ready 30s after its start");
  EXPECT_EQ(describe(Late{0, Late::Kind::Hung, 61s, 60s}), "made no progress for 60s");
}

}  // namespace
}  // namespace muster::watchdog
