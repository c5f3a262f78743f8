// Bytes of a peer against the reader of RPC frames: it finds the same messages however they are cut
// and whichever way they are handed in, holds no more than its limits allow, and what it finds is
// what was sent.
#include "muster/base/assert.h"
#include "muster/base/random.h"
#include "muster/rpc/frame.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {
namespace {

constexpr FrameLimits kLimits{4096, std::uint64_t{1} << 20U};

struct Reading {
  std::vector<Message> messages;
  std::string failure;
};

std::span<const std::byte> as_bytes(const std::vector<char>& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

Reading read(std::string_view input, std::size_t piece_bytes_max, bool directly) {
  Reading reading;
  FrameReader reader(kLimits);
  Random random(input.size());
  while (!input.empty() && reading.failure.empty()) {
    std::size_t count = std::min(input.size(), 1 + random.below(piece_bytes_max));
    Result<> taken;
    const std::span<std::byte> room = directly ? reader.room() : std::span<std::byte>();
    if (room.empty()) {
      // In memory of exactly its size, so that AddressSanitizer notices every byte read past it.
      const std::vector<char> exact(input.begin(),
                                    input.begin() + static_cast<std::ptrdiff_t>(count));
      taken = reader.feed(as_bytes(exact), reading.messages);
    } else {
      MUSTER_ASSERT(room.size() <= kLimits.buffer_bytes);
      count = std::min(count, room.size());
      std::memcpy(room.data(), input.data(), count);
      taken = reader.filled(count, reading.messages);
    }
    if (!taken) reading.failure = taken.error().message;
    input.remove_prefix(count);
  }
  return reading;
}

std::string encoded(const std::vector<Message>& messages) {
  std::string all;
  for (const Message& message : messages) {
    MUSTER_ASSERT(check_frame(message, kLimits));
    all += encode_head(message);
    for (const Buffer& buffer : message.buffers) {
      all.append(reinterpret_cast<const char*>(buffer.data()), buffer.size());
    }
  }
  return all;
}

void run(std::string_view input) {
  const Reading whole = read(input, input.size() + 1, false);
  const std::string bytes = encoded(whole.messages);
  MUSTER_ASSERT(input.starts_with(bytes));
  MUSTER_ASSERT(!whole.failure.empty() || input.size() - bytes.size() < kLimits.control_bytes +
                                                                            kLimits.buffer_bytes +
                                                                            kFrameBuffersMax * 8);
  for (const bool directly : {false, true}) {
    const Reading pieces = read(input, 20, directly);
    MUSTER_ASSERT(encoded(pieces.messages) == bytes);
    MUSTER_ASSERT(pieces.failure == whole.failure);
  }
}

}  // namespace
}  // namespace muster::rpc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  muster::rpc::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
