#include "muster/rpc/open_store.h"

#include "muster/base/random.h"
#include "muster/net/tcp.h"
#include "muster/store/prefix_store.h"
#include "muster/store/tcp_store.h"

#include <utility>

namespace muster::rpc {
namespace {

struct Owned {
  explicit Owned(net::EpollLoop& loop) : transport(loop), random(Random::from_system()) {}
  net::TcpTransport transport;
  Random random;
  std::unique_ptr<store::TcpStore> server;
  std::unique_ptr<store::Store> view;
};

}  // namespace

Task<Result<std::shared_ptr<store::Store>>> open_store(net::EpollLoop& loop, net::Endpoint endpoint,
                                                       std::string prefix, Duration patience) {
  auto owned = std::make_shared<Owned>(loop);
  store::TcpStoreOptions options;
  options.endpoint = std::move(endpoint);
  options.connect_timeout = patience;
  auto connected =
      co_await store::connect_tcp_store(loop, owned->transport, owned->random, options);
  if (!connected) co_return fail(connected.error());
  owned->server = std::move(*connected);
  owned->view = store::make_prefix_store(std::move(prefix), *owned->server);
  store::Store* const store = owned->view.get();
  std::shared_ptr<store::Store> shared(std::move(owned), store);
  co_return shared;
}

}  // namespace muster::rpc
