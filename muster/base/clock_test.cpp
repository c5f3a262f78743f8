#include "muster/base/clock.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace muster {
namespace {

using namespace std::chrono_literals;

Duration parsed(std::string_view text) {
  Duration length{};
  EXPECT_TRUE(parse_duration(text, length)) << text;
  return length;
}

bool refused(std::string_view text) {
  Duration length = 123ns;
  const bool accepted = parse_duration(text, length);
  if (!accepted) {
    EXPECT_EQ(length, 123ns) << text;  // left as it was
  }
  return !accepted;
}

TEST(After, AddsALengthToAPoint) {
  EXPECT_EQ(after(TimePoint(5s), 3s), TimePoint(8s));
  EXPECT_EQ(after(TimePoint(5s), 0s), TimePoint(5s));
}

TEST(After, ReadsANegativeLengthAsForEver) {
  EXPECT_EQ(after(TimePoint(5s), -1ns), kNever);
  EXPECT_EQ(after(TimePoint(5s), Duration::min()), kNever);
}

TEST(After, StaysAtNeverInsteadOfOverflowing) {
  EXPECT_EQ(after(TimePoint(1ns), Duration::max()), kNever);
  EXPECT_EQ(after(TimePoint(5s), kNever - TimePoint(5s)), kNever);
  EXPECT_EQ(after(TimePoint(5s), kNever - TimePoint(5s) - 1ns), kNever - 1ns);
  EXPECT_EQ(after(kNever, 1s), kNever);
  EXPECT_EQ(after(kNever, 0s), kNever);
}

TEST(After, WorksBeforeTheOriginToo) {
  EXPECT_EQ(after(TimePoint(-5s), 3s), TimePoint(-2s));
  EXPECT_EQ(after(TimePoint(-5s), Duration::max()), TimePoint(Duration::max() - 5s));
}

TEST(ParseDuration, TakesNumbersWithUnits) {
  EXPECT_EQ(parsed("250ms"), 250ms);
  EXPECT_EQ(parsed("5s"), 5s);
  EXPECT_EQ(parsed("2m"), 2min);
  EXPECT_EQ(parsed("3us"), 3us);
  EXPECT_EQ(parsed("1h30m"), 90min);
  EXPECT_EQ(parsed("1h30m15s250ms"), 90min + 15s + 250ms);
  EXPECT_EQ(parsed("1.5h"), 90min);
  EXPECT_EQ(parsed("0s"), 0s);
}

TEST(ParseDuration, TakesASingleNumberAsSeconds) {
  EXPECT_EQ(parsed("0.5"), 500ms);
  EXPECT_EQ(parsed(".5"), 500ms);
  EXPECT_EQ(parsed("30"), 30s);
  EXPECT_EQ(parsed("0"), 0s);
}

TEST(ParseDuration, IsExactForWholeMillisecondsAndMicroseconds) {
  for (int count = 0; count <= 5'000; ++count) {
    ASSERT_EQ(parsed(std::to_string(count) + "ms"), std::chrono::milliseconds(count));
    ASSERT_EQ(parsed(std::to_string(count) + "us"), std::chrono::microseconds(count));
  }
}

TEST(ParseDuration, KeepsTheSignOfALengthThatMeansForEver) {
  EXPECT_EQ(parsed("-1"), -1s);
  EXPECT_EQ(parsed("-1h30m"), -90min);
}

TEST(ParseDuration, RefusesWhatIsNotADuration) {
  for (const std::string_view text :
       {"",       "-",    "s",    "ms",    "5x",   "5 s",      " 5s", "5s ", "five",
        "1e3",    "0x10", "nan",  "inf",   "-inf", "infinity", "--1", "--0", "+5s",
        "1h-30m", "5ss",  "1,5s", "1.5.5", "1h30", "5s5",      "5d",  "5S"}) {
    EXPECT_TRUE(refused(text)) << text;
  }
  EXPECT_TRUE(refused(std::string_view("5s\0", 3)));
}

TEST(ParseDuration, RefusesWhatDoesNotFit) {
  EXPECT_EQ(parsed("9000000000s"), Duration(9'000'000'000s));
  EXPECT_TRUE(refused("9000000001s"));
  EXPECT_TRUE(refused("2500001h"));
  EXPECT_TRUE(refused(std::string(400, '9')));
}

TEST(DescribeDuration, ChoosesAUnitPeopleRead) {
  EXPECT_EQ(describe(Duration(0)), "0s");
  EXPECT_EQ(describe(250ms), "250ms");
  EXPECT_EQ(describe(1500ms), "1.5s");
  EXPECT_EQ(describe(1s), "1s");
  EXPECT_EQ(describe(60s), "60s");
  EXPECT_EQ(describe(90s), "90s");
  EXPECT_EQ(describe(2min), "2m");
  EXPECT_EQ(describe(1h), "60m");
  EXPECT_EQ(describe(12us), "0.012ms");
  EXPECT_EQ(describe(-1s), "for ever");
}

TEST(DescribeDuration, RoundsToThousandths) {
  EXPECT_EQ(describe(1'234'567us), "1.235s");
  EXPECT_EQ(describe(1'234'567ns), "1.235ms");
}

TEST(DescribeDuration, IsReadBackByTheParser) {
  for (const Duration length : {Duration(0), Duration(250ms), Duration(1500ms), Duration(90s),
                                Duration(2min), Duration(24h)}) {
    EXPECT_EQ(parsed(describe(length)), length) << describe(length);
  }
}

TEST(SystemClock, NeverGoesBack) {
  const SystemClock clock;
  TimePoint last = clock.now();
  for (int count = 0; count < 1'000; ++count) {
    const TimePoint now = clock.now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(WallClockText, HasTheFormOfIso8601) {
  const std::string text = wall_clock_text();
  ASSERT_EQ(text.size(), std::string_view("2026-03-14T09:26:53.589Z").size());
  const std::string_view form = "0000-00-00T00:00:00.000Z";
  for (std::size_t index = 0; index < form.size(); ++index) {
    if (form[index] == '0') {
      EXPECT_TRUE(text[index] >= '0' && text[index] <= '9') << text;
    } else {
      EXPECT_EQ(text[index], form[index]) << text;
    }
  }
}

}  // namespace
}  // namespace muster
