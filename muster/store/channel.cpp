#include "muster/store/channel.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

namespace muster::store {
namespace {
constexpr std::size_t kReadBytes = std::size_t{64} << 10U;
}

Channel::Channel(Loop& loop, std::unique_ptr<net::Stream> stream)
    : loop_(loop), stream_(std::move(stream)) {
  stream_->set_events(this);
  // Always reading, so that a server that goes away is noticed before the next request.
  update();
}

Channel::~Channel() = default;

bool Channel::send(std::string_view bytes) {
  if (broken()) return false;
  output_.append(bytes);
  flush();
  return !broken() || unsent_bytes_at_break_ < bytes.size();
}

Task<Result<std::string>> Channel::receive(std::size_t size, TimePoint deadline) {
  MUSTER_ASSERT(waiter_ == nullptr);
  if (input_.size() < size && !broken()) {
    Oneshot<bool> enough(loop_);
    Timer timer(loop_, [&enough] { enough.set(false); });
    timer.set(deadline);
    wanted_bytes_ = size;
    waiter_ = &enough;
    struct Withdraw {
      Channel& channel;
      ~Withdraw() { channel.waiter_ = nullptr; }
    };
    const Withdraw withdraw{*this};
    const bool came = co_await enough;
    if (!came) co_return fail(ErrorKind::Timeout, "no answer in time");
  }
  if (input_.size() < size) co_return fail(ErrorKind::Closed, failure_);
  std::string bytes = input_.substr(0, size);
  input_.erase(0, size);
  co_return bytes;
}

std::unique_ptr<net::Stream> Channel::release() {
  MUSTER_ASSERT(input_.empty() && output_.empty());
  stream_->want(false, false);
  stream_->set_events(nullptr);
  return std::move(stream_);
}

void Channel::on_readable() {
  const std::size_t before = input_.size();
  input_.resize(before + kReadBytes);
  const net::Transfer transfer = stream_->read({input_.data() + before, kReadBytes});
  input_.resize(before + transfer.bytes);
  if (transfer.kind == net::Transfer::Kind::End) {
    ended_ = true;
    fail_with("the server closed the connection");
  }
  if (transfer.kind == net::Transfer::Kind::Failed) {
    fail_with(fmt::format("the connection broke: {}", describe_errno(transfer.error_number)));
  }
  if (waiter_ != nullptr && input_.size() >= wanted_bytes_) waiter_->set(true);
}

void Channel::on_writable() { flush(); }

void Channel::flush() {
  while (!output_.empty()) {
    const std::string_view piece = output_;
    const net::Transfer transfer = stream_->write({&piece, 1});
    if (transfer.kind == net::Transfer::Kind::WouldBlock) break;
    if (transfer.kind != net::Transfer::Kind::Moved) {
      fail_with(fmt::format("the connection broke: {}", describe_errno(transfer.error_number)));
      return;
    }
    output_.erase(0, transfer.bytes);
  }
  update();
}

void Channel::update() { stream_->want(!broken(), !output_.empty()); }

void Channel::fail_with(std::string reason) {
  if (broken()) return;
  failure_ = std::move(reason);
  unsent_bytes_at_break_ = output_.size();
  output_.clear();
  update();
  if (waiter_ != nullptr) waiter_->set(true);
}

}  // namespace muster::store
