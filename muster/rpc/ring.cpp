#include "muster/rpc/ring.h"

#include "muster/base/assert.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace muster::rpc {
namespace {

// Large enough that publishing costs nothing beside the copying, small enough that the other side
// begins soon and finds the bytes in the cache.
constexpr std::size_t kPieceBytes = std::size_t{64} << 10U;
// What a pair touches that never has more under way.
constexpr std::size_t kJumpAfterBytes = std::size_t{16} << 10U;

void check(const RingMemory& memory) {
  const std::size_t size = memory.bytes.size();
  MUSTER_ASSERT(size >= kRingBytesMin && size <= kRingBytesMax && std::has_single_bit(size));
}

tl::unexpected<Error> fail_as_broken() {
  return fail(ErrorKind::Unavailable, "the memory shared with it is damaged");
}

}  // namespace

RingWriter::RingWriter(RingMemory memory, std::function<void()> wake_reader)
    : memory_(memory), wake_reader_(std::move(wake_reader)), next_jump_at_(kJumpAfterBytes) {
  check(memory_);
}

Result<std::size_t> RingWriter::write(std::span<const iovec> pieces) {
  if (broken_) return fail_as_broken();
  std::size_t taken = 0;
  for (const iovec& piece : pieces) {
    std::span<const std::byte> left(static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
    while (!left.empty()) {
      const std::size_t copied = copy_in(left);
      if (broken_) return fail_as_broken();
      if (copied == 0) {
        publish();
        return taken;
      }
      taken += copied;
      left = left.subspan(copied);
      // Small pieces are published together.
      if (written_ - published_ >= kPieceBytes) publish();
    }
  }
  publish();
  return taken;
}

std::size_t RingWriter::copy_in(std::span<const std::byte> bytes) {
  if (written_ >= next_jump_at_) jump_if_empty();
  if (room() < std::min(bytes.size(), kPieceBytes)) look_at_reader();
  if (broken_) return 0;
  const std::size_t size = std::min({bytes.size(), room(), kPieceBytes});
  const std::size_t place = written_ & (memory_.bytes.size() - 1);
  const std::size_t before_end = std::min(size, memory_.bytes.size() - place);
  std::memcpy(memory_.bytes.data() + place, bytes.data(), before_end);
  if (before_end < size)
    std::memcpy(memory_.bytes.data(), bytes.data() + before_end, size - before_end);
  written_ += size;
  return size;
}

void RingWriter::look_at_reader() {
  const std::uint64_t read = memory_.control.read.load(std::memory_order_seq_cst);
  // One that has not followed the last jump yet has nothing to read before it.
  const std::uint64_t at = std::max(read, jumped_to_);
  if (at < reader_at_ || at > written_) broken_ = true;
  if (!broken_) reader_at_ = at;
}

void RingWriter::jump_if_empty() {
  next_jump_at_ = written_ + kJumpAfterBytes;
  if ((written_ & (memory_.bytes.size() - 1)) < kJumpAfterBytes) return;
  look_at_reader();
  if (broken_ || reader_at_ != written_) return;
  written_ = (written_ | (memory_.bytes.size() - 1)) + 1;
  reader_at_ = written_;
  jumped_to_ = written_;
  next_jump_at_ = written_ + kJumpAfterBytes;
  // Published with the bytes that come here.
  memory_.control.jumped_to.store(jumped_to_, std::memory_order_relaxed);
}

void RingWriter::publish() {
  if (written_ == published_) return;
  published_ = written_;
  memory_.control.written.store(written_, std::memory_order_seq_cst);
  if (memory_.control.reader_sleeps.load(std::memory_order_seq_cst) == 0) return;
  if (memory_.control.reader_sleeps.exchange(0, std::memory_order_seq_cst) != 0) wake_reader_();
}

bool RingWriter::ask() {
  memory_.control.writer_sleeps.store(1, std::memory_order_seq_cst);
  look_at_reader();
  if (!broken_ && room() < memory_.bytes.size() / 2) return true;
  memory_.control.writer_sleeps.store(0, std::memory_order_relaxed);
  return false;
}

RingReader::RingReader(RingMemory memory, std::function<void()> wake_writer)
    : memory_(memory), wake_writer_(std::move(wake_writer)) {
  check(memory_);
}

Result<std::size_t> RingReader::read(std::span<std::byte> into) {
  std::size_t got = 0;
  while (got < into.size()) {
    const std::size_t wanted = std::min(into.size() - got, kPieceBytes);
    if (available() < wanted) look_at_writer();
    if (broken_) return fail_as_broken();
    const std::size_t size = std::min(wanted, available());
    if (size == 0) break;
    copy_out(into.subspan(got, size));
    got += size;
    publish();
  }
  return got;
}

void RingReader::copy_out(std::span<std::byte> into) {
  const std::size_t place = read_ & (memory_.bytes.size() - 1);
  const std::size_t before_end = std::min(into.size(), memory_.bytes.size() - place);
  std::memcpy(into.data(), memory_.bytes.data() + place, before_end);
  if (before_end < into.size())
    std::memcpy(into.data() + before_end, memory_.bytes.data(), into.size() - before_end);
  read_ += into.size();
}

void RingReader::look_at_writer() {
  const std::uint64_t written = memory_.control.written.load(std::memory_order_seq_cst);
  if (written == writer_at_) return;
  const std::uint64_t jumped_to = memory_.control.jumped_to.load(std::memory_order_relaxed);
  const std::uint64_t from = jumped_to > read_ && jumped_to <= written ? jumped_to : read_;
  if (written < writer_at_ || written - from > memory_.bytes.size()) broken_ = true;
  if (broken_) return;
  read_ = from;
  writer_at_ = written;
}

void RingReader::publish() {
  memory_.control.read.store(read_, std::memory_order_seq_cst);
  if (memory_.control.writer_sleeps.load(std::memory_order_seq_cst) == 0) return;
  // It sleeps, so this is where it will stay.
  look_at_writer();
  if (broken_ || available() > memory_.bytes.size() / 2) return;
  if (memory_.control.writer_sleeps.exchange(0, std::memory_order_seq_cst) != 0) wake_writer_();
}

bool RingReader::ask() {
  memory_.control.reader_sleeps.store(1, std::memory_order_seq_cst);
  look_at_writer();
  if (!broken_ && available() == 0) return true;
  memory_.control.reader_sleeps.store(0, std::memory_order_relaxed);
  return false;
}

}  // namespace muster::rpc
