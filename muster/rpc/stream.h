// Stream: bytes both ways between two processes, without ever waiting. What a Link runs on.
//
// Implementations: SocketStream (TCP), RingStream (memory that two processes of a machine share).
// One thread reads at a time and one writes, possibly both at once; `close` from any thread.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <sys/epoll.h>
#include <sys/uio.h>

namespace muster::rpc {

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  // Takes as many of the bytes as there is room for; 0 when there is none. Unavailable once the
  // stream is broken.
  virtual Result<std::size_t> write(std::span<const iovec> pieces) = 0;
  // Reads what is there; 0 when nothing is. Closed at the end, Unavailable once it is broken.
  virtual Result<std::size_t> read(std::span<std::byte> into) = 0;

  // What to wait on with epoll, level-triggered. Readable when there is something to read, or
  // `room_events` when there is room again; either may also come for nothing.
  virtual int fd() const = 0;
  virtual std::uint32_t room_events() const = 0;
  // Before a sleep until there is something to read (or room): asks the other side for a signal.
  // False if there is something already.
  virtual bool ask_for_bytes() { return true; }
  virtual bool ask_for_room() { return true; }
  // Nobody sleeps for bytes any more: no signal is needed.
  virtual void forget_request() {}
  // `fd` was ready: takes the signal back.
  virtual void woken() {}

  // Whether the other side is known to have ended it; what came before may still be read. A socket
  // tells only who reads or writes.
  virtual bool has_ended() const { return false; }
  // Ends it for both sides; what is still inside may be lost.
  virtual void close() = 0;
  // "tcp", "shared memory", for people.
  virtual std::string_view kind() const = 0;
};

class SocketStream final : public Stream {
 public:
  // A connected stream socket; becomes non-blocking.
  explicit SocketStream(Fd socket);

  Result<std::size_t> write(std::span<const iovec> pieces) override;
  Result<std::size_t> read(std::span<std::byte> into) override;
  int fd() const override { return socket_.get(); }
  std::uint32_t room_events() const override { return EPOLLOUT; }
  void close() override;
  std::string_view kind() const override { return "tcp"; }

 private:
  const Fd socket_;
};

}  // namespace muster::rpc
