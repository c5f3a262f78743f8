#include "muster/rpc/device_route.h"

#include "muster/rpc/texts.h"

#include <fmt/format.h>

#include <utility>

namespace muster::rpc {
namespace {

Result<Buffer> no_support(const Device& device, std::string_view what) {
  return fail(ErrorKind::Unimplemented,
              fmt::format("no device support registered: nobody can move a tensor {} {}", what,
                          describe(device)));
}

// What was moved must be all of it.
Result<Buffer> of_size(Result<Buffer> moved, std::size_t size, const Device& device) {
  if (!moved || moved->size() == size) return moved;
  return fail(ErrorKind::Invalid, fmt::format("the device support made {} bytes of {} for {}",
                                              moved->size(), size, describe(device)));
}

}  // namespace

Result<Device> DeviceRoute::target_of(const Device& device, std::string_view what) const {
  const Device from = device.is_host() ? Device{} : device;
  if (map) {
    const auto found = map->find(from);
    if (found != map->end()) return found->second;
  }
  if (from.is_host()) return from;
  return fail(ErrorKind::Invalid,
              unmapped_device_text(direction == Direction::Request, what, peer));
}

Result<Buffer> move_to_device(DeviceSupport* support, const Device& device, Buffer bytes) {
  if (bytes.empty()) return bytes;
  if (support == nullptr) return no_support(device, "to");
  return of_size(support->to_device(device, bytes.bytes()), bytes.size(), device);
}

Result<Buffer> move_to_host(DeviceSupport* support, const Device& device, Buffer memory) {
  if (memory.empty()) return memory;
  if (support == nullptr) return no_support(device, "from");
  return of_size(support->to_host(device, memory.bytes()), memory.size(), device);
}

// ---- DeviceDirectory

void DeviceDirectory::update(const DeviceRows& rows) {
  auto table = std::make_shared<const DeviceTable>(rows, self_);
  const bool has_maps = table->has_maps();
  {
    const std::lock_guard lock(mutex_);
    table_ = std::move(table);
  }
  has_maps_ = has_maps;
}

std::shared_ptr<const DeviceTable> DeviceDirectory::table() const {
  const std::lock_guard lock(mutex_);
  return table_;
}

DeviceRoute DeviceDirectory::route(DeviceRoute::Direction direction, std::string_view peer,
                                   Find find) const {
  DeviceRoute route{.direction = direction, .peer = peer, .support = support_.get()};
  if (!has_maps_) return route;
  const std::shared_ptr<const DeviceTable> now = table();
  // The map is kept by the table that it belongs to.
  if (const DeviceMap* const map = ((*now).*find)(peer)) route.map = {now, map};
  return route;
}

DeviceRoute DeviceDirectory::request_to(std::string_view peer) const {
  return route(DeviceRoute::Direction::Request, peer, &DeviceTable::request_map);
}

DeviceRoute DeviceDirectory::response_to(std::string_view peer) const {
  return route(DeviceRoute::Direction::Response, peer, &DeviceTable::response_map);
}

std::vector<Device> DeviceDirectory::devices() const { return table()->devices(); }

}  // namespace muster::rpc
