// A ring carries bytes one way between two processes through memory that both have mapped. One
// thread writes, one reads; neither ever waits, and while both are busy neither calls the kernel.
//
// Large amounts are copied in pieces, and each is published as soon as it is there: both sides copy
// at the same time.
//
// A side keeps its own position to itself and only publishes it. What the other side publishes is
// checked before it is used: whoever scribbles into the memory makes the bytes garbage or the ring
// broken, and never makes us touch memory outside of it.
//
// Positions count all bytes since the beginning. A byte's place is its position modulo the ring's
// size. When the ring is empty the writer may jump to its start, so that a pair that never has much
// under way uses the same few pages again and again: they stay in the cache, and the rest of the
// ring costs no memory.
#pragma once

#include "muster/base/error.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <sys/uio.h>

namespace muster::rpc {

inline constexpr std::size_t kRingBytesMin = std::size_t{4} << 10U;
inline constexpr std::size_t kRingBytesMax = std::size_t{1} << 30U;
inline constexpr std::size_t kRingBytesDefault = std::size_t{1} << 20U;

// What both sides see of each other. Zeros are an empty ring. A pair of cache lines each, since
// processors fetch two at a time: what one side writes while both are busy does not take away what
// the other one writes.
struct RingControl {
  static constexpr std::size_t kLineBytes = 128;

  alignas(kLineBytes) std::atomic<std::uint64_t> written;  // the writer's position
  // Where it went on after its last jump. Valid once `written` has reached it.
  std::atomic<std::uint64_t> jumped_to;
  alignas(kLineBytes) std::atomic<std::uint64_t> read;           // the reader's position
  alignas(kLineBytes) std::atomic<std::uint32_t> reader_sleeps;  // and is to be woken
  alignas(kLineBytes) std::atomic<std::uint32_t> writer_sleeps;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(RingControl) == 4 * RingControl::kLineBytes);

// Where a ring lies. Its size is a power of two between kRingBytesMin and kRingBytesMax.
struct RingMemory {
  RingControl& control;
  std::span<std::byte> bytes;
};

// Sleeping, on both sides: say so with `ask`, which looks once more, and wait for the other side to
// call its `wake` function. (First the flag, then the look, and on the other side first the
// position, then the flag, all sequentially consistent: one of the two sees the other.)

// Owned by the writing process, used by one thread at a time.
class RingWriter {
 public:
  // `wake_reader` tells the other process that there are bytes. Requires: the memory outlives it.
  RingWriter(RingMemory memory, std::function<void()> wake_reader);

  // Takes as many of the bytes as there is room for; 0 when there is none. Unavailable once the
  // ring is broken.
  Result<std::size_t> write(std::span<const iovec> pieces);
  // False if there is room already. A writer is woken when half of the ring is free, and not for
  // every few bytes.
  bool ask();

 private:
  std::size_t room() const { return memory_.bytes.size() - (written_ - reader_at_); }
  // Copies as much of them as there is room for.
  std::size_t copy_in(std::span<const std::byte> bytes);
  void look_at_reader();
  void jump_if_empty();
  void publish();

  const RingMemory memory_;
  const std::function<void()> wake_reader_;
  std::uint64_t written_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t jumped_to_ = 0;
  std::uint64_t reader_at_ = 0;  // as last seen
  std::uint64_t next_jump_at_;   // where it pays to look whether the ring is empty
  bool broken_ = false;
};

// Owned by the reading process, used by one thread at a time.
class RingReader {
 public:
  // `wake_writer` tells the other process that there is room. Requires: the memory outlives it.
  RingReader(RingMemory memory, std::function<void()> wake_writer);

  // Reads what is there; 0 when nothing is. Unavailable once the ring is broken.
  Result<std::size_t> read(std::span<std::byte> into);
  // False if there are bytes already.
  bool ask();
  // Nobody sleeps any more, and need not be woken.
  void forget() { memory_.control.reader_sleeps.store(0, std::memory_order_relaxed); }

 private:
  std::size_t available() const { return writer_at_ - read_; }
  void copy_out(std::span<std::byte> into);
  void look_at_writer();
  void publish();

  const RingMemory memory_;
  const std::function<void()> wake_writer_;
  std::uint64_t read_ = 0;
  std::uint64_t writer_at_ = 0;  // as last seen
  bool broken_ = false;
};

}  // namespace muster::rpc
