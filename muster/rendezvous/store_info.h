// How the members of a round agree on where their workers find the store they begin with.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/rendezvous/handler.h"
#include "muster/store/store.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace muster::rendezvous {

// The keys, in the round's store.
inline constexpr std::string_view kMasterAddrKey = "MASTER_ADDR";
inline constexpr std::string_view kMasterPortKey = "MASTER_PORT";

// What rank 0 publishes; nobody else looks at it.
struct StoreInfoOffer {
  std::string local_addr = {};  // if empty, `host_name`
  std::string host_name = {};   // this machine's fully qualified name
  int server_port = 0;          // of a server that runs already; if 0, `free_port`
  // A port on which nothing listens now. Someone else may take it before the worker that will host
  // the store does: that is why hosting it here is better.
  std::function<Result<int>()> free_port = {};
};

// Rank 0 writes its address and port; everybody, rank 0 too, waits until both are there and returns
// them. `store` is that of the round, so that rounds do not meet. Timeout at the deadline, Corrupt
// if the port is none. Requires: `store` outlives the task.
Task<Result<StoreInfo>> build_store_info(std::int64_t rank, store::Store& store,
                                         StoreInfoOffer offer, TimePoint deadline);

}  // namespace muster::rendezvous
