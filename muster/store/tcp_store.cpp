#include "muster/store/tcp_store.h"

#include "muster/store/extension_store.h"
#include "muster/store/handshake.h"
#include "muster/store/plain_store.h"

namespace muster::store {

Task<Result<std::unique_ptr<TcpStore>>> connect_tcp_store(Loop& loop, net::Transport& transport,
                                                          Random& random, TcpStoreOptions options) {
  ClientContext context{loop, transport, random, std::move(options)};
  const TimePoint deadline = after(loop.now(), context.options.connect_timeout);
  auto opened = co_await open_connection(context, deadline);
  if (!opened) co_return fail(opened.error());
  const bool count_as_worker = context.options.count_as_worker;
  std::unique_ptr<TcpStore> store;
  if (opened->dialect == wire::Dialect::Extension) {
    store = make_extension_store(std::move(context), std::move(opened->channel));
  } else {
    store = make_plain_store(std::move(context), std::move(*opened));
  }
  if (count_as_worker) {
    const auto counted = co_await store->count_as_worker();
    if (!counted) co_return fail(counted.error());
  }
  co_return store;
}

}  // namespace muster::store
