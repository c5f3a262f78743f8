// Transport: how bytes travel. `net::TcpTransport` is the real one, `sim::Network` the simulated
// one; everything above is written against these three interfaces and cannot tell which it runs on.
//
// Streams report readiness instead of taking buffers, so that an idle connection needs no memory
// for reading and a large payload can be read straight into its final place.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/task.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::net {

// Where to connect or listen. The host is a name or a literal address without brackets; port 0 lets
// the system choose.
struct Endpoint {
  std::string host;
  int port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// "host:port", with brackets around IPv6 literals.
std::string describe(const Endpoint& endpoint);

// "host", "host:port", "[v6]:port", ":port" (any host); `default_port` where none is given.
Result<Endpoint> parse_endpoint(std::string_view text, int default_port);

// What one non-blocking read or write came to.
struct Transfer {
  enum class Kind {
    Moved,       // `bytes` > 0 bytes were read or written
    WouldBlock,  // nothing now; wait for on_readable or on_writable
    End,         // reading: the other side has finished sending
    Failed,      // the connection is dead; `error_number` says why
  };
  Kind kind = Kind::WouldBlock;
  std::size_t bytes = 0;
  int error_number = 0;
};

// Told when a stream can make progress. Calls come from the loop, never from inside a call to the
// stream.
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  virtual void on_readable() = 0;
  virtual void on_writable() = 0;
};

// One connection. Owned by whoever talks over it; lives on the transport's loop. Destroying it
// closes it.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  virtual Transfer read(std::span<char> into) = 0;
  // Writes as much of `pieces`, in order, as the stream takes.
  virtual Transfer write(std::span<const std::string_view> pieces) = 0;

  // Who is told. Events repeat as long as the condition holds and is wanted. Nothing is wanted at
  // first.
  virtual void set_events(StreamEvents* events) = 0;
  virtual void want(bool readable, bool writable) = 0;

  // From now on the connection breaks when the machine on the other side has not confirmed for
  // `patience` what was sent. (What is confirmed was not necessarily read.) Streams that cannot
  // tell leave it at their own patience.
  virtual void set_patience(Duration patience) { (void)patience; }
  // Tells the other side that nothing more will be sent; reading goes on.
  virtual void shutdown_write() = 0;
  // The other side's address, for people.
  virtual const std::string& peer() const = 0;
};

// Accepts connections until it is destroyed. Owned by the server; lives on the transport's loop.
class Listener {
 public:
  Listener() = default;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  virtual ~Listener() = default;

  // The port that was bound.
  virtual int port() const = 0;
  // Paused, new connections wait in the system's queue.
  virtual void set_accepting(bool accepting) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Tries every address of the endpoint in turn. Unavailable if none answers; no deadline of its
  // own, since destroying the task cancels it.
  virtual Task<Result<std::unique_ptr<Stream>>> connect(Endpoint endpoint) = 0;

  // `accepted` is called from the loop for every connection. An empty host means every address,
  // IPv6 and IPv4 at once. Port 0: all addresses get the same port, chosen by the system.
  virtual Result<std::unique_ptr<Listener>> listen(
      const Endpoint& endpoint, std::function<void(std::unique_ptr<Stream>)> accepted) = 0;
};

}  // namespace muster::net
