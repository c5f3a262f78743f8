// A worker that finds its peers through the store: each process says where it can be reached, waits
// for the others, and prints the list. Start a store, then as many of these as you like:
//
//   muster store serve --port 29500 &
//   for rank in 0 1 2; do build/bin/store_client localhost:29500 $rank 3 & done; wait

#include "muster/base/random.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/store/tcp_store.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>

namespace {

using namespace std::chrono_literals;

// Everything that waits is a coroutine on the loop. An error is a value; it says what happened and
// where.
muster::Task<muster::Result<>> meet(muster::Loop& loop, muster::store::Store& store, int rank,
                                    int worker_count) {
  const muster::TimePoint deadline = loop.now() + 30s;
  auto stored =
      co_await store.set(fmt::format("address/{}", rank), fmt::format("10.0.0.{}:4400", rank + 1));
  if (!stored) co_return stored;

  std::vector<std::string> keys;
  for (int peer = 0; peer < worker_count; ++peer) keys.push_back(fmt::format("address/{}", peer));
  const auto addresses = co_await store.multi_get(keys, deadline);  // waits until all have arrived
  if (!addresses) co_return muster::fail(addresses.error());
  for (int peer = 0; peer < worker_count; ++peer) {
    fmt::print("rank {} sees rank {} at {}\n", rank, peer,
               (*addresses)[static_cast<std::size_t>(peer)]);
  }
  co_return co_await store.barrier("everyone has the list", worker_count, deadline);
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) {
    fmt::print(stderr, "usage: store_client HOST:PORT RANK WORKERS\n");
    return 2;
  }
  const auto endpoint = muster::net::parse_endpoint(words[1], 29500);
  if (!endpoint) {
    fmt::print(stderr, "store_client: {}\n", endpoint.error().message);
    return 2;
  }
  muster::net::EpollLoop loop;
  muster::net::TcpTransport transport(loop);
  muster::Random random = muster::Random::from_system();
  muster::store::TcpStoreOptions options;
  options.endpoint = *endpoint;
  options.connect_timeout = 10s;
  const auto store =
      loop.block_on(muster::store::connect_tcp_store(loop, transport, random, options));
  if (!store) {
    fmt::print(stderr, "store_client: {}\n", store.error().message);
    return 1;
  }
  const auto met = loop.block_on(meet(loop, **store, std::atoi(words[2]), std::atoi(words[3])));
  if (!met) {
    fmt::print(stderr, "store_client: {}\n", met.error().message);
    return 1;
  }
  return 0;
}
