#include "muster/backends/hosted_store.h"

#include <fmt/format.h>

#include <unistd.h>
#include <utility>

namespace muster::backends {

HostedStore::HostedStore(Loop& loop, Random& random)
    : rendezvous_(loop, random), server_(loop, store::ServerOptions()) {
  server_.add_service(store::ServiceId::Rendezvous, rendezvous_);
  server_.hub().set_description({{"server", "muster"},
                                 {"version", MUSTER_VERSION},
                                 {"pid", fmt::to_string(::getpid())},
                                 {std::string(kHostedBy), "agent"}});
}

Result<std::unique_ptr<HostedStore>> HostedStore::start(Loop& loop, Random& random,
                                                        net::Transport& transport,
                                                        const net::Endpoint& endpoint) {
  std::unique_ptr<HostedStore> store(new HostedStore(loop, random));
  auto port = store->server_.listen(transport, endpoint, "");
  if (!port) return fail(std::move(port.error()));
  store->port_ = *port;
  return store;
}

}  // namespace muster::backends
