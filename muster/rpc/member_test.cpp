#include "muster/rpc/member.h"

#include "tests/rpc/group_workers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace muster::rpc {
namespace {

using testing::member;

Member example() {
  Member one = member("trainer-1:a_b", 513, 0x0102030405060708);
  one.address = "[::1]:4400";
  one.local_address = "@m";
  EXPECT_TRUE(one.devices.set_device_count(3));
  EXPECT_TRUE(one.devices.set_devices({cuda(2)}));
  EXPECT_TRUE(one.devices.set_device_map("b", {{cuda(2), cuda(1)}, {Device{}, cuda(0)}}));
  return one;
}

TEST(MemberCodec, HasOneFormThatDoesNotChange) {
  const std::string expected(
      "MusterRM\x02\0\0\0"
      "\x08\x07\x06\x05\x04\x03\x02\x01"
      "\x01\x02\0\0\0\0\0\0"
      "\x0d\0\0\0trainer-1:a_b"
      "\x0a\0\0\0[::1]:4400"
      "\x02\0\0\0@m"
      "\x03\0\0\0"
      "\x01\0\0\0\x02\0\0\0\x02\0\0\0"
      "\x01\0\0\0"
      "\x01\0\0\0b"
      "\x02\0\0\0"
      "\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"
      "\x02\0\0\0\x02\0\0\0\x02\0\0\0\x01\0\0\0",
      12 + 16 + 17 + 14 + 6 + 4 + 12 + 4 + 5 + 4 + 32);
  EXPECT_EQ(encode_member(example()), expected);
  const auto back = decode_member("k", expected);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(*back, example());
}

TEST(MemberCodec, RefusesWhatIsCutShortAnywhere) {
  const std::string whole = encode_member(example());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const auto read = decode_member("rank/3", whole.substr(0, size));
    ASSERT_FALSE(read) << size;
    EXPECT_EQ(read.error().kind, ErrorKind::Corrupt);
    EXPECT_NE(read.error().message.find("\"rank/3\""), std::string::npos) << read.error().message;
    EXPECT_NE(read.error().message.find("left as it is"), std::string::npos);
  }
  EXPECT_FALSE(decode_member("k", whole + "x"));
}

TEST(MemberCodec, RefusesWhatNoWorkerCanBe) {
  // The name with a blank, the id that is negative or too large, no incarnation, no address.
  std::string bytes = encode_member(example());
  const std::size_t name_at = bytes.find("trainer");
  const std::size_t id_at = name_at - 4 - 8;
  bytes[name_at] = ' ';
  EXPECT_FALSE(decode_member("k", bytes));
  bytes = encode_member(example());
  bytes[id_at + 7] = '\xff';
  EXPECT_FALSE(decode_member("k", bytes));
  bytes = encode_member(example());
  bytes[id_at + 2] = '\x01';
  EXPECT_FALSE(decode_member("k", bytes));
  bytes = encode_member(example());
  for (std::size_t index = 0; index < 8; ++index) bytes[id_at - 8 + index] = '\0';
  EXPECT_FALSE(decode_member("k", bytes));
  Member nowhere = example();
  nowhere.address.clear();
  EXPECT_FALSE(decode_member("k", encode_member(nowhere)));
  EXPECT_FALSE(check_member(nowhere));
}

TEST(MemberCodec, RefusesDevicesThatNoWorkerCanHave) {
  const std::string whole = encode_member(example());
  ASSERT_TRUE(decode_member("k", whole));
  const std::size_t count_at = whole.find("@m") + 2;
  const std::size_t map_at = whole.size() - 32;
  struct Change {
    std::size_t place;
    char byte;
    const char* what;
  };
  for (const auto& [place, byte, what] : {
           Change{count_at + 3, '\xfe', "a negative number of devices"},
           Change{count_at + 6, '\x01', "more devices than there may be"},
           Change{count_at + 8, '\x01', "the CPU among the devices"},
           Change{count_at + 15, '\xff', "a device with a negative index"},
           Change{count_at + 18, '\x01', "more maps than there may be"},
           Change{map_at - 5, ' ', "a map for a worker that cannot be"},
           Change{map_at - 2, '\x01', "more entries than there may be"},
           Change{map_at + 7, '\xff', "an entry with a negative index"},
           Change{map_at + 16, '\x01', "two entries for the CPU"},
       }) {
    std::string bytes = whole;
    bytes[place] = byte;
    const auto read = decode_member("k", bytes);
    ASSERT_FALSE(read) << what;
    EXPECT_EQ(read.error().kind, ErrorKind::Corrupt);
  }
}

TEST(MemberCodec, KeepsMapsWhoseTargetsAreUsedTwice) {
  Member one = example();
  ASSERT_TRUE(one.devices.set_device_map("b", {{cuda(1), cuda(1)}}));
  const auto back = decode_member("k", encode_member(one));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(*back, one) << "check_devices says what is wrong with them";
}

TEST(MemberCodec, NamesTheVersionItDoesNotKnow) {
  std::string bytes = encode_member(example());
  bytes[8] = '\x07';
  const auto read = decode_member("k", bytes);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().kind, ErrorKind::Corrupt);
  EXPECT_NE(read.error().message.find("format 7"), std::string::npos) << read.error().message;
}

TEST(MemberCodec, TakesAddressesUpToTheLimit) {
  Member large = example();
  large.address.assign(kMemberAddressBytesMax, 'a');
  EXPECT_TRUE(check_member(large));
  EXPECT_TRUE(decode_member("k", encode_member(large)));
  large.address += 'a';
  EXPECT_FALSE(check_member(large));
  EXPECT_FALSE(decode_member("k", encode_member(large)));
}

}  // namespace
}  // namespace muster::rpc
