#include "muster/rref/control.h"

#include "muster/base/random.h"
#include "muster/rpc/value.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace muster::rref {
namespace {

using rpc::MessageType;

const ForkData kFork{1, GlobalId(0, 2), GlobalId(3, 4), 5, 6, "vec<f64>"};

const std::vector<MessageType> kControls = {
    MessageType::RrefForkRequest, MessageType::RrefUserDelete, MessageType::RrefChildAccept,
    MessageType::RrefForkCancel};

TEST(ForkData, ComesBackAsItWas) {
  EXPECT_EQ(decode_fork_data(encode(kFork)).value(), kFork);
  ForkData plain;
  EXPECT_EQ(decode_fork_data(encode(plain)).value(), plain);
  plain.type.assign(kTypeTextBytesMax, 'x');
  EXPECT_EQ(decode_fork_data(encode(plain)).value(), plain);
}

TEST(ForkData, HasTheseBytes) {
  EXPECT_EQ(encode(kFork), std::string("\x01\0"
                                       "\0\0\x02\0\0\0\0\0\0\0"
                                       "\x03\0\x04\0\0\0\0\0\0\0"
                                       "\x05\0"
                                       "\x06\0\0\0\0\0\0\0"
                                       "\x08\0\0\0vec<f64>",
                                       44));
}

TEST(ForkData, IsRefusedWhenItIsCutOffOrHasSomethingBehindIt) {
  const std::string good = encode(kFork);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decode_fork_data(good.substr(0, size))) << size;
  }
  EXPECT_FALSE(decode_fork_data(good + "x"));
}

TEST(ForkData, IsRefusedWithAnIdThatNobodyDraws) {
  for (const std::int64_t local : {std::int64_t{-1}, kLocalIdMax + 1}) {
    rpc::Writer writer;
    writer.write(std::int16_t{1}, std::int16_t{0}, local, std::int16_t{3}, std::int64_t{4},
                 std::int16_t{5}, std::int64_t{6}, std::string("t"));
    const auto data = decode_fork_data(writer.take_control());
    ASSERT_FALSE(data);
    EXPECT_EQ(data.error().kind, ErrorKind::Corrupt);
  }
}

TEST(ForkData, IsRefusedWithATypeThatIsTooLong) {
  rpc::Writer writer;
  writer.write(std::int16_t{1}, std::int16_t{0}, std::int64_t{2}, std::int16_t{3}, std::int64_t{4},
               std::int16_t{5}, std::int64_t{6}, std::string(kTypeTextBytesMax + 1, 'x'));
  EXPECT_FALSE(decode_fork_data(writer.take_control()));
}

TEST(Control, ComesBackAsItWas) {
  for (const MessageType type : kControls) {
    const bool has_rref =
        type == MessageType::RrefForkRequest || type == MessageType::RrefUserDelete;
    const Control control{type, has_rref ? GlobalId(7, 8) : GlobalId(), GlobalId(9, 10)};
    EXPECT_EQ(decode_control(type, encode(control)).value(), control);
    EXPECT_TRUE(rpc::is_retried(type));
  }
}

TEST(Control, HasEqualPayloadsForTheRequestAndTheDeleteOfOneFork) {
  const Control request{MessageType::RrefForkRequest, GlobalId(1, 2), GlobalId(3, 4)};
  const Control ended{MessageType::RrefUserDelete, GlobalId(1, 2), GlobalId(3, 4)};
  EXPECT_EQ(encode(request), encode(ended));
  EXPECT_EQ(encode(request), std::string("\x01\0\x02\0\0\0\0\0\0\0\x03\0\x04\0\0\0\0\0\0\0", 20));
}

TEST(Control, IsRefusedUnlessItIsWhole) {
  for (const MessageType type : kControls) {
    const std::string good = encode(Control{type, GlobalId(7, 8), GlobalId(9, 10)});
    EXPECT_FALSE(decode_control(type, good + '\0'));
    for (std::size_t size = 0; size < good.size(); ++size) {
      EXPECT_FALSE(decode_control(type, good.substr(0, size)));
    }
  }
  EXPECT_FALSE(decode_control(MessageType::ScriptCall, encode(FetchCall{})));
}

TEST(Ack, IsEmptyWhenItIsDone) {
  EXPECT_EQ(encode(Ack::Done), "");
  for (const Ack ack : {Ack::Done, Ack::Ended, Ack::Kept, Ack::Cancelled}) {
    EXPECT_EQ(decode_ack(encode(ack)).value(), ack);
  }
  EXPECT_FALSE(decode_ack(std::string(1, '\0')));
  EXPECT_FALSE(decode_ack("\x04"));
  EXPECT_FALSE(decode_ack("\x01\x01"));
}

TEST(FetchCall, ComesBackAsItWas) {
  const FetchCall call{GlobalId(1, 2), GlobalId(3, 4)};
  EXPECT_EQ(decode_fetch_call(encode(call)).value(), call);
  EXPECT_FALSE(decode_fetch_call(encode(call) + "x"));
  EXPECT_FALSE(decode_fetch_call(""));
}

TEST(Control, SurvivesBytesOfAnyKind) {
  Random random(1);
  const std::string seeds[] = {encode(kFork), encode(FetchCall{}), encode(Ack::Kept)};
  for (int count = 0; count < 20000; ++count) {
    std::string bytes = seeds[random.below(std::size(seeds))];
    for (std::uint64_t change = random.below(4); change > 0 && !bytes.empty(); --change) {
      bytes[random.below(bytes.size())] = static_cast<char>(random.next());
    }
    if (random.chance(200)) bytes.resize(random.below(bytes.size() + 20), '\xff');
    // What is accepted is what would be sent.
    const auto data = decode_fork_data(bytes);
    EXPECT_TRUE(!data || encode(*data) == bytes);
    const auto call = decode_fetch_call(bytes);
    EXPECT_TRUE(!call || encode(*call) == bytes);
    const auto ack = decode_ack(bytes);
    EXPECT_TRUE(!ack || encode(*ack) == bytes);
    for (const MessageType type : kControls) {
      const auto control = decode_control(type, bytes);
      EXPECT_TRUE(!control || encode(*control) == bytes);
    }
  }
}

}  // namespace
}  // namespace muster::rref
