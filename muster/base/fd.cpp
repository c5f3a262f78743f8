#include "muster/base/fd.h"

#include <unistd.h>

namespace muster {

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

void Fd::reset() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

}  // namespace muster
