// PlainStore: the TcpStore for servers hosted by PyTorch processes, in the dialect that the server
// speaks.
//
// Such a connection carries one request at a time, and a wait occupies it. So the store keeps a few
// connections: one is taken for each operation, so that a waiting get does not hold up a set. A
// write has no reply in this protocol; it is followed by a question that has, so that `set` is done
// when the server has it, whichever connection comes next.
#pragma once

#include "muster/store/handshake.h"
#include "muster/store/tcp_store.h"

#include <memory>

namespace muster::store {

// Takes over the first connection.
std::unique_ptr<TcpStore> make_plain_store(ClientContext context, Opened opened);

}  // namespace muster::store
