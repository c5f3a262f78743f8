// LargeBytes: memory for the bounds that move many bytes, of the kind that Muster takes for its
// large buffers: in pages of 2 MiB where the kernel has them. In smaller pages a copy takes longer,
// and what can be overtaken that way is no bound.
#pragma once

#include <cstddef>
#include <span>

namespace muster::bench {

class LargeBytes {
 public:
  LargeBytes() = default;
  explicit LargeBytes(std::size_t bytes) { resize(bytes); }
  ~LargeBytes() { release(); }
  LargeBytes(const LargeBytes&) = delete;
  LargeBytes& operator=(const LargeBytes&) = delete;

  /// What is in it afterwards is not said. Memory is only taken anew for more bytes than ever
  /// before. Throws std::runtime_error if there is not so much.
  void resize(std::size_t bytes);

  char* data() { return data_; }
  const char* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(data_, size_)); }

 private:
  void release();

  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  char* data_ = nullptr;  // the first multiple of a large page in there
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
};

}  // namespace muster::bench
