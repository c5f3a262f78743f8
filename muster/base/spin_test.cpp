#include "muster/base/spin.h"

#include <gtest/gtest.h>

#include <atomic>
#include <sched.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart = TimePoint() + 1h;

TEST(SpinBudget, SleepsAtOnceUntilItHasPaid) {
  SpinBudget spin;
  EXPECT_EQ(spin.at(kStart), 0us);
  spin.came(80us, false);
  EXPECT_GT(spin.at(kStart), 0us);
}

TEST(SpinBudget, LooksLongerWhileItMissesByLittle) {
  SpinBudget spin;
  Duration before = 0us;
  for (int wait = 0; wait < 3; ++wait) {
    spin.came(90us, false);
    EXPECT_GT(spin.at(kStart), before);
    before = spin.at(kStart);
  }
  EXPECT_LE(before, SpinBudget::kLongest);
  for (int wait = 0; wait < 1000; ++wait) spin.came(15us, true);
  EXPECT_EQ(spin.at(kStart), before) << "it pays";
}

TEST(SpinBudget, StopsWhenWhatItWaitsForTakesLong) {
  SpinBudget spin;
  for (int wait = 0; wait < 3; ++wait) spin.came(90us, false);
  spin.came(5ms, false);
  EXPECT_EQ(spin.at(kStart), 0us);
}

TEST(SpinBudget, GivesUpOnWhatAlwaysTakesALittleLonger) {
  SpinBudget spin;
  int looks = 0;
  for (int wait = 0; wait < 1000; ++wait) {
    if (spin.at(kStart) > 0us) ++looks;
    spin.came(200us, false);
  }
  EXPECT_LT(looks, 150);
  EXPECT_GT(looks, 5) << "it is tried again now and then";
}

TEST(SpinBudget, TriesLessAndLessOftenWhatNeverPaysUntilItDoes) {
  SpinBudget spin;
  // Until it has given up `times` times: in how many waits.
  const auto waits_until_given_up = [&](int times) {
    int waits = 0;
    bool was_looking = false;
    while (times > 0 && waits < 100'000) {
      spin.came(200us, false);
      const bool is_looking = spin.at(kStart) > 0us;
      if (std::exchange(was_looking, is_looking) && !is_looking) --times;
      ++waits;
    }
    return waits;
  };
  waits_until_given_up(1);
  const int first = waits_until_given_up(1);
  waits_until_given_up(10);
  const int later = waits_until_given_up(1);
  EXPECT_GT(later, 10 * first);
  EXPECT_LT(later, 10'000) << "it is tried again now and then";
  spin.came(20us, true);
  waits_until_given_up(1);
  EXPECT_LE(waits_until_given_up(1), 2 * first) << "it has paid";
}

// How long it sleeps at once from then on.
Duration rest_after(const SpinBudget& spin, TimePoint now) {
  Duration rest = 0us;
  while (spin.at(now + rest) == 0us && rest < 10s) rest += 1ms;
  return rest;
}

TEST(SpinBudget, SleepsAtOnceAgainWhenNothingHasComeForLong) {
  SpinBudget spin;
  for (int wait = 0; wait < 3; ++wait) spin.came(90us, false);
  spin.nothing_came(200us);
  EXPECT_GT(spin.at(kStart), 0us) << "a timer is no sign that it takes long";
  spin.nothing_came(5s);
  EXPECT_EQ(spin.at(kStart), 0us);
}

TEST(SpinBudget, RestsWhenOthersNeedTheProcessorAndLongerEachTime) {
  SpinBudget spin;
  for (int wait = 0; wait < 3; ++wait) spin.came(90us, false);
  TimePoint now = kStart;
  Duration before = 0us;
  for (int time = 0; time < 20; ++time) {
    spin.preempted(now, 2ms);
    EXPECT_EQ(spin.at(now), 0us);
    const Duration rest = rest_after(spin, now);
    EXPECT_GE(rest, before);
    EXPECT_LE(rest, 1s);
    before = rest;
    now += rest;
    for (int wait = 0; wait < 20; ++wait) spin.came(10us, true);  // that it paid then is little
  }
  EXPECT_EQ(before, 1s);
  spin.preempted(now + 2s, 70us);
  EXPECT_LT(rest_after(spin, now + 2s), 10ms) << "it went well for longer than it had rested";
}

TEST(SpinBudget, RestsShortlyAfterItLostLittle) {
  SpinBudget spin;
  for (int wait = 0; wait < 3; ++wait) spin.came(90us, false);
  spin.preempted(kStart, 10ms);
  const TimePoint rested = kStart + rest_after(spin, kStart);
  spin.preempted(rested, 70us);
  EXPECT_LT(rest_after(spin, rested), 10ms);
}

TEST(SpinBudget, AsksNowAndThenWhetherOthersNeedTheProcessor) {
  SpinBudget spin;
  EXPECT_FALSE(spin.wants_to_know(kStart)) << "it does not look anyway";
  for (int wait = 0; wait < 3; ++wait) spin.came(90us, false);
  EXPECT_TRUE(spin.wants_to_know(kStart));
  spin.preempted(kStart, 0us);
  EXPECT_FALSE(spin.wants_to_know(kStart + 500us));
  EXPECT_TRUE(spin.wants_to_know(kStart + 1ms));
  spin.preempted(kStart + 1ms, 500us);
  EXPECT_EQ(spin.at(kStart + 10ms), 0us);
  EXPECT_FALSE(spin.wants_to_know(kStart + 10ms));
  EXPECT_TRUE(spin.wants_to_know(kStart + 50ms));
  EXPECT_GT(spin.rested_until(), kStart + 1ms) << "what is lost meanwhile does not count";
  EXPECT_LT(spin.rested_until(), kStart + 50ms);
}

TEST(SpinBudget, RestsForFarLongerThanItLost) {
  SpinBudget spin;
  for (int wait = 0; wait < 3; ++wait) spin.came(90us, false);
  spin.preempted(kStart, 4ms);
  EXPECT_GE(rest_after(spin, kStart), 100ms);
}

TEST(Moves, ItMovesAFewTimesAndThenNoneOfThemIsFree) {
  Moves moves;
  TimePoint now = kStart;
  for (int times = 0; times < Moves::kMax; ++times) {
    EXPECT_TRUE(moves.is_another_due(now, 3ms));
    now += 4ms;
  }
  EXPECT_FALSE(moves.is_another_due(now, 3ms));
  EXPECT_EQ(moves.lost(), (Moves::kMax + 1) * 3ms);
  now += Moves::kWithin;
  EXPECT_TRUE(moves.is_another_due(now, 1ms)) << "it may be different now";
  EXPECT_EQ(moves.lost(), 1ms);
}

TEST(Moves, ItMovesAsOftenAsThatHelpsForAWhile) {
  Moves moves;
  for (int times = 0; times < 1000; ++times) {
    EXPECT_TRUE(moves.is_another_due(kStart + times * Moves::kWithin / 4, 1ms));
  }
}

// Threads that only use the processor, so many that there are clearly too few.
class Hogs {
 public:
  Hogs() {
    for (unsigned int hog = 0; hog < std::thread::hardware_concurrency() + 2; ++hog) {
      threads_.emplace_back([this] {
        while (!is_over_) {
        }
      });
    }
  }
  ~Hogs() {
    is_over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> is_over_ = false;
  std::vector<std::thread> threads_;
};

// Which processors the calling thread may use.
class Processors {
 public:
  Processors() { EXPECT_EQ(::sched_getaffinity(0, sizeof set_, &set_), 0); }
  int count() const { return CPU_COUNT(&set_); }
  bool operator==(const Processors& other) const { return CPU_EQUAL(&set_, &other.set_); }

 private:
  cpu_set_t set_{};
};

TEST(LostToOthers, WhereProcessorsAreShortItIsKnownBeforeAnythingIsLost) {
  if (Processors().count() < ::sysconf(_SC_NPROCESSORS_ONLN)) {
    GTEST_SKIP() << "only some processors may be used: who wants those, the system does not tell";
  }
  const Hogs hogs;
  std::thread([] {
    const SystemClock clock;
    EXPECT_GT(lost_to_others(clock.now(), TimePoint()), 0us) << "it never asked before";
    const TimePoint rested = clock.now() + 1us;
    EXPECT_GT(lost_to_others(rested, rested), 0us) << "it has not asked since it rested";
    EXPECT_FALSE(move_to_another_processor());
  }).join();
}

TEST(LostToOthers, ThoseToWhomAThreadGaveWayDoNotCount) {
  const Hogs hogs;
  std::thread([] {
    const TimePoint now = SystemClock().now();
    forget_losses(now);
    EXPECT_EQ(lost_to_others(now + 1ms, TimePoint()), 0us);
  }).join();
}

TEST(Moves, AThreadMayUseTheSameProcessorsAfterwards) {
  const Processors before;
  const bool has_moved = move_to_another_processor();  // or none was idle
  EXPECT_TRUE(before.count() > 1 || !has_moved);
  EXPECT_EQ(Processors(), before);
}

TEST(Moves, AThreadThatMayUseOneProcessorStaysThere) {
  std::thread([] {
    cpu_set_t one{};
    CPU_SET(static_cast<unsigned int>(::sched_getcpu()), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    const Processors before;
    EXPECT_FALSE(move_to_another_processor());
    EXPECT_EQ(Processors(), before);
  }).join();
}

}  // namespace
}  // namespace muster
