// Fd owns one file descriptor. It moves and never copies; every Fd is close-on-exec from birth.
#pragma once

#include <utility>

namespace muster {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int number) : number_(number) {}
  Fd(Fd&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }
  void reset();

 private:
  int number_ = -1;
};

}  // namespace muster
