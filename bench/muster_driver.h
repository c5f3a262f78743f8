// MusterDriver: load through Muster's real client, store::TcpStore, N of them on one loop.
//
// Requests in flight on one connection are as many coroutines, each of which awaits its reply
// before it goes on: the way a program uses the client.
#pragma once

#include "bench/load.h"
#include "muster/base/error.h"

#include <cstddef>

namespace muster::bench {

class MusterDriver final : public Driver {
 public:
  Result<Measurement> measure(const Workload& workload) override;
};

// What client and server exchange for one operation, counted on a live connection, so that the raw
// echo carries the same. For waking: the write that releases, and what one waiter then receives.
struct WireBytes {
  std::size_t request_bytes = 0;
  std::size_t reply_bytes = 0;
};
Result<WireBytes> count_wire_bytes(const Workload& workload);

}  // namespace muster::bench
