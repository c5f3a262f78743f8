// The store through which the workers of a group find each other: on a server, or in a file.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/transport.h"
#include "muster/store/store.h"

#include <chrono>
#include <memory>
#include <string>

namespace muster::rpc {

// A view of its own, under `prefix`, with everything that it needs. Gives up on a server that
// cannot be reached for `patience`. Requires: `loop` outlives what it answers with.
Task<Result<std::shared_ptr<store::Store>>> open_store(net::EpollLoop& loop, net::Endpoint endpoint,
                                                       std::string prefix, Duration patience);

// Likewise, in the file at `path`.
Task<Result<std::shared_ptr<store::Store>>> open_file_store(net::EpollLoop& loop, std::string path,
                                                            std::string prefix);

}  // namespace muster::rpc
