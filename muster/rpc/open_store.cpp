#include "muster/rpc/open_store.h"

#include "muster/base/random.h"
#include "muster/net/tcp.h"
#include "muster/store/file_store.h"
#include "muster/store/prefix_store.h"
#include "muster/store/tcp_store.h"

#include <utility>

namespace muster::rpc {
namespace {

struct OnServer {
  explicit OnServer(net::EpollLoop& loop) : transport(loop), random(Random::from_system()) {}
  net::TcpTransport transport;
  Random random;
  std::unique_ptr<store::TcpStore> server;
  std::unique_ptr<store::Store> view;
};

struct InFile {
  Random random = Random::from_system();
  std::unique_ptr<store::Store> file;
  std::unique_ptr<store::Store> view;
};

// The view of what is owned, which lives as long.
template <typename Owned>
std::shared_ptr<store::Store> view_of(std::shared_ptr<Owned> owned) {
  store::Store* const view = owned->view.get();
  return {std::move(owned), view};
}

}  // namespace

Task<Result<std::shared_ptr<store::Store>>> open_store(net::EpollLoop& loop, net::Endpoint endpoint,
                                                       std::string prefix, Duration patience) {
  auto owned = std::make_shared<OnServer>(loop);
  store::TcpStoreOptions options;
  options.endpoint = std::move(endpoint);
  options.connect_timeout = patience;
  auto connected =
      co_await store::connect_tcp_store(loop, owned->transport, owned->random, options);
  if (!connected) co_return fail(connected.error());
  owned->server = std::move(*connected);
  owned->view = store::make_prefix_store(std::move(prefix), *owned->server);
  co_return view_of(std::move(owned));
}

Task<Result<std::shared_ptr<store::Store>>> open_file_store(net::EpollLoop& loop, std::string path,
                                                            std::string prefix) {
  auto owned = std::make_shared<InFile>();
  store::FileStoreOptions options;
  options.path = std::move(path);
  auto opened = store::make_file_store(loop, owned->random, std::move(options));
  if (!opened) co_return fail(opened.error());
  owned->file = std::move(*opened);
  owned->view = store::make_prefix_store(std::move(prefix), *owned->file);
  co_return view_of(std::move(owned));
}

}  // namespace muster::rpc
