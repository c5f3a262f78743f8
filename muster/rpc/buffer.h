// Buffer: bytes that travel beside a message, never inside it.
//
// A view together with what keeps the memory alive, cheap to copy; the bytes themselves are never
// copied. Borrowed memory has no owner: whoever lends it keeps it unchanged until the call is over.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace muster::rpc {

class Buffer {
 public:
  Buffer() = default;
  // Shares the memory with `owner`.
  Buffer(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}

  static Buffer borrow(std::span<const std::byte> bytes) { return {bytes, nullptr}; }

  const std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }
  bool is_borrowed() const { return owner_ == nullptr && !bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

// What a buffer that is not empty takes beside its bytes: who owns them, and what is lost where
// memory begins at a multiple of kBufferAlignment. About so much, for those who count.
inline constexpr std::size_t kBufferOverheadBytes = 128;

// Where memory of ours begins, so that tensors can be used where they are.
inline constexpr std::size_t kBufferAlignment = 64;

// Memory for `bytes` bytes at a multiple of kBufferAlignment, not initialised, and so not touched.
// Nothing if there is not so much.
std::shared_ptr<std::byte> try_allocate(std::size_t bytes);
// Likewise; throws std::bad_alloc.
std::shared_ptr<std::byte> allocate_bytes(std::size_t bytes);

Buffer copy_of(std::span<const std::byte> bytes);

// Copies what is borrowed, so that whoever lent it has it back; false if there is not so much
// memory.
bool take_over(std::vector<Buffer>& buffers);

}  // namespace muster::rpc
