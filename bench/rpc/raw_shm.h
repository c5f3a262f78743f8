// The least that a call through shared memory can cost: 32 bytes there and back, with both sides
// asleep on a futex or both awake and looking; and what a copy of memory costs.
#pragma once

#include "bench/rpc/program.h"

#include <memory>

namespace muster::bench {

/// `transport` is futex or spin. Serves options.threads callers, each with a thread.
void serve_raw_shm(const RpcOptions& options);
std::unique_ptr<Caller> connect_raw_shm(const RpcOptions& options);

/// memcpy: from one buffer to another. memcpy-echo: there and back, and counted as an echo is.
RpcResult measure_memcpy(const RpcOptions& options);

}  // namespace muster::bench
