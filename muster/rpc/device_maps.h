// Device maps: to which device of another worker a tensor goes, by the device on which it is here.
//
// A worker has one map for each destination that it sends tensors of accelerators to; what comes
// back goes the same way backwards. The CPU needs no entry: what is there arrives there, unless a
// map says otherwise. All maps of a group are checked together, by every worker, with the same
// outcome. The texts contain what torch.distributed.rpc says, for programs that look at them.
//
// Pure: values and functions of values.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/device.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {

// Devices of one worker, and entries of one map.
inline constexpr std::size_t kDevicesMax = 1024;
// Destinations that one worker has maps for.
inline constexpr std::size_t kDeviceMapsMax = 32768;

// Device here to device there.
using DeviceMap = std::map<Device, Device>;

// What one worker says about its accelerators. The same on the wire of `init` (member.h) and in its
// options.
class DeviceOptions {
 public:
  using Maps = std::map<std::string, DeviceMap, std::less<>>;

  // Adds `map` to the one for worker `to`. Invalid, and nothing is added: two devices to one, a
  // device that the map there sends elsewhere, an index below 0, a name that no worker can have.
  Result<> set_device_map(std::string to, const DeviceMap& map);
  // The same, but two devices may go to one, as after two calls of the above.
  Result<> add_device_map(std::string to, const DeviceMap& map);
  // All accelerators that tensors may be on. Not given, they are those that the maps name: see
  // devices_of. Invalid: one that is none.
  Result<> set_devices(std::vector<Device> devices);
  // How many accelerators there are here. Not given: as many as the DeviceSupport says, or none.
  Result<> set_device_count(std::int32_t count);

  const Maps& maps() const { return maps_; }
  const std::vector<Device>& devices() const { return devices_; }
  std::optional<std::int32_t> given_device_count() const { return device_count_; }
  std::int32_t device_count() const { return device_count_.value_or(0); }

  friend bool operator==(const DeviceOptions&, const DeviceOptions&) = default;

 private:
  Maps maps_;
  std::vector<Device> devices_;
  std::optional<std::int32_t> device_count_;
};

// One worker of a group. Requires: what it refers to is there while it is used.
struct DeviceRow {
  std::string_view name;
  const DeviceOptions* options = nullptr;
};
// In the order of the workers' ids.
using DeviceRows = std::vector<DeviceRow>;

// Workers that are named in a map must be there if all of the group are (static); otherwise they
// may come later.
enum class Attendance { Complete, Open };

// Whether all that the workers say fits together. Invalid, with the first thing that does not: the
// same for everybody who has the same rows.
Result<> check_devices(const DeviceRows& rows, Attendance attendance);

// The accelerators of that worker: those that it gave, else the sources of its own maps and the
// targets of the others' maps for it, by index. Requires: check_devices found nothing.
std::vector<Device> devices_of(const DeviceRows& rows, std::string_view name);

// The maps that one worker needs.
class DeviceTable {
 public:
  // Nothing is mapped.
  DeviceTable() = default;
  // As worker `self` sees it. Requires: check_devices found nothing.
  DeviceTable(const DeviceRows& rows, std::string_view self);

  // For what goes to `peer`: requests through the own map, responses back through that of `peer`.
  // Nothing if there is none.
  const DeviceMap* request_map(std::string_view peer) const;
  const DeviceMap* response_map(std::string_view peer) const;
  const std::vector<Device>& devices() const { return devices_; }
  bool has_maps() const { return !requests_.empty() || !responses_.empty(); }

 private:
  DeviceOptions::Maps requests_;
  DeviceOptions::Maps responses_;
  std::vector<Device> devices_;
};

}  // namespace muster::rpc
