#include "muster/rendezvous/store_info.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

Result<int> port_in(std::string_view text) {
  int port = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < 0 || port > 65535) {
    return fail(ErrorKind::Corrupt, fmt::format("the round's store has no valid {}: {}",
                                                kMasterPortKey, log::quote(text)));
  }
  return port;
}

Result<int> offered_port(const StoreInfoOffer& offer) {
  if (offer.server_port != 0) return offer.server_port;
  if (!offer.free_port) return fail(ErrorKind::Invalid, "there is no port for the workers' store");
  return offer.free_port();
}

}  // namespace

Task<Result<StoreInfo>> build_store_info(std::int64_t rank, store::Store& store,
                                         StoreInfoOffer offer, TimePoint deadline) {
  if (rank == 0) {
    const auto port = offered_port(offer);
    if (!port) co_return fail(port.error());
    // One after the other, so that whoever sees the port sees the address, too.
    std::string key(kMasterAddrKey);
    std::string value = offer.local_addr.empty() ? offer.host_name : offer.local_addr;
    const auto addr_set = co_await store.set(std::move(key), std::move(value));
    if (!addr_set) co_return fail(addr_set.error());
    key = kMasterPortKey;
    value = std::to_string(*port);
    const auto port_set = co_await store.set(std::move(key), std::move(value));
    if (!port_set) co_return fail(port_set.error());
  }
  std::vector<std::string> keys;
  keys.emplace_back(kMasterAddrKey);
  keys.emplace_back(kMasterPortKey);
  auto values = co_await store.multi_get(std::move(keys), deadline);
  if (!values) co_return fail(values.error());
  const auto port = port_in(values->at(1));
  if (!port) co_return fail(port.error());
  StoreInfo info;
  info.master_addr = std::move(values->at(0));
  info.master_port = *port;
  co_return info;
}

}  // namespace muster::rendezvous
