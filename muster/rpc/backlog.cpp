#include "muster/rpc/backlog.h"

#include <utility>

namespace muster::rpc {

Backlog::Backlog(BacklogLimits limits, std::function<void(bool)> hold)
    : limits_(limits), hold_(std::move(hold)) {}

void Backlog::add(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  ++requests_;
  bytes_ += bytes;
  if (is_holding_ || (requests_ <= limits_.requests && bytes_ <= limits_.bytes)) return;
  is_holding_ = true;
  hold_(true);
}

void Backlog::remove(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  --requests_;
  bytes_ -= bytes;
  if (!is_holding_ || requests_ > limits_.requests / 2 || bytes_ > limits_.bytes / 2) return;
  is_holding_ = false;
  hold_(false);
}

}  // namespace muster::rpc
