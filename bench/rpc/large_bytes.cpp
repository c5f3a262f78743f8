#include "bench/rpc/large_bytes.h"

#include <cstdint>
#include <stdexcept>
#include <sys/mman.h>

namespace muster::bench {
namespace {

constexpr std::size_t kPageBytes = std::size_t{2} << 20U;

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

void LargeBytes::resize(std::size_t bytes) {
  if (bytes > capacity_) {
    release();
    const std::size_t capacity = whole_pages(bytes);
    mapped_bytes_ = capacity + kPageBytes;
    mapped_ =
        ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) {
      mapped_ = nullptr;
      throw std::runtime_error("there is not so much memory");
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(mapped_);
    data_ = static_cast<char*>(mapped_) + (whole_pages(begin) - begin);
    capacity_ = capacity;
    ::madvise(data_, capacity_, MADV_HUGEPAGE);
  }
  size_ = bytes;
}

void LargeBytes::release() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  mapped_ = nullptr;
  data_ = nullptr;
  capacity_ = 0;
  size_ = 0;
}

}  // namespace muster::bench
