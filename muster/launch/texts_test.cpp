// The small readers of what people type: numbers, signals, streams.

#include "muster/launch/numbers.h"
#include "muster/launch/stream_texts.h"

#include <gtest/gtest.h>

#include <csignal>

namespace muster::launch {
namespace {

TEST(Integers, AreThoseOfPython) {
  EXPECT_EQ(parse_integer("17"), 17);
  EXPECT_EQ(parse_integer(" -3\n"), -3);
  EXPECT_EQ(parse_integer("+3"), 3);
  EXPECT_EQ(parse_integer("1_000"), 1000);
  EXPECT_EQ(parse_integer("007"), 7);
  for (const char* text : {"", " ", "x", "1.0", "1e3", "_1", "1_", "1__0", "+-1", "--1", "1 2",
                           "99999999999999999999"})
    EXPECT_FALSE(parse_integer(text)) << text;
}

TEST(Decimals, AreFinite) {
  EXPECT_EQ(parse_decimal("0.5"), 0.5);
  EXPECT_EQ(parse_decimal("1e3"), 1000);
  EXPECT_EQ(parse_decimal(".5"), 0.5);
  EXPECT_EQ(parse_decimal("-2"), -2);
  for (const char* text : {"", "inf", "nan", "1e999", "x", "1,5"})
    EXPECT_FALSE(parse_decimal(text)) << text;
}

TEST(Sizes, MayHaveAUnit) {
  EXPECT_EQ(parse_bytes("0"), 0U);
  EXPECT_EQ(parse_bytes("65536"), 65536U);
  EXPECT_EQ(parse_bytes("64K"), 65536U);
  EXPECT_EQ(parse_bytes("2GiB"), std::uint64_t{2} << 30);
  for (const char* text : {"", "-1", "1.5G", "5X", "K", "5KB", "5iB", "99999999999T"})
    EXPECT_FALSE(parse_bytes(text)) << text;
}

TEST(StreamTexts, AreOneDigitOrAListOfRanks) {
  for (const char* text : {"0", "3", "0:1", "0:1,1:2", "0-3:1,10:3", "127:0"})
    EXPECT_TRUE(is_stream_text(text)) << text;
  for (const char* text : {"", "4", "-1", "00", "0:4", "0:", ":1", "0:1,", ",0:1", "0:1;1:2",
                           "3-1:1", "-1:1", "0-:1", " 0", "0: 1", "0:1,2", "a:1", "99999999999:1"})
    EXPECT_FALSE(is_stream_text(text)) << text;
}

TEST(RankTexts, AreNumbersAndRanges) {
  for (const char* text : {"", " ", "0", "0,3,8-11", "0, 1 ,2"})
    EXPECT_TRUE(is_rank_text(text)) << text;
  for (const char* text : {"a", "0,", "-1", "1-0", "0;1", "1.5"})
    EXPECT_FALSE(is_rank_text(text)) << text;
}

}  // namespace
}  // namespace muster::launch
