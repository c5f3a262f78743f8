#include "muster/failures/text.h"

#include "muster/failures/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::failures {
namespace {

TEST(Text, KeepsWhatFits) { EXPECT_EQ(keep_ends("abcdef", 6), "abcdef"); }

TEST(Text, KeepsBothEndsOfWhatDoesNotFit) {
  EXPECT_EQ(keep_ends("abcdefg", 6), "abc\n[... 1 bytes left out ...]\nefg");
  const std::string kept = keep_ends(std::string(1000, 'a') + std::string(1000, 'z'), 10);
  EXPECT_EQ(kept, "aaaaa\n[... 1990 bytes left out ...]\nzzzzz");
}

TEST(Text, CutsBetweenCharacters) {
  // Each of these is three bytes long, and neither 5 nor 4 is a multiple of that.
  const std::string kept = keep_ends("\u20ac\u20ac\u20ac\u20ac", 10);
  EXPECT_EQ(valid_utf8(kept), kept);
  EXPECT_EQ(kept, "\u20ac\n[... 3 bytes left out ...]\n\u20ac\u20ac");
  EXPECT_NO_THROW(keep_ends(std::string(100, '\x80'), 10));
}

TEST(Text, KnowsTheFormsOfUtf8) {
  EXPECT_EQ(utf8_sequence_bytes("a"), 1U);
  EXPECT_EQ(utf8_sequence_bytes("\u00e4b"), 2U);
  EXPECT_EQ(utf8_sequence_bytes("\u20ac"), 3U);
  EXPECT_EQ(utf8_sequence_bytes("\U0001F600"), 4U);
  for (const char* wrong :
       {"", "\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF8", "\xE2\x82", "\xE2\x28\xA1"}) {
    EXPECT_EQ(utf8_sequence_bytes(wrong), 0U) << printable(wrong);
  }
}

TEST(Text, MakesControlCharactersAndForeignBytesVisible) {
  EXPECT_EQ(printable("plain \u00e4\n\ttext"), "plain \u00e4\n\ttext");
  EXPECT_EQ(printable(std::string_view("\x1b[31m\0\x7f", 7)), "\\x1b[31m\\x00\\x7f");
  EXPECT_EQ(printable("\xff\xe2\x82"), "\\xff\\xe2\\x82");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b");
}

TEST(Text, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(valid_utf8("a\xff\u00e4"), "a\uFFFD\u00e4");
  EXPECT_EQ(valid_utf8("\x1b"), "\x1b");
}

TEST(Text, CountsCharactersAndNotBytes) {
  EXPECT_EQ(character_count(""), 0U);
  EXPECT_EQ(character_count("a\u00e4\u20ac\U0001F600"), 4U);
  EXPECT_EQ(character_count("\xff\xff"), 2U);
}

}  // namespace
}  // namespace muster::failures
