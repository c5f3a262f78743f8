// TcpTransport: streams over TCP on an EpollLoop, IPv4 and IPv6.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/transport.h"

#include <functional>
#include <memory>

namespace muster::net {

// Owned by the program; lives on its loop. Requires: `loop` outlives it and every stream it made.
class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(EpollLoop& loop) : loop_(loop) {}

  // Names are looked up on a background thread, IPv6 addresses first as the system orders them.
  Task<Result<std::unique_ptr<Stream>>> connect(Endpoint endpoint) override;
  Result<std::unique_ptr<Listener>> listen(
      const Endpoint& endpoint, std::function<void(std::unique_ptr<Stream>)> accepted) override;

 private:
  EpollLoop& loop_;
};

// For those who read and write by themselves: sockets that are connected, non-blocking and send
// small messages at once. As `connect` and `listen` above in everything else; what `accepted` does
// may destroy the listener. Closed if the host answered, at every address, that nobody listens
// there.
Task<Result<Fd>> connect_socket(EpollLoop& loop, Endpoint endpoint);
Result<std::unique_ptr<Listener>> listen_for_sockets(EpollLoop& loop, const Endpoint& endpoint,
                                                     std::function<void(Fd socket)> accepted);

// Lets this process open as many descriptors as the system allows it. Servers call it once.
void raise_descriptor_limit();

}  // namespace muster::net
