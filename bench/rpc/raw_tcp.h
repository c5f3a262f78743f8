// The least that a call over TCP can cost: plain sockets, both sides asleep in epoll_wait, 64 bytes
// there and back; and the same sockets carrying as much as they can.
#pragma once

#include "bench/rpc/program.h"

#include <memory>
#include <optional>

namespace muster::bench {

void serve_raw_tcp(const RpcOptions& options);
std::unique_ptr<Caller> connect_raw_tcp(const RpcOptions& options);

/// One-way: `bytes` of memory are sent again and again and received into as many.
RpcResult measure_raw_stream(const RpcOptions& options);

}  // namespace muster::bench
