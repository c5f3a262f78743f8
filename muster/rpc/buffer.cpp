#include "muster/rpc/buffer.h"

#include "muster/rpc/large_memory.h"

#include <cstring>
#include <new>

namespace muster::rpc {

std::shared_ptr<std::byte> try_allocate(std::size_t bytes) {
  if (kHasLargeMemory && bytes >= kLargeBytesMin) {
    return LargeMemory::of_process().allocate(bytes);
  }
  constexpr auto kAlignment = std::align_val_t{kBufferAlignment};
  void* const memory = ::operator new(bytes, kAlignment, std::nothrow);
  if (memory == nullptr) return nullptr;
  return {static_cast<std::byte*>(memory),
          [](std::byte* owned) { ::operator delete(owned, kAlignment); }};
}

std::shared_ptr<std::byte> allocate_bytes(std::size_t bytes) {
  auto memory = try_allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

Buffer copy_of(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  std::shared_ptr<std::byte> memory = allocate_bytes(bytes.size());
  std::memcpy(memory.get(), bytes.data(), bytes.size());
  const std::span<const std::byte> copied(memory.get(), bytes.size());
  return {copied, std::move(memory)};
}

bool take_over(std::vector<Buffer>& buffers) {
  for (Buffer& buffer : buffers) {
    if (!buffer.is_borrowed()) continue;
    std::shared_ptr<std::byte> memory = try_allocate(buffer.size());
    if (!memory) return false;
    std::memcpy(memory.get(), buffer.data(), buffer.size());
    const std::span<const std::byte> copied(memory.get(), buffer.size());
    buffer = Buffer(copied, std::move(memory));
  }
  return true;
}

}  // namespace muster::rpc
