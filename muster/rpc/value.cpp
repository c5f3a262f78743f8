#include "muster/rpc/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

namespace muster::rpc {
namespace {

constexpr std::size_t kControlBytesFirst = 128;

}  // namespace

// ---- Writer -------------------------------------------------------------------------------------

void Writer::fail(std::string why) {
  if (error_.empty()) error_ = why.empty() ? "it was refused" : std::move(why);
}

Result<> Writer::finish() const {
  if (!ok()) return muster::fail(ErrorKind::Invalid, error_);
  return {};
}

void Writer::grow(std::size_t size) {
  control_.resize(std::max({control_.size() * 2, used_ + size, kControlBytesFirst}));
}

void Writer::put_far(std::span<const std::byte> bytes) {
  put_buffer(lend_ == Lend::Lvalues ? Buffer::borrow(bytes) : copy_of(bytes));
}

void Writer::put_buffer(Buffer buffer) {
  if (buffer.size() < kOutOfBandBytesMin) return put_bytes(buffer.bytes());
  put(kNextBuffer);
  buffers_.push_back(std::move(buffer));
}

// ---- Reader -------------------------------------------------------------------------------------

void Reader::fail(const char* why) {
  if (problem_ != nullptr) return;
  problem_ = why;
  problem_position_ = position();
  next_ = end_;
  buffers_read_ = buffers_.size();
}

void Reader::fail(std::string why) {
  if (problem_ != nullptr) return;
  problem_text_ = std::move(why);
  fail(problem_text_.c_str());
}

Result<> Reader::finish() const {
  const auto size = static_cast<std::size_t>(end_ - begin_);
  if (problem_ != nullptr) {
    return muster::fail(ErrorKind::Invalid,
                        fmt::format("at byte {} of {}: {}", problem_position_, size, problem_));
  }
  if (remaining() != 0) {
    return muster::fail(ErrorKind::Invalid,
                        fmt::format("{} of {} bytes are left over", remaining(), size));
  }
  if (buffers_read_ != buffers_.size()) {
    const std::size_t left = buffers_.size() - buffers_read_;
    return muster::fail(ErrorKind::Invalid,
                        fmt::format("{} of {} buffers are left over", left, buffers_.size()));
  }
  return {};
}

void Reader::get_raw(std::span<std::byte> out) {
  if (out.empty()) return;
  if (remaining() < out.size()) {
    std::memset(out.data(), 0, out.size());
    return fail(kTooShort);
  }
  std::memcpy(out.data(), next_, out.size());
  next_ += out.size();
}

bool Reader::may_charge() {
  const auto size = static_cast<std::size_t>(end_ - begin_);
  if (charged_bytes_ > kReadBytesMin + kReadBytesPerByte * size) {
    fail("its values would take too much memory for so few bytes");
  }
  return ok();
}

const Buffer* Reader::get_far(std::uint32_t length) {
  if (length != Writer::kNextBuffer) return nullptr;
  if (buffers_read_ < buffers_.size()) return &buffers_[buffers_read_++];
  fail("a buffer is missing");
  return nullptr;
}

std::span<const std::byte> Reader::get_bytes() {
  const auto length = get<std::uint32_t>();
  if (const Buffer* const far = get_far(length)) return far->bytes();
  if (length > remaining()) {
    fail(kTooShort);
    return {};
  }
  const std::span<const char> near(next_, length);
  next_ += length;
  return std::as_bytes(near);
}

Buffer Reader::get_buffer() {
  const auto length = get<std::uint32_t>();
  if (const Buffer* const far = get_far(length)) return *far;
  if (length > remaining()) {
    fail(kTooShort);
    return {};
  }
  if (length != 0 && !charge(1, kBufferOverheadBytes)) return {};
  const std::span<const char> near(next_, length);
  next_ += length;
  return copy_of(std::as_bytes(near));
}

void Reader::skip_padding(std::size_t position_after) {
  while (ok() && position() < position_after) {
    if (get<std::uint8_t>() != 0) fail("the padding of a container is not zero");
  }
}

// ---- Signature ----------------------------------------------------------------------------------

void Signature::append_comma() {
  if (text_.empty() || std::string_view("({<").find(text_.back()) != std::string_view::npos) return;
  text_ += ',';
}

bool Signature::enter(const void* tag) {
  const auto found = std::find(open_.rbegin(), open_.rend(), tag);
  if (found != open_.rend()) {
    text_ += fmt::format("^{}", found - open_.rbegin() + 1);
    return false;
  }
  open_.push_back(tag);
  text_ += '{';
  return true;
}

void Signature::leave() {
  open_.pop_back();
  text_ += '}';
}

// FNV-1a, whose lower bits are then mixed with its upper ones.
std::uint64_t hash_of_signature(std::string_view signature) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : signature) {
    hash ^= static_cast<unsigned char>(letter);
    hash *= 0x100000001b3;
  }
  hash ^= hash >> 32U;
  hash *= 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29U);
}

std::string shorten_signature(std::string signature) {
  if (signature.size() <= kShortSignatureBytesMax) return signature;
  const std::string end = fmt::format("...#{:016x}", hash_of_signature(signature));
  signature.resize(kShortSignatureBytesMax - end.size());
  return signature + end;
}

}  // namespace muster::rpc
