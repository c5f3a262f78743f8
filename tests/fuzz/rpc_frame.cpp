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

// The bytes of messages, and which of them mean something: those of a gap do not.
struct Encoded {
  std::string bytes;
  std::string means;

  bool is_beginning_of(std::string_view input) const {
    if (input.size() < bytes.size()) return false;
    for (std::size_t index = 0; index < bytes.size(); ++index) {
      if (means[index] != 0 && input[index] != bytes[index]) return false;
    }
    return true;
  }
  friend bool operator==(const Encoded&, const Encoded&) = default;
};

Encoded encoded(const std::vector<Message>& messages) {
  Encoded all;
  for (const Message& message : messages) {
    MUSTER_ASSERT(check_frame(message, kLimits));
    all.bytes += encode_head(message);
    const std::size_t gap = all.bytes.size() - all.means.size() - kFrameHeadBytes -
                            message.buffers.size() * sizeof(std::uint64_t) - message.payload.size();
    all.means.resize(all.bytes.size() - gap, 1);
    all.means.resize(all.bytes.size(), 0);
    for (const Buffer& buffer : message.buffers) {
      all.bytes.append(reinterpret_cast<const char*>(buffer.data()), buffer.size());
    }
    all.means.resize(all.bytes.size(), 1);
  }
  return all;
}

void run(std::string_view input) {
  const Reading whole = read(input, input.size() + 1, false);
  const Encoded found = encoded(whole.messages);
  MUSTER_ASSERT(found.is_beginning_of(input));
  MUSTER_ASSERT(!whole.failure.empty() ||
                input.size() - found.bytes.size() <
                    kLimits.control_bytes + kLimits.buffer_bytes + kFrameBuffersMax * 8);
  // Large ones in larger pieces, or there would be few of them in a minute.
  const std::size_t piece_bytes_max = 20 + input.size() / 100;
  for (const bool directly : {false, true}) {
    const Reading pieces = read(input, piece_bytes_max, directly);
    MUSTER_ASSERT(encoded(pieces.messages) == found);
    MUSTER_ASSERT(pieces.failure == whole.failure);
  }
}

}  // namespace
}  // namespace muster::rpc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  muster::rpc::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
