#include "muster/rpc/suspicion.h"

#include <gtest/gtest.h>

#include <chrono>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using Sign = Suspicion::Sign;

TimePoint at(Duration since) { return TimePoint(1h + since); }

// Looks whenever it should, with the same outcome each time. When the last look was.
TimePoint look(Suspicion& suspicion, Sign sign, int count) {
  TimePoint when;
  for (int looks = 0; looks < count && suspicion.next_look() != kNever; ++looks) {
    when = suspicion.next_look();
    suspicion.saw(sign, when);
  }
  return when;
}

TEST(Suspicion, TrustsAWorkerOfWhichNoConnectionWasLostWhateverIsSeen) {
  Suspicion suspicion;
  for (int count = 0; count < 10; ++count) suspicion.saw(Sign::Refused, at(count * 1s));
  EXPECT_FALSE(suspicion.is_dead());
  EXPECT_EQ(suspicion.next_look(), kNever);
}

TEST(Suspicion, IsDeathWithinASecondIfTheHostRefusesAgainAndAgain) {
  Suspicion suspicion;
  suspicion.lost(at(0s));
  look(suspicion, Sign::Refused, Suspicion::kRefusalsMax - 1);
  EXPECT_FALSE(suspicion.is_dead());
  EXPECT_LT(look(suspicion, Sign::Refused, 1), at(1s));
  EXPECT_TRUE(suspicion.is_dead());
  EXPECT_EQ(suspicion.next_look(), kNever);
}

TEST(Suspicion, IsNotConfirmedByManyRefusalsInOneMoment) {
  Suspicion suspicion;
  suspicion.lost(at(0s));
  for (int count = 0; count < 100; ++count) suspicion.saw(Sign::Refused, at(1ms));
  suspicion.saw(Sign::Refused, suspicion.next_look());
  EXPECT_FALSE(suspicion.is_dead());
}

TEST(Suspicion, IsNeverConfirmedBySilence) {
  Suspicion suspicion;
  suspicion.lost(at(0s));
  EXPECT_GT(look(suspicion, Sign::Silent, 1000), at(1h));
  EXPECT_FALSE(suspicion.is_dead());
  EXPECT_NE(suspicion.next_look(), kNever) << "it may come back";
}

TEST(Suspicion, LooksWithPausesThatGrowToAMaximum) {
  Suspicion suspicion;
  suspicion.lost(at(0s));
  TimePoint before = at(0s);
  Duration pause = Duration::zero();
  for (int count = 0; count < 20; ++count) {
    const TimePoint when = suspicion.next_look();
    EXPECT_GE(when - before, pause);
    EXPECT_LE(when - before, Suspicion::kPauseMax);
    pause = when - before;
    before = when;
    suspicion.saw(Sign::Silent, when);
  }
  EXPECT_EQ(pause, Suspicion::kPauseMax);
}

TEST(Suspicion, CountsRefusalsAnewAfterASilence) {
  Suspicion suspicion;
  suspicion.lost(at(0s));
  look(suspicion, Sign::Refused, Suspicion::kRefusalsMax - 1);
  look(suspicion, Sign::Silent, 1);
  look(suspicion, Sign::Refused, Suspicion::kRefusalsMax - 1);
  EXPECT_FALSE(suspicion.is_dead());
  look(suspicion, Sign::Refused, 1);
  EXPECT_TRUE(suspicion.is_dead());
}

TEST(Suspicion, BelievesAHostThatComesBackAndRefusesWithinSecondsHoweverLongItWasSilent) {
  Suspicion suspicion;
  suspicion.lost(at(0s));
  look(suspicion, Sign::Silent, 100);
  const TimePoint back = look(suspicion, Sign::Refused, 1);
  EXPECT_LT(look(suspicion, Sign::Refused, Suspicion::kRefusalsMax), back + 1s);
  EXPECT_TRUE(suspicion.is_dead());
}

TEST(Suspicion, EndsWithAConnectionAtAnyTimeAndBeginsAnewWithTheNextLoss) {
  Suspicion suspicion;
  suspicion.lost(at(0s));
  look(suspicion, Sign::Refused, Suspicion::kRefusalsMax - 1);
  suspicion.saw(Sign::Answered, at(100ms));
  EXPECT_EQ(suspicion.next_look(), kNever);
  suspicion.lost(at(10s));
  suspicion.lost(at(20s));
  EXPECT_EQ(suspicion.next_look(), at(10s) + Suspicion::kPauseMin);
  look(suspicion, Sign::Refused, Suspicion::kRefusalsMax - 1);
  EXPECT_FALSE(suspicion.is_dead());
}

TEST(Suspicion, NeverTakesBackADeath) {
  Suspicion suspicion;
  suspicion.lost(at(0s));
  look(suspicion, Sign::Refused, Suspicion::kRefusalsMax);
  suspicion.saw(Sign::Answered, at(10s));
  suspicion.lost(at(11s));
  EXPECT_TRUE(suspicion.is_dead());
}

}  // namespace
}  // namespace muster::rpc
