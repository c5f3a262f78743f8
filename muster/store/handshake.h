// How a client opens a connection to a server that it does not know: connect, probe, and upgrade if
// it can.
#pragma once

#include "muster/base/random.h"
#include "muster/store/channel.h"
#include "muster/store/tcp_store.h"
#include "muster/wire/store_protocol.h"

#include <memory>

namespace muster::store {

struct Opened {
  std::unique_ptr<Channel> channel;
  wire::Dialect dialect = wire::Dialect::Undecided;
};

// What a connection needs, shared by the parts of one TcpStore. The references outlive the store.
struct ClientContext {
  Loop& loop;
  net::Transport& transport;
  Random& random;
  TcpStoreOptions options;
};

// One attempt, until `deadline` at most.
Task<Result<Opened>> open_once(ClientContext& context, TimePoint deadline);

// Attempts with back-off until `deadline`; then Unavailable, with the last reason. An Invalid ends
// it at once.
Task<Result<Opened>> open_connection(ClientContext& context, TimePoint deadline);

}  // namespace muster::store
