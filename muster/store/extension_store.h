// ExtensionStore: the TcpStore for Muster's own servers.
#pragma once

#include "muster/store/handshake.h"
#include "muster/store/tcp_store.h"

#include <memory>

namespace muster::store {

// Takes over a connection that has been upgraded.
std::unique_ptr<TcpStore> make_extension_store(ClientContext context,
                                               std::unique_ptr<Channel> channel);

}  // namespace muster::store
