#include "muster/rpc/frame.h"

#include "muster/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace muster::rpc {
namespace {

Buffer buffer_of(std::size_t bytes, int first) {
  auto memory = allocate_bytes(bytes);
  for (std::size_t index = 0; index < bytes; ++index) {
    memory.get()[index] = static_cast<std::byte>(static_cast<std::size_t>(first) + index);
  }
  const std::span<const std::byte> view(memory.get(), bytes);
  return {view, std::move(memory)};
}

Message message_of(MessageType type, std::int64_t id, std::string payload,
                   std::vector<std::size_t> sizes) {
  Message message{type, id, std::move(payload), {}};
  for (const std::size_t size : sizes) {
    message.buffers.push_back(buffer_of(size, static_cast<int>(message.buffers.size())));
  }
  return message;
}

std::string bytes_of(const Message& message) {
  std::string bytes = encode_head(message);
  for (const Buffer& buffer : message.buffers) {
    bytes.append(reinterpret_cast<const char*>(buffer.data()), buffer.size());
  }
  return bytes;
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void expect_same(const Message& got, const Message& wanted) {
  EXPECT_EQ(got.type, wanted.type);
  EXPECT_EQ(got.id, wanted.id);
  EXPECT_EQ(got.payload, wanted.payload);
  ASSERT_EQ(got.buffers.size(), wanted.buffers.size());
  for (std::size_t index = 0; index < got.buffers.size(); ++index) {
    EXPECT_TRUE(std::ranges::equal(got.buffers[index].bytes(), wanted.buffers[index].bytes()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.buffers[index].data()) % kBufferAlignment, 0U);
  }
}

std::vector<Message> several() {
  std::vector<Message> messages;
  messages.push_back(message_of(MessageType::ScriptCall, 0, "add", {}));
  messages.push_back(message_of(MessageType::ScriptRet, 0, "", {}));
  messages.push_back(message_of(MessageType::PythonCall, 7, "with buffers", {3, 0, 100'000, 1}));
  messages.push_back(message_of(MessageType::Exception, 1, std::string(5000, 'x'), {0}));
  return messages;
}

TEST(Frame, HasTheseBytes) {
  Message message{MessageType::ScriptCall, 0x0102030405060708, "abc", {}};
  message.buffers.push_back(buffer_of(2, 1));
  const char expected[] =
      "\x03\0\0\0\0\x01\x01\0\x08\x07\x06\x05\x04\x03\x02\x01\x02\0\0\0\0\0\0\0abc\x01\x02";
  EXPECT_EQ(bytes_of(message), std::string(expected, sizeof expected - 1));
}

TEST(Frame, BeginsLargeBuffersAtAMultipleOf64Bytes) {
  for (std::size_t control_bytes = 0; control_bytes <= 130; ++control_bytes) {
    const Message message =
        message_of(MessageType::ScriptCall, 1, std::string(control_bytes, 'c'), {60'000, 5536});
    EXPECT_EQ(encode_head(message).size() % 64, 0U) << control_bytes;
    EXPECT_LT(encode_head(message).size(), 16 + 2 * 8 + control_bytes + 64) << control_bytes;
    FrameReader reader;
    std::vector<Message> got;
    ASSERT_TRUE(reader.feed(as_bytes(bytes_of(message)), got));
    ASSERT_EQ(got.size(), 1U);
    expect_same(got[0], message);
    EXPECT_TRUE(reader.is_idle());
  }
  const Message smaller = message_of(MessageType::ScriptCall, 1, "c", {60'000, 5535});
  EXPECT_EQ(encode_head(smaller).size(), 16U + 2 * 8 + 1);
}

TEST(Frame, BringsMessagesBackHoweverTheyAreCut) {
  const std::vector<Message> sent = several();
  std::string all;
  for (const Message& message : sent) all += bytes_of(message);
  Random random(11);
  for (int round = 0; round < 50; ++round) {
    FrameReader reader;
    std::vector<Message> got;
    std::string_view rest = all;
    while (!rest.empty()) {
      const std::size_t most = std::min<std::size_t>(rest.size(), round == 1 ? 5000 : 40'000);
      std::size_t count = round == 0 ? 1 : 1 + random.below(most);
      const std::span<std::byte> room = reader.room();
      if (!room.empty()) {
        count = std::min(count, room.size());
        std::memcpy(room.data(), rest.data(), count);
        ASSERT_TRUE(reader.filled(count, got));
      } else {
        ASSERT_TRUE(reader.feed(as_bytes(rest.substr(0, count)), got));
      }
      rest.remove_prefix(count);
    }
    EXPECT_TRUE(reader.is_idle());
    ASSERT_EQ(got.size(), sent.size());
    for (std::size_t index = 0; index < got.size(); ++index) expect_same(got[index], sent[index]);
  }
}

TEST(Frame, NeedsNoMemoryForEmptyBuffers) {
  const Message sent = message_of(MessageType::ScriptCall, 1, "x", {0, 5, 0, 0});
  FrameReader reader;
  std::vector<Message> got;
  ASSERT_TRUE(reader.feed(as_bytes(bytes_of(sent)), got));
  ASSERT_EQ(got.size(), 1U);
  ASSERT_EQ(got[0].buffers.size(), 4U);
  for (const std::size_t empty : {0U, 2U, 3U}) {
    EXPECT_EQ(got[0].buffers[empty].owner(), nullptr);
    EXPECT_TRUE(got[0].buffers[empty].empty());
  }
  EXPECT_NE(got[0].buffers[1].owner(), nullptr);
}

TEST(Frame, ReadsALargeBufferStraightIntoItsPlace) {
  const Message sent = message_of(MessageType::ScriptCall, 1, "x", {1 << 20});
  const std::string bytes = bytes_of(sent);
  FrameReader reader;
  std::vector<Message> got;
  const std::size_t head = bytes.size() - (1 << 20);
  ASSERT_TRUE(reader.feed(as_bytes(std::string_view(bytes).substr(0, head)), got));
  const std::span<std::byte> room = reader.room();
  ASSERT_EQ(room.size(), std::size_t{1} << 20);
  std::memcpy(room.data(), bytes.data() + head, room.size());
  ASSERT_TRUE(reader.filled(room.size(), got));
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].buffers[0].data(), room.data());
  expect_same(got[0], sent);
}

TEST(Frame, OffersNoRoomForWhatIsSmallOrAlmostThere) {
  const Message sent = message_of(MessageType::ScriptCall, 1, "x", {40'000});
  const std::string bytes = bytes_of(sent);
  FrameReader reader;
  std::vector<Message> got;
  ASSERT_TRUE(reader.feed(as_bytes(std::string_view(bytes).substr(0, bytes.size() - 40'000)), got));
  EXPECT_EQ(reader.room().size(), 40'000U);
  ASSERT_TRUE(
      reader.feed(as_bytes(std::string_view(bytes).substr(bytes.size() - 40'000, 20'000)), got));
  EXPECT_TRUE(reader.room().empty());
}

TEST(Frame, KnowsWhetherAConnectionEndsBetweenFrames) {
  const std::string bytes = bytes_of(message_of(MessageType::ScriptCall, 1, "payload", {5}));
  for (std::size_t count = 0; count <= bytes.size(); ++count) {
    FrameReader reader;
    std::vector<Message> got;
    ASSERT_TRUE(reader.feed(as_bytes(std::string_view(bytes).substr(0, count)), got));
    EXPECT_EQ(reader.is_idle(), count == 0 || count == bytes.size()) << count;
  }
}

void expect_refused(std::string_view bytes, std::string_view reason, FrameLimits limits = {}) {
  FrameReader reader(limits);
  std::vector<Message> got;
  const auto fed = reader.feed(as_bytes(bytes), got);
  ASSERT_FALSE(fed);
  EXPECT_EQ(fed.error().kind, ErrorKind::Corrupt);
  EXPECT_NE(fed.error().message.find(reason), std::string::npos) << fed.error().message;
  EXPECT_TRUE(got.empty());
  // And it stays so.
  EXPECT_FALSE(
      reader.feed(as_bytes(bytes_of(message_of(MessageType::ScriptCall, 1, "", {}))), got));
  EXPECT_TRUE(reader.room().empty());
  EXPECT_FALSE(reader.is_idle());
}

TEST(Frame, RefusesWhatNobodyMaySend) {
  expect_refused(bytes_of(message_of(MessageType::Unknown, 1, "", {})), "neither a request nor");
  expect_refused(bytes_of(message_of(static_cast<MessageType>(0x300), 1, "", {})), "neither");
  expect_refused(bytes_of(message_of(MessageType::ScriptCall, -1, "", {})), "the number -1");
  expect_refused(std::string(kFrameHeadBytes, '\xff'), "neither a request nor a response");
}

TEST(Frame, RefusesWhatIsTooLargeBeforeItComes) {
  const FrameLimits limits{100, 1000};
  const std::string control =
      bytes_of(message_of(MessageType::ScriptCall, 1, std::string(101, 'x'), {}));
  expect_refused(std::string_view(control).substr(0, kFrameHeadBytes), "announces 101 bytes",
                 limits);
  const std::string buffers = bytes_of(message_of(MessageType::ScriptCall, 1, "", {600, 401}));
  expect_refused(std::string_view(buffers).substr(0, kFrameHeadBytes + 16), "more than 1000 bytes",
                 limits);
  // The sum of these is small again, if one does not look.
  std::string bytes = encode_head(message_of(MessageType::ScriptCall, 1, "", {0, 0}));
  std::memset(bytes.data() + kFrameHeadBytes, 0xff, 16);
  expect_refused(bytes, "announces more than");
}

TEST(Frame, TellsTheSenderWhatDoesNotFit) {
  const FrameLimits limits{100, 1000};
  EXPECT_TRUE(check_frame(message_of(MessageType::ScriptCall, 1, std::string(100, 'x'), {600, 400}),
                          limits));
  const auto too_long =
      check_frame(message_of(MessageType::ScriptCall, 1, std::string(101, 'x'), {}), limits);
  ASSERT_FALSE(too_long);
  EXPECT_NE(too_long.error().message.find("send large data as a buffer"), std::string::npos);
  EXPECT_FALSE(check_frame(message_of(MessageType::ScriptCall, 1, "", {600, 401}), limits));
  EXPECT_FALSE(check_frame(message_of(MessageType::Unknown, 1, "", {}), limits));
  Message many{MessageType::ScriptCall, 1, "", {}};
  many.buffers.resize(kFrameBuffersMax + 1);
  EXPECT_FALSE(check_frame(many, limits));
}

TEST(Frame, MayHaveAsManyBuffersAsItsHeadCanCount) {
  Message many{MessageType::ScriptCall, 1, "control", {}};
  many.buffers.resize(kFrameBuffersMax - 1);
  many.buffers.push_back(message_of(MessageType::ScriptCall, 1, "", {3}).buffers[0]);
  ASSERT_TRUE(check_frame(many, {}));
  const std::string bytes = bytes_of(many);
  FrameReader reader;
  std::vector<Message> got;
  ASSERT_TRUE(reader.feed(as_bytes(bytes), got));
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].payload, "control");
  ASSERT_EQ(got[0].buffers.size(), kFrameBuffersMax);
  EXPECT_EQ(got[0].buffers.back().size(), 3U);
  many.buffers.emplace_back();
  const auto too_many = check_frame(many, {});
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().message, "the message has 65536 buffers, and may have 65535");
}

// Empty ones would not be noticed by their bytes.
TEST(Frame, HasNoMoreBuffersThanTheLimit) {
  const FrameLimits limits{100, 1000, 2};
  const Message two = message_of(MessageType::ScriptCall, 1, "", {0, 0});
  const Message three = message_of(MessageType::ScriptCall, 1, "", {0, 0, 0});
  EXPECT_TRUE(check_frame(two, limits));
  EXPECT_FALSE(check_frame(three, limits));
  FrameReader reader(limits);
  std::vector<Message> got;
  EXPECT_TRUE(reader.feed(as_bytes(bytes_of(two)), got));
  EXPECT_EQ(got.size(), 1U);
  expect_refused(std::string_view(bytes_of(three)).substr(0, kFrameHeadBytes),
                 "announces 3 buffers, and may have 2", limits);
}

TEST(Frame, TouchesNoMemoryThatIsOnlyAnnounced) {
  // A peer that announces a gigabyte and stops costs nothing.
  std::string bytes = encode_head(message_of(MessageType::ScriptCall, 1, "", {0}));
  const std::uint64_t size = std::uint64_t{1} << 30U;
  std::memcpy(bytes.data() + kFrameHeadBytes, &size, sizeof size);
  bytes.resize(64);  // with the gap
  FrameReader reader;
  std::vector<Message> got;
  const auto fed = reader.feed(as_bytes(bytes), got);
  if (fed) {
    EXPECT_EQ(reader.room().size(), size);  // else the system said no, and so do we
  }
  EXPECT_TRUE(got.empty());
}

}  // namespace
}  // namespace muster::rpc
