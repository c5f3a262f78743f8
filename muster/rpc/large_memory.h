// LargeMemory: memory for large buffers, kept for a while when it is given back.
//
// Fresh memory costs: the kernel clears every page when it is first touched, which takes as long as
// the transfer of the bytes itself. Who exchanges large tensors does so again and again, with the
// same sizes; so what one buffer gives back serves the next one, and is only returned to the kernel
// when nobody has wanted it for some time.
//
// Any thread.
#pragma once

#include "muster/base/clock.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace muster::rpc {

// A sanitizer must see every use of memory that was given back, so there it is all malloc's.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kHasLargeMemory = false;
#else
inline constexpr bool kHasLargeMemory = true;
#endif

// Smaller ones are the business of malloc.
inline constexpr std::size_t kLargeBytesMin = std::size_t{1} << 20U;

class LargeMemory {
 public:
  // Of the memory that nobody uses.
  static constexpr std::size_t kKeptBytesMax = std::size_t{512} << 20U;
  static constexpr Duration kKeptTime = std::chrono::seconds(10);

  // Lives as long as the process.
  static LargeMemory& of_process();

  LargeMemory() = default;
  ~LargeMemory();
  LargeMemory(const LargeMemory&) = delete;
  LargeMemory& operator=(const LargeMemory&) = delete;

  // At a page boundary. Nothing if there is not so much. Requires: this outlives it.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);
  // Returns to the kernel what nobody has wanted for kKeptTime.
  void trim(TimePoint now);
  std::size_t kept_bytes() const;

 private:
  struct Block {
    void* begin = nullptr;
    std::size_t bytes = 0;
    TimePoint since;  // nobody uses it
  };
  Block take(std::size_t bytes);
  void give_back(Block block);

  mutable std::mutex mutex_;
  std::vector<Block> kept_;  // the longest unused first
  std::size_t kept_bytes_ = 0;
};

}  // namespace muster::rpc
