// TcpTransport: streams over TCP on an EpollLoop, IPv4 and IPv6.
#pragma once

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

// Lets this process open as many descriptors as the system allows it. Servers call it once.
void raise_descriptor_limit();

}  // namespace muster::net
