// Frames: messages as they go over a connection, and back.
//
//   head      u32 control bytes, u16 type, u16 number of buffers, i64 id       (16 bytes)
//   sizes     u64 for each buffer
//   control   the payload
//   gap       nothing; if the buffers are large, up to the next multiple of 64 bytes
//   buffers   the bytes of each, one after the other
//
// The gap is for the kernel, which copies to its own pages and from them: where source and target
// are not apart by zero or by at least a cache line, some processors take up to three times as
// long.
//
// Little-endian. Buffers are never copied on the way out, and on the way in they are read straight
// into the memory that the message then owns: a large one is not even held twice for a moment.
//
// Pure: no I/O. Everything that comes in is checked before anything is allocated for it; memory
// that a head announces is touched only as its bytes arrive.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/message.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace muster::rpc {

inline constexpr std::size_t kFrameHeadBytes = 16;
inline constexpr std::size_t kFrameBuffersMax = 65535;

// What one frame may be. Both sides of a connection have the same.
struct FrameLimits {
  std::uint64_t control_bytes = std::uint64_t{64} << 20U;
  std::uint64_t buffer_bytes = std::uint64_t{64} << 30U;  // of all buffers together
  std::size_t buffer_count = kFrameBuffersMax;
};

// Invalid if the message does not fit: too many buffers, too many bytes, no type that can be sent.
Result<> check_frame(const Message& message, const FrameLimits& limits);

// Head, sizes, control and gap; the buffers follow it as they are. Requires: check_frame.
std::string encode_head(const Message& message);

class FrameReader {
 public:
  explicit FrameReader(FrameLimits limits = {}) : limits_(limits) {}

  // Takes the next bytes, all of them, and adds the messages that are complete now to `out`. After
  // an error the connection is of no use any more; it is repeated for whatever comes next.
  Result<> feed(std::span<const std::byte> bytes, std::vector<Message>& out);

  // Where the next bytes can be read to directly, when so many are still missing of one buffer that
  // it pays; else empty, and `feed` is the way.
  std::span<std::byte> room();
  // So many bytes were read to the front of `room`.
  Result<> filled(std::size_t bytes, std::vector<Message>& out);

  // From the next frame on.
  void set_limits(FrameLimits limits) { limits_ = limits; }
  // Between two frames: the connection may end here.
  bool is_idle() const { return stage_ == Stage::Head && head_bytes_ == 0; }

 private:
  enum class Stage { Head, Sizes, Control, Buffers, Broken };

  Result<> advance(std::vector<Message>& out);
  Result<> begin();
  Result<> begin_buffers();
  Result<> next_buffer();
  Result<> broken(std::string reason);

  FrameLimits limits_;
  Stage stage_ = Stage::Head;
  std::string failure_;
  std::array<std::byte, kFrameHeadBytes> head_{};
  std::size_t head_bytes_ = 0;
  std::vector<std::uint64_t> sizes_;
  std::size_t sizes_bytes_ = 0;  // of them that have come
  std::size_t control_bytes_ = 0;
  std::size_t gap_bytes_ = 0;
  std::size_t control_come_bytes_ = 0;  // of both
  Message message_;
  std::shared_ptr<std::byte> buffer_;  // the one that is being filled
  std::size_t buffer_come_bytes_ = 0;
};

}  // namespace muster::rpc
