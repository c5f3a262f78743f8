#include "muster/rpc/frame.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace muster::rpc {
namespace {

// Below this, a system call of its own costs more than the copy that it saves.
constexpr std::size_t kDirectBytesMin = std::size_t{32} << 10U;
// Buffers that have so much together begin at a multiple of the other.
constexpr std::uint64_t kAlignedBytesMin = std::uint64_t{64} << 10U;
constexpr std::size_t kAlignment = 64;
// The control part grows as it arrives, at first by no more than this.
constexpr std::size_t kControlReserveBytesMax = std::size_t{1} << 20U;

template <typename Number>
Number load(const std::byte* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

template <typename Number>
void put(std::string& out, Number number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}

std::size_t gap_after(std::size_t control_bytes, std::size_t buffer_count, std::uint64_t total) {
  if (total < kAlignedBytesMin) return 0;
  const std::size_t before = kFrameHeadBytes + buffer_count * sizeof(std::uint64_t) + control_bytes;
  return (kAlignment - before % kAlignment) % kAlignment;
}

bool can_be_sent(MessageType type) { return is_request(type) != is_response(type); }

// Moves what fits of `bytes` behind the `come` bytes that are in `into`.
std::size_t move_in(std::span<const std::byte>& bytes, std::span<std::byte> into,
                    std::size_t& come) {
  const std::size_t count = std::min(bytes.size(), into.size() - come);
  if (count > 0) std::memcpy(into.data() + come, bytes.data(), count);
  come += count;
  bytes = bytes.subspan(count);
  return count;
}

}  // namespace

Result<> check_frame(const Message& message, const FrameLimits& limits) {
  if (!can_be_sent(message.type)) {
    return fail(ErrorKind::Invalid,
                fmt::format("a message of type {} cannot be sent", name_of(message.type)));
  }
  if (message.payload.size() > limits.control_bytes) {
    return fail(ErrorKind::Invalid,
                fmt::format("the message has {} bytes beside its buffers, and may have {}; send "
                            "large data as a buffer or a tensor",
                            message.payload.size(), limits.control_bytes));
  }
  if (message.buffers.size() > limits.buffer_count) {
    return fail(ErrorKind::Invalid, fmt::format("the message has {} buffers, and may have {}",
                                                message.buffers.size(), limits.buffer_count));
  }
  std::uint64_t total = 0;
  for (const Buffer& buffer : message.buffers) {
    if (buffer.size() > limits.buffer_bytes - total) {
      return fail(ErrorKind::Invalid,
                  fmt::format("the buffers of the message have more than the {} bytes that they "
                              "may have together",
                              limits.buffer_bytes));
    }
    total += buffer.size();
  }
  return {};
}

std::string encode_head(const Message& message) {
  std::uint64_t total = 0;
  for (const Buffer& buffer : message.buffers) total += buffer.size();
  const std::size_t gap = gap_after(message.payload.size(), message.buffers.size(), total);
  std::string out;
  out.reserve(kFrameHeadBytes + message.buffers.size() * sizeof(std::uint64_t) +
              message.payload.size() + gap);
  put(out, static_cast<std::uint32_t>(message.payload.size()));
  put(out, static_cast<std::uint16_t>(message.type));
  put(out, static_cast<std::uint16_t>(message.buffers.size()));
  put(out, message.id);
  for (const Buffer& buffer : message.buffers) {
    put(out, static_cast<std::uint64_t>(buffer.size()));
  }
  out += message.payload;
  out.append(gap, '\0');
  return out;
}

Result<> FrameReader::broken(std::string reason) {
  stage_ = Stage::Broken;
  failure_ = std::move(reason);
  message_ = {};
  buffer_ = nullptr;
  return fail(ErrorKind::Corrupt, failure_);
}

Result<> FrameReader::feed(std::span<const std::byte> bytes, std::vector<Message>& out) {
  if (stage_ == Stage::Broken) return fail(ErrorKind::Corrupt, failure_);
  while (!bytes.empty()) {
    switch (stage_) {
      case Stage::Head:
        move_in(bytes, head_, head_bytes_);
        break;
      case Stage::Sizes:
        move_in(bytes, std::as_writable_bytes(std::span(sizes_)), sizes_bytes_);
        break;
      case Stage::Control: {
        const std::size_t missing = control_bytes_ - message_.payload.size();
        message_.payload.append(reinterpret_cast<const char*>(bytes.data()),
                                std::min(bytes.size(), missing));
        const std::size_t count =
            std::min(bytes.size(), control_bytes_ + gap_bytes_ - control_come_bytes_);
        control_come_bytes_ += count;
        bytes = bytes.subspan(count);
        break;
      }
      case Stage::Buffers: {
        const std::size_t size = sizes_[message_.buffers.size()];
        move_in(bytes, {buffer_.get(), size}, buffer_come_bytes_);
        break;
      }
      case Stage::Broken:
        return fail(ErrorKind::Corrupt, failure_);
    }
    if (auto advanced = advance(out); !advanced) return advanced;
  }
  return {};
}

std::span<std::byte> FrameReader::room() {
  if (stage_ != Stage::Buffers) return {};
  const std::size_t missing = sizes_[message_.buffers.size()] - buffer_come_bytes_;
  if (missing < kDirectBytesMin) return {};
  return {buffer_.get() + buffer_come_bytes_, missing};
}

Result<> FrameReader::filled(std::size_t bytes, std::vector<Message>& out) {
  MUSTER_ASSERT(bytes <= room().size());
  buffer_come_bytes_ += bytes;
  return advance(out);
}

// As far as it goes without more bytes.
Result<> FrameReader::advance(std::vector<Message>& out) {
  for (;;) {
    switch (stage_) {
      case Stage::Head:
        if (head_bytes_ < kFrameHeadBytes) return {};
        if (auto begun = begin(); !begun) return begun;
        break;
      case Stage::Sizes:
        if (sizes_bytes_ < sizes_.size() * sizeof(std::uint64_t)) return {};
        if (auto checked = begin_buffers(); !checked) return checked;
        break;
      case Stage::Control:
        if (control_come_bytes_ < control_bytes_ + gap_bytes_) return {};
        stage_ = Stage::Buffers;
        if (auto next = next_buffer(); !next) return next;
        break;
      case Stage::Buffers: {
        const std::size_t index = message_.buffers.size();
        if (index == sizes_.size()) {
          out.push_back(std::exchange(message_, {}));
          stage_ = Stage::Head;
          head_bytes_ = 0;
          break;
        }
        const std::size_t size = sizes_[index];
        if (buffer_come_bytes_ < size) return {};
        const std::span<const std::byte> whole(buffer_.get(), size);
        message_.buffers.emplace_back(whole, std::exchange(buffer_, nullptr));
        if (auto next = next_buffer(); !next) return next;
        break;
      }
      case Stage::Broken:
        return fail(ErrorKind::Corrupt, failure_);
    }
  }
}

Result<> FrameReader::begin() {
  control_bytes_ = load<std::uint32_t>(head_.data());
  message_.type = static_cast<MessageType>(load<std::uint16_t>(head_.data() + 4));
  const std::size_t buffer_count = load<std::uint16_t>(head_.data() + 6);
  message_.id = load<std::int64_t>(head_.data() + 8);
  if (!can_be_sent(message_.type)) {
    return broken(fmt::format("a frame of type {} is neither a request nor a response",
                              name_of(message_.type)));
  }
  if (message_.id < 0) return broken(fmt::format("a frame has the number {}", message_.id));
  if (control_bytes_ > limits_.control_bytes) {
    return broken(fmt::format("a frame announces {} bytes beside its buffers, and may have {}",
                              control_bytes_, limits_.control_bytes));
  }
  if (buffer_count > limits_.buffer_count) {
    return broken(fmt::format("a frame announces {} buffers, and may have {}", buffer_count,
                              limits_.buffer_count));
  }
  sizes_.assign(buffer_count, 0);
  sizes_bytes_ = 0;
  control_come_bytes_ = 0;
  message_.payload.reserve(std::min(control_bytes_, kControlReserveBytesMax));
  stage_ = Stage::Sizes;
  return {};
}

Result<> FrameReader::begin_buffers() {
  std::uint64_t total = 0;
  for (const std::uint64_t size : sizes_) {
    if (size > limits_.buffer_bytes - total) {
      return broken(
          fmt::format("a frame announces more than {} bytes in its buffers", limits_.buffer_bytes));
    }
    total += size;
  }
  gap_bytes_ = gap_after(control_bytes_, sizes_.size(), total);
  message_.buffers.reserve(sizes_.size());
  stage_ = Stage::Control;
  return {};
}

Result<> FrameReader::next_buffer() {
  buffer_come_bytes_ = 0;
  const std::size_t index = message_.buffers.size();
  // An empty one needs no memory: there may be many of them in few bytes.
  if (index == sizes_.size() || sizes_[index] == 0) return {};
  buffer_ = try_allocate(sizes_[index]);
  if (buffer_ == nullptr) {
    return broken(fmt::format("there is no memory for a buffer of {} bytes", sizes_[index]));
  }
  return {};
}

}  // namespace muster::rpc
