// HostedStore: a store server in this process, with rendezvous as a service of it.
//
// Owned by whoever wants it to serve; lives on one loop.
#pragma once

#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/net/transport.h"
#include "muster/rendezvous/host.h"
#include "muster/store/server.h"

#include <memory>
#include <string_view>

namespace muster::backends {

// The line of the server's description that tells it from one that is served by itself.
inline constexpr std::string_view kHostedBy = "hosted_by";

class HostedStore {
 public:
  // Listens on the endpoint; an empty host is every address. Requires: the references outlive it.
  static Result<std::unique_ptr<HostedStore>> start(Loop& loop, Random& random,
                                                    net::Transport& transport,
                                                    const net::Endpoint& endpoint);
  int port() const { return port_; }
  store::Server& server() { return server_; }

 private:
  HostedStore(Loop& loop, Random& random);

  rendezvous::Host rendezvous_;  // outlives the server
  store::Server server_;
  int port_ = 0;
};

}  // namespace muster::backends
