// SocketDriver: the load generator for everything but Muster's own client. One thread, one epoll
// set, N connections.
#pragma once

#include "bench/load.h"
#include "bench/protocol.h"

#include <functional>
#include <memory>

namespace muster::bench {

class SocketDriver final : public Driver {
 public:
  // Makes the protocol for a workload: the echo's depends on its sizes.
  using MakeProtocol = std::function<std::unique_ptr<Protocol>(const Workload&)>;
  explicit SocketDriver(MakeProtocol make_protocol) : make_protocol_(std::move(make_protocol)) {}

  Result<Measurement> measure(const Workload& workload) override;

 private:
  MakeProtocol make_protocol_;
};

}  // namespace muster::bench
