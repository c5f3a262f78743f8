#include "muster/rpc/large_memory.h"

#include <cstdint>
#include <sys/mman.h>
#include <utility>

namespace muster::rpc {
namespace {

// Pages of this size, where the kernel has them, cost far fewer faults.
constexpr std::size_t kUnitBytes = std::size_t{2} << 20U;

}  // namespace

LargeMemory& LargeMemory::of_process() {
  // Never destroyed: buffers may live until the very end.
  static auto* const kMemory = new LargeMemory;
  return *kMemory;
}

LargeMemory::~LargeMemory() {
  for (const Block& block : kept_) ::munmap(block.begin, block.bytes);
}

std::shared_ptr<std::byte> LargeMemory::allocate(std::size_t bytes) {
  if (bytes > SIZE_MAX - kUnitBytes) return nullptr;
  const Block block = take((bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes);
  if (block.begin == nullptr) return nullptr;
  return {static_cast<std::byte*>(block.begin), [this, block](std::byte*) { give_back(block); }};
}

LargeMemory::Block LargeMemory::take(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    // The one that was used last is the most likely to be in a cache.
    for (auto at = kept_.rbegin(); at != kept_.rend(); ++at) {
      // What is much larger would keep memory from everybody else.
      if (at->bytes < bytes || at->bytes / 2 > bytes) continue;
      const Block found = *at;
      kept_.erase(std::next(at).base());
      kept_bytes_ -= found.bytes;
      return found;
    }
  }
  void* const begin = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return {};
  ::madvise(begin, bytes, MADV_HUGEPAGE);
  return {begin, bytes, {}};
}

void LargeMemory::give_back(Block block) {
  const TimePoint now = SystemClock().now();
  if (block.bytes <= kKeptBytesMax) {
    const std::lock_guard lock(mutex_);
    if (kept_bytes_ + block.bytes <= kKeptBytesMax) {
      block.since = now;
      kept_bytes_ += block.bytes;
      kept_.push_back(block);
      return;
    }
  }
  ::munmap(block.begin, block.bytes);
}

void LargeMemory::trim(TimePoint now) {
  std::vector<Block> dropped;
  {
    const std::lock_guard lock(mutex_);
    while (!kept_.empty() && now - kept_.front().since > kKeptTime) {
      kept_bytes_ -= kept_.front().bytes;
      dropped.push_back(kept_.front());
      kept_.erase(kept_.begin());
    }
  }
  for (const Block& block : dropped) ::munmap(block.begin, block.bytes);
}

std::size_t LargeMemory::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

}  // namespace muster::rpc
