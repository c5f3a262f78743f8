#include "muster/watchdog/lines.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace muster::watchdog {
namespace {

class Lines : public testing::Test {
 protected:
  // Too long ones are marked.
  std::vector<std::string> feed(std::string_view bytes) {
    heard_.clear();
    reader_.feed(bytes, handle_);
    return heard_;
  }
  std::vector<std::string> finish() {
    heard_.clear();
    reader_.finish(handle_);
    return heard_;
  }

  LineReader reader_{4};
  std::vector<std::string> heard_;
  LineReader::Handler handle_ = [this](const LineReader::Line& line) {
    heard_.push_back((line.too_long ? "too long: " : "") + std::string(line.text));
    return line.text != "stop";
  };
  using Heard = std::vector<std::string>;
};

TEST_F(Lines, AreCutAtNewlines) {
  EXPECT_EQ(feed("a\n\nbcde\nf"), (Heard{"a", "", "bcde"}));
  EXPECT_EQ(feed("g"), Heard{});
  EXPECT_EQ(feed("\nh\n"), (Heard{"fg", "h"}));
}

TEST_F(Lines, AreTheSameInEveryDivision) {
  const std::string text = "ab\ntoolong\ncd\nstillmuchlonger\n\nabcd\nabcde\nz\n";
  const Heard whole = feed(text);
  EXPECT_EQ(whole, (Heard{"ab", "too long: tool", "cd", "too long: stil", "", "abcd",
                          "too long: abcd", "z"}));
  for (std::size_t size = 1; size < text.size(); ++size) {
    Heard all;
    for (std::size_t place = 0; place < text.size(); place += size) {
      const Heard some = feed(std::string_view(text).substr(place, size));
      all.insert(all.end(), some.begin(), some.end());
    }
    EXPECT_EQ(all, whole) << "in pieces of " << size;
  }
}

TEST_F(Lines, ThatAreTooLongAreReportedBeforeTheyEnd) {
  EXPECT_EQ(feed("abcd"), Heard{});
  EXPECT_EQ(feed("e"), Heard{"too long: abcd"});
  EXPECT_EQ(feed(std::string(1000, 'x')), Heard{});
  EXPECT_EQ(feed("\nab\n"), Heard{"ab"});
}

TEST_F(Lines, MayLackTheLastNewline) {
  EXPECT_EQ(feed("ab\ncd"), Heard{"ab"});
  EXPECT_EQ(finish(), Heard{"cd"});
  EXPECT_EQ(finish(), Heard{});
  feed("abcdefgh");
  EXPECT_EQ(finish(), Heard{});
}

TEST_F(Lines, AreDroppedOnceNobodyWantsThem) {
  EXPECT_EQ(feed("a\nstop\nb\n"), (Heard{"a", "stop"}));
  EXPECT_EQ(feed("c\n"), Heard{"c"});
}

}  // namespace
}  // namespace muster::watchdog
