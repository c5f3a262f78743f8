#include "muster/wire/codec.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace muster::wire {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;

template <typename T>
std::string bytes(T value) {
  std::string out;
  put(out, value);
  return out;
}

TEST(Writer, WritesIntegersLittleEndianInTheirFullWidth) {
  EXPECT_EQ(bytes<std::uint8_t>(0xab), "\xab"s);
  EXPECT_EQ(bytes<std::uint32_t>(0x3C85F7CE), "\xce\xf7\x85\x3c"s);
  EXPECT_EQ(bytes<std::uint64_t>(0x0102030405060708), "\x08\x07\x06\x05\x04\x03\x02\x01"s);
  EXPECT_EQ(bytes<std::int64_t>(-7), "\xf9\xff\xff\xff\xff\xff\xff\xff"s);
}

TEST(Writer, AppendsToWhatIsThere) {
  std::string out = "before";
  put<std::uint8_t>(out, 1);
  put_blob(out, "x");
  put_string(out, "y");
  EXPECT_EQ(out, "before\x01\x01\0\0\0\0\0\0\0x\x01\0\0\0y"s);
}

TEST(Writer, WritesABlobWithEightBytesOfLengthAndAStringWithFour) {
  std::string blob;
  put_blob(blob, "v1");
  EXPECT_EQ(blob, "\x02\0\0\0\0\0\0\0v1"s);
  std::string string;
  put_string(string, "v1");
  EXPECT_EQ(string, "\x02\0\0\0v1"s);
}

TEST(Writer, WritesAnEmptyBlobAsItsLengthAlone) {
  std::string blob;
  put_blob(blob, "");
  EXPECT_EQ(blob, std::string(8, '\0'));
}

TEST(Load, ReadsWhatPutWroteAlsoAtOddAddresses) {
  std::string out = "-";
  put(out, std::numeric_limits<std::int64_t>::min());
  put<std::uint32_t>(out, 0xfffffffe);
  EXPECT_EQ(load<std::int64_t>(out.data() + 1), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(load<std::uint32_t>(out.data() + 9), 0xfffffffeU);
}

TEST(Reader, ReadsFieldsInOrderAndIsFinishedWhenNothingIsLeft) {
  std::string input;
  put<std::uint8_t>(input, 9);
  put<std::uint32_t>(input, 70'000);
  put<std::uint64_t>(input, std::uint64_t{1} << 63U);
  put<std::int64_t>(input, -1);
  put_string(input, "text");
  Reader reader(input);
  EXPECT_EQ(reader.integer<std::uint8_t>(), 9);
  EXPECT_EQ(reader.integer<std::uint32_t>(), 70'000U);
  EXPECT_EQ(reader.integer<std::uint64_t>(), std::uint64_t{1} << 63U);
  EXPECT_EQ(reader.integer<std::int64_t>(), -1);
  EXPECT_FALSE(reader.finished());
  EXPECT_EQ(reader.string(4), "text");
  EXPECT_TRUE(reader.finished());
  EXPECT_FALSE(reader.failed());
}

TEST(Reader, IsFinishedAtOnceWithNothingToRead) {
  const Reader reader("");
  EXPECT_TRUE(reader.finished());
}

TEST(Reader, IsNotFinishedWhileBytesAreLeft) {
  Reader reader("ab");
  reader.integer<std::uint8_t>();
  EXPECT_FALSE(reader.finished());
  EXPECT_FALSE(reader.failed());
  EXPECT_EQ(reader.rest(), "b");
}

TEST(Reader, GivesZeroAndEmptyAfterTheFirstReadThatFoundTooLittle) {
  Reader reader("\x01\x02\x03"sv);
  EXPECT_EQ(reader.integer<std::uint32_t>(), 0U);
  EXPECT_TRUE(reader.failed());
  // Three bytes would have been there for these, but what follows a failure means nothing.
  EXPECT_EQ(reader.integer<std::uint8_t>(), 0);
  EXPECT_EQ(reader.string(10), "");
  EXPECT_EQ(reader.rest(), "");
  EXPECT_FALSE(reader.finished());
}

TEST(Reader, FailsOnEveryIntegerThatMissesItsLastByte) {
  const std::string_view eight("\1\1\1\1\1\1\1\1", 8);
  Reader one(eight.substr(0, 0));
  Reader four(eight.substr(0, 3));
  Reader eight_unsigned(eight.substr(0, 7));
  Reader eight_signed(eight.substr(0, 7));
  one.integer<std::uint8_t>();
  four.integer<std::uint32_t>();
  eight_unsigned.integer<std::uint64_t>();
  eight_signed.integer<std::int64_t>();
  EXPECT_TRUE(one.failed() && four.failed() && eight_unsigned.failed() && eight_signed.failed());
}

TEST(Reader, TakesAStringAtItsLimitAndRefusesOneByteMore) {
  std::string input;
  put_string(input, "12345");
  Reader at_limit(input);
  EXPECT_EQ(at_limit.string(5), "12345");
  EXPECT_TRUE(at_limit.finished());
  Reader one_past(input);
  EXPECT_EQ(one_past.string(4), "");
  EXPECT_TRUE(one_past.failed());
}

TEST(Reader, RefusesAStringThatAnnouncesMoreThanThereIs) {
  std::string input;
  put<std::uint32_t>(input, 0xffffffff);
  input += "abc";
  Reader reader(input);
  EXPECT_EQ(reader.string(std::numeric_limits<std::size_t>::max()), "");
  EXPECT_TRUE(reader.failed());
}

TEST(Reader, RefusesAStringWhoseLengthIsCutOff) {
  Reader reader("\x01\0\0"sv);
  EXPECT_EQ(reader.string(10), "");
  EXPECT_TRUE(reader.failed());
}

TEST(Reader, TakesAnEmptyString) {
  Reader reader("\0\0\0\0"sv);
  EXPECT_EQ(reader.string(0), "");
  EXPECT_TRUE(reader.finished());
}

}  // namespace
}  // namespace muster::wire
