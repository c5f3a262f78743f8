// RingStream: the stream between two processes of one machine, through memory that both have mapped
// and a socket on which they met.
//
// The bytes go through two rings, one each way. The socket wakes: a side that is going to sleep
// says so in the memory, and gets a byte through the socket when there is something for it; while
// both are busy nobody calls the kernel. And it tells the end: the kernel closes it with its
// process, so that a peer that is killed is noticed at once. A socket, and not a pair of eventfds
// in an epoll of its own, since it is one descriptor instead of four, costs half a microsecond more
// in a wake-up of fifty, and cannot be made to block by the other side.
//
// Memory that is not used is not there: a new stream costs its socket and a few hundred bytes.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/rpc/ring.h"
#include "muster/rpc/stream.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace muster::rpc {

struct RingStreamOptions {
  // One side is the first, the other one is not: it decides who writes to which ring.
  bool is_first = false;
  std::size_t ring_bytes = kRingBytesDefault;
};

// Memory for the two rings of a stream, whose size nobody can change. Unavailable if the system
// does not allow it.
Result<Fd> make_ring_memory(std::size_t ring_bytes);

class RingStream final : public Stream {
 public:
  // `socket` is a connected AF_UNIX stream socket. `memory` may come from a stranger: it is checked
  // before it is mapped, and may be closed afterwards. Invalid if it is not what it must be,
  // Unavailable if it cannot be mapped.
  static Result<std::unique_ptr<RingStream>> create(Fd socket, const Fd& memory,
                                                    RingStreamOptions options);
  ~RingStream() override;

  Result<std::size_t> write(std::span<const iovec> pieces) override;
  // What the other side wrote before its end is read before the end is.
  Result<std::size_t> read(std::span<std::byte> into) override;

  int fd() const override { return socket_.get(); }
  std::uint32_t room_events() const override { return EPOLLIN; }
  bool ask_for_bytes() override;
  bool ask_for_room() override;
  void forget_request() override { reader_.forget(); }
  // Also where the end of the other side is noticed.
  void woken() override;

  bool has_ended() const override { return ended_.load(std::memory_order_acquire); }
  void close() override;
  std::string_view kind() const override { return "shared memory"; }

 private:
  // Owns the mapping.
  RingStream(Fd socket, std::span<std::byte> mapping, RingStreamOptions options);
  void wake_peer();

  const Fd socket_;
  const std::span<std::byte> mapping_;
  std::atomic<bool> ended_ = false;
  RingWriter writer_;
  RingReader reader_;
};

}  // namespace muster::rpc
