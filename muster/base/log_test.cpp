#include "muster/base/log.h"

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace muster::log {
namespace {

// Collects lines instead of printing them, and puts everything back afterwards.
class Log : public testing::Test {
 protected:
  Log() {
    set_sink([this](Level level, std::string_view part, std::string_view message) {
      lines_.push_back(fmt::format("{} {} {}", static_cast<int>(level), part, message));
    });
  }
  ~Log() override {
    set_sink(nullptr);
    set_level(Level::Info);
  }

  std::vector<std::string> lines_;
};

TEST_F(Log, WritesFormattedLines) {
  info("store", "connection closed peer={} code={}", "a:1", 7);
  error("net", "gone");
  EXPECT_EQ(lines_,
            (std::vector<std::string>{"1 store connection closed peer=a:1 code=7", "3 net gone"}));
}

TEST_F(Log, LeavesOutWhatIsBelowItsLevel) {
  set_level(Level::Warn);
  debug("x", "no");
  info("x", "no");
  warn("x", "yes");
  error("x", "yes");
  EXPECT_EQ(lines_.size(), 2U);
  EXPECT_TRUE(enabled(Level::Warn));
  EXPECT_FALSE(enabled(Level::Info));
  set_level(Level::Off);
  error("x", "no");
  EXPECT_EQ(lines_.size(), 2U);
  set_level(Level::Debug);
  debug("x", "yes");
  EXPECT_EQ(lines_.size(), 3U);
}

TEST_F(Log, KeepsLinesOfSeveralThreadsWhole) {
  std::vector<std::thread> threads;
  for (int index = 0; index < 4; ++index) {
    threads.emplace_back([] {
      for (int line = 0; line < 250; ++line) info("thread", "a line of text");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines_, std::vector<std::string>(1'000, "1 thread a line of text"));
}

TEST(LogOutput, GoesToStandardErrorAsOneLine) {
  testing::internal::CaptureStderr();
  warn("store", "something happened count={}", 3);
  const std::string line = testing::internal::GetCapturedStderr();
  const std::string tail = "Z warn  store  something happened count=3\n";
  ASSERT_GT(line.size(), tail.size());
  EXPECT_EQ(line.substr(line.size() - tail.size()), tail);
}

TEST(ParseLevel, KnowsTheFiveNames) {
  Level level = Level::Info;
  EXPECT_TRUE(parse_level("debug", level));
  EXPECT_EQ(level, Level::Debug);
  EXPECT_TRUE(parse_level("info", level));
  EXPECT_EQ(level, Level::Info);
  EXPECT_TRUE(parse_level("warn", level));
  EXPECT_EQ(level, Level::Warn);
  EXPECT_TRUE(parse_level("error", level));
  EXPECT_EQ(level, Level::Error);
  EXPECT_TRUE(parse_level("off", level));
  EXPECT_EQ(level, Level::Off);
}

TEST(ParseLevel, RefusesEverythingElse) {
  Level level = Level::Warn;
  for (const std::string_view text : {"", "INFO", "warning", "info ", "1"}) {
    EXPECT_FALSE(parse_level(text, level)) << text;
  }
  EXPECT_EQ(level, Level::Warn);
}

TEST(Quote, LeavesPlainTextReadable) {
  EXPECT_EQ(quote(""), "\"\"");
  EXPECT_EQ(quote("plain text ~!"), "\"plain text ~!\"");
}

TEST(Quote, MakesEveryByteSafeForOneLine) {
  EXPECT_EQ(quote("say \"hi\""), "\"say \\\"hi\\\"\"");
  EXPECT_EQ(quote("back\\slash"), "\"back\\\\slash\"");
  EXPECT_EQ(quote("a\nb\tc\r"), "\"a\\x0ab\\x09c\\x0d\"");
  EXPECT_EQ(quote(std::string_view("\0\x7f\xff", 3)), "\"\\x00\\x7f\\xff\"");
  EXPECT_EQ(quote("\xc3\xa4"), "\"\\xc3\\xa4\"");
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) all_bytes += static_cast<char>(byte);
  for (std::size_t start = 0; start < 256; start += 64) {
    for (const char character : quote(std::string_view(all_bytes).substr(start, 64))) {
      EXPECT_TRUE(character >= 0x20 && character < 0x7f);
    }
  }
}

TEST(Quote, CutsLongTextAndSaysHowLongItWas) {
  EXPECT_EQ(quote(std::string(120, 'x')), "\"" + std::string(120, 'x') + "\"");
  const std::string cut = quote(std::string(121, 'x'));
  EXPECT_TRUE(cut.starts_with("\"" + std::string(120, 'x') + "\""));
  EXPECT_FALSE(cut.starts_with("\"" + std::string(121, 'x')));
  EXPECT_NE(cut.find("(121 bytes)"), std::string::npos);
}

}  // namespace
}  // namespace muster::log
