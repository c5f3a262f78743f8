#include "muster/logs/lines.h"

#include "muster/base/random.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster::logs {
namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;

struct Piece {
  std::string text;
  bool resumed = false;
  bool unfinished = false;

  friend bool operator==(const Piece&, const Piece&) = default;
};
using Pieces = std::vector<Piece>;

TimePoint at(Duration time) { return TimePoint() + time; }

// A splitter that keeps what it has passed on.
struct Collector {
  explicit Collector(LineSplitter::Options options) : splitter(options) {}
  Collector() = default;

  auto keep() {
    return [this](const Line& line) {
      pieces.push_back({std::string(line.text), line.resumed, line.unfinished});
    };
  }
  void feed(std::string_view bytes, TimePoint now = at(0s)) { splitter.feed(bytes, now, keep()); }
  Pieces take() { return std::exchange(pieces, {}); }
  // The bytes that the pieces stand for.
  std::string bytes() const {
    std::string all;
    for (const Piece& piece : pieces) all += piece.text + (piece.unfinished ? "" : "\n");
    return all;
  }

  LineSplitter splitter;
  Pieces pieces;
};

TEST(LineSplitter, PassesWholeLinesOnAndHoldsTheRest) {
  Collector collector;
  collector.feed("one\ntwo\nthr");
  EXPECT_EQ(collector.take(), (Pieces{{"one"}, {"two"}}));
  collector.feed("ee\n");
  EXPECT_EQ(collector.take(), (Pieces{{"three"}}));
  collector.feed("\n\n");
  EXPECT_EQ(collector.take(), (Pieces{{""}, {""}}));
  EXPECT_FALSE(collector.splitter.next_deadline());
}

TEST(LineSplitter, PassesALastLineWithoutNewlineOnAsAWholeLine) {
  Collector collector;
  collector.feed("last words");
  collector.splitter.finish(collector.keep());
  EXPECT_EQ(collector.take(), (Pieces{{"last words"}}));
  collector.splitter.finish(collector.keep());
  EXPECT_TRUE(collector.take().empty());
}

TEST(LineSplitter, KeepsAnyByteExceptTheNewline) {
  Collector collector;
  const std::string odd = "a\0b\xFF\xC3\r\x1b[0m\x80"s;
  collector.feed(odd + "\n");
  EXPECT_EQ(collector.take(), (Pieces{{odd}}));
}

TEST(LineSplitter, HoldsALineNoLongerThanAllowedAndMarksBothParts) {
  Collector collector({.bytes_max = 1000, .hold = 1s});
  collector.feed("Loading", at(10s));
  EXPECT_EQ(collector.splitter.next_deadline(), at(11s));
  collector.feed("...", at(10500ms));
  EXPECT_EQ(collector.splitter.next_deadline(), at(11s));
  collector.splitter.tick(at(10999ms), collector.keep());
  EXPECT_TRUE(collector.take().empty());
  collector.splitter.tick(at(11s), collector.keep());
  EXPECT_EQ(collector.take(), (Pieces{{"Loading...", false, true}}));
  EXPECT_FALSE(collector.splitter.next_deadline());
  collector.feed(" done\nnext\n", at(20s));
  EXPECT_EQ(collector.take(), (Pieces{{" done", true, false}, {"next"}}));
}

TEST(LineSplitter, SplitsALineThatIsOneByteTooLongAndNoneThatFits) {
  Collector collector({.bytes_max = 8, .hold = 1s});
  collector.feed("12345678\n");
  EXPECT_EQ(collector.take(), (Pieces{{"12345678"}}));
  collector.feed("123456789\n");
  EXPECT_EQ(collector.take(), (Pieces{{"12345678", false, true}, {"9", true, false}}));
  collector.feed("1234");
  collector.feed("5678");
  collector.feed("\n");
  EXPECT_EQ(collector.take(), (Pieces{{"12345678"}}));
}

TEST(LineSplitter, SplitsBetweenCharacters) {
  Collector collector({.bytes_max = 8, .hold = 1s});
  collector.feed("1234567\u00e9!\n");
  EXPECT_EQ(collector.take(), (Pieces{{"1234567", false, true}, {"\u00e9!", true, false}}));
  collector.feed("abc\xF0\x9F\x98", at(0s));
  collector.splitter.tick(at(1s), collector.keep());
  EXPECT_EQ(collector.take(), (Pieces{{"abc", false, true}}));
  EXPECT_EQ(collector.splitter.next_deadline(), at(2s));
  collector.splitter.tick(at(2s), collector.keep());
  EXPECT_EQ(collector.take(), (Pieces{{"\xF0\x9F\x98", true, true}}));
}

TEST(LineSplitter, SplitsAtTheLimitOfOneMebibyteByDefault) {
  Collector collector;
  const std::string line(kLineBytesMax, 'x');
  collector.feed(line + "\n" + line + "y\n");
  EXPECT_EQ(collector.take(), (Pieces{{line}, {line, false, true}, {"y", true, false}}));
}

TEST(LineSplitter, LosesAndReordersNothingHoweverTheBytesArrive) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    Collector collector({.bytes_max = 4 + random.below(30), .hold = 5ns});
    std::string all;
    TimePoint now;
    for (int step = 0; step < 200; ++step) {
      std::string bytes;
      for (std::uint64_t left = random.below(40); left > 0; --left) {
        bytes += random.chance(150) ? '\n' : static_cast<char>(random.below(256));
      }
      now += Duration(random.below(4));
      collector.feed(bytes, now);
      if (random.chance(300)) collector.splitter.tick(now, collector.keep());
      all += bytes;
    }
    collector.splitter.finish(collector.keep());
    // A line that was held and then ends with nothing more is only seen by its missing newline.
    std::string seen = collector.bytes();
    if (!all.ends_with('\n') && !seen.ends_with('\n')) seen += '\n';
    if (!all.ends_with('\n')) all += '\n';
    ASSERT_EQ(seen, all) << "seed " << seed;
  }
}

TEST(WholeCharacters, TakesAwayOnlyACharacterThatIsCutOff) {
  EXPECT_EQ(whole_characters(""), 0U);
  EXPECT_EQ(whole_characters("abc"), 3U);
  EXPECT_EQ(whole_characters("ab\u00e9"), 4U);
  EXPECT_EQ(whole_characters("ab\xC3"), 2U);
  EXPECT_EQ(whole_characters("ab\xE2\x82"), 2U);
  EXPECT_EQ(whole_characters("ab\xF0\x9F\x98"), 2U);
  EXPECT_EQ(whole_characters("\xC3"), 1U);
  EXPECT_EQ(whole_characters("ab\x80\x80\x80\x80\x80"), 7U);
  EXPECT_EQ(whole_characters("ab\xFF"), 3U);
}

}  // namespace
}  // namespace muster::logs
