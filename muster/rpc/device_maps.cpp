#include "muster/rpc/device_maps.h"

#include "muster/rpc/texts.h"
#include "muster/rpc/worker_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace muster::rpc {
namespace {

tl::unexpected<Error> invalid(std::string text) {
  return fail(ErrorKind::Invalid, std::move(text));
}

// All memory that the CPU reads is one device here: the maps do not tell pinned from plain.
Device as_mapped(Device device) { return device.is_host() ? Device{} : device; }

template <typename Devices>
std::string list_of(const Devices& devices) {
  std::vector<std::string> names;
  for (const Device& device : devices) names.push_back(describe(device));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string list_of(const DeviceMap& map) {
  std::vector<std::string> entries;
  for (const auto& [from, to] : map) {
    entries.push_back(fmt::format("{} to {}", describe(from), describe(to)));
  }
  return fmt::format("{}", fmt::join(entries, ", "));
}

bool has_duplicates(const std::vector<Device>& devices) {
  return std::set<Device>(devices.begin(), devices.end()).size() != devices.size();
}

std::vector<Device> targets_of(const DeviceMap& map) {
  std::vector<Device> targets;
  for (const auto& [from, to] : map) targets.push_back(to);
  return targets;
}
std::vector<Device> sources_of(const DeviceMap& map) {
  std::vector<Device> sources;
  for (const auto& [from, to] : map) sources.push_back(from);
  return sources;
}

Result<> check_indices(const std::vector<Device>& devices) {
  for (const Device& device : devices) {
    if (device.index < 0) {
      return invalid(fmt::format("Device index must not be negative, and {} is", describe(device)));
    }
  }
  return {};
}

// The accelerators of a worker that others must keep to.
struct Have {
  const DeviceOptions& options;

  bool exist(const std::vector<Device>& devices) const {
    return std::all_of(devices.begin(), devices.end(), [this](const Device& device) {
      return device.is_host() || device.index < options.device_count();
    });
  }
  bool are_given(const std::vector<Device>& devices) const {
    const auto& given = options.devices();
    return std::all_of(devices.begin(), devices.end(), [&given](const Device& device) {
      return device.is_host() || std::find(given.begin(), given.end(), device) != given.end();
    });
  }
};

// The devices at one end of a map, which belong to `have`. `end` is "source" or "target".
Result<> check_end(const std::string& head, std::string_view end, const Have& have,
                   const std::vector<Device>& devices, std::string_view tail) {
  if (!have.options.devices().empty()) {
    if (have.are_given(devices)) return {};
    return invalid(
        fmt::format("{} has unexpected {} devices in its device map for {}; devices "
                    "given: {}",
                    head, end, tail, list_of(have.options.devices())));
  }
  if (have.exist(devices)) return {};
  return invalid(
      fmt::format("{} has {} devices with invalid indices in its device map for {}; "
                  "there are {} devices",
                  head, end, tail, have.options.device_count()));
}

// What each worker says, by name; many may have maps for many.
using Index = std::map<std::string_view, const DeviceOptions*>;

Index index_of(const DeviceRows& rows) {
  Index index;
  for (const DeviceRow& row : rows) index.emplace(row.name, row.options);
  return index;
}

const DeviceOptions* find(const Index& index, std::string_view name) {
  const auto found = index.find(name);
  return found == index.end() ? nullptr : found->second;
}

Result<> check_row(const DeviceRow& row) {
  const auto& devices = row.options->devices();
  if (has_duplicates(devices)) {
    return invalid(fmt::format("Node {} has duplicated devices: {}", row.name, list_of(devices)));
  }
  if (!Have{*row.options}.exist(devices)) {
    return invalid(fmt::format("Node {} has devices with invalid indices: {}; there are {} devices",
                               row.name, list_of(devices), row.options->device_count()));
  }
  return {};
}

// The map of `row` for `to`; `target` is what that worker says, if it is there.
Result<> check_map(const DeviceRow& row, const std::string& to, const DeviceMap& map,
                   const DeviceOptions* target) {
  const std::string head = fmt::format("Node {}", row.name);
  const std::string tail = fmt::format("{} ({})", to, list_of(map));
  const std::vector<Device> targets = targets_of(map);
  if (has_duplicates(targets)) {
    return invalid(
        fmt::format("{} has duplicated target devices in its device map for {}", head, tail));
  }
  if (auto fit = check_end(head, "source", Have{*row.options}, sources_of(map), tail); !fit) {
    return fit;
  }
  if (target == nullptr) return {};
  return check_end(head, "target", Have{*target}, targets, tail);
}

DeviceMap inverted(const DeviceMap& map) {
  DeviceMap back;
  for (const auto& [from, to] : map) back.emplace(to, from);
  return back;
}

}  // namespace

Result<> DeviceOptions::set_device_map(std::string to, const DeviceMap& map) {
  if (has_duplicates(targets_of(map))) {
    return invalid(fmt::format("`device_map` only supports 1-to-1 mapping, and not that for {}: {}",
                               to, list_of(map)));
  }
  return add_device_map(std::move(to), map);
}

Result<> DeviceOptions::add_device_map(std::string to, const DeviceMap& map) {
  if (!is_worker_name(to)) return invalid(bad_worker_name_text(to));
  if (auto fit = check_indices(sources_of(map)); !fit) return fit;
  if (auto fit = check_indices(targets_of(map)); !fit) return fit;
  const auto found = maps_.find(to);
  DeviceMap merged = found == maps_.end() ? DeviceMap() : found->second;
  for (const auto& [given_from, given_target] : map) {
    const Device from = as_mapped(given_from);
    const Device target = as_mapped(given_target);
    const auto [entry, is_new] = merged.emplace(from, target);
    if (is_new || entry->second == target) continue;
    return invalid(
        fmt::format("`set_device_map` only supports 1-to-1 mapping: {} goes to {} of {} "
                    "already, and not to {}",
                    describe(from), describe(entry->second), to, describe(target)));
  }
  if (merged.size() > kDevicesMax || (found == maps_.end() && maps_.size() == kDeviceMapsMax)) {
    return invalid(fmt::format("a worker has at most {} device maps of {} devices each",
                               kDeviceMapsMax, kDevicesMax));
  }
  maps_.insert_or_assign(std::move(to), std::move(merged));
  return {};
}

Result<> DeviceOptions::set_devices(std::vector<Device> devices) {
  if (std::any_of(devices.begin(), devices.end(),
                  [](const Device& one) { return one.is_host(); })) {
    return invalid(
        fmt::format("`set_devices` expect a list of CUDA devices or other accelerators, "
                    "and not {}",
                    list_of(devices)));
  }
  if (auto fit = check_indices(devices); !fit) return fit;
  if (devices.size() > kDevicesMax) {
    return invalid(fmt::format("a worker has at most {} devices", kDevicesMax));
  }
  devices_ = std::move(devices);
  return {};
}

Result<> DeviceOptions::set_device_count(std::int32_t count) {
  if (count < 0) return invalid(fmt::format("there cannot be {} devices", count));
  device_count_ = count;
  return {};
}

Result<> check_devices(const DeviceRows& rows, Attendance attendance) {
  for (const DeviceRow& row : rows) {
    if (auto fit = check_row(row); !fit) return fit;
  }
  const Index index = index_of(rows);
  for (const DeviceRow& row : rows) {
    for (const auto& [to, map] : row.options->maps()) {
      if (attendance == Attendance::Complete && find(index, to) == nullptr) {
        return invalid(
            fmt::format("Node {} has invalid target node names in its device maps: there is no {}",
                        row.name, to));
      }
    }
    for (const auto& [to, map] : row.options->maps()) {
      if (auto fit = check_map(row, to, map, find(index, to)); !fit) return fit;
    }
  }
  return {};
}

std::vector<Device> devices_of(const DeviceRows& rows, std::string_view name) {
  const DeviceOptions* const own = find(index_of(rows), name);
  if (own == nullptr) return {};
  if (!own->devices().empty()) return own->devices();
  std::set<Device> found;
  for (const auto& [to, map] : own->maps()) {
    for (const auto& [from, target] : map) found.insert(from);
  }
  for (const DeviceRow& row : rows) {
    const auto map = row.options->maps().find(name);
    if (map == row.options->maps().end()) continue;
    for (const auto& [from, target] : map->second) found.insert(target);
  }
  std::vector<Device> devices(found.begin(), found.end());
  devices.erase(std::remove_if(devices.begin(), devices.end(),
                               [](const Device& device) { return device.is_host(); }),
                devices.end());
  std::stable_sort(devices.begin(), devices.end(), [](const Device& left, const Device& right) {
    return left.index < right.index;
  });
  return devices;
}

// ---- DeviceTable

DeviceTable::DeviceTable(const DeviceRows& rows, std::string_view self)
    : devices_(devices_of(rows, self)) {
  for (const DeviceRow& row : rows) {
    if (row.name == self) requests_ = row.options->maps();
    const auto map = row.options->maps().find(self);
    if (map == row.options->maps().end()) continue;
    responses_.emplace(row.name, inverted(map->second));
  }
}

const DeviceMap* DeviceTable::request_map(std::string_view peer) const {
  const auto found = requests_.find(peer);
  return found == requests_.end() ? nullptr : &found->second;
}

const DeviceMap* DeviceTable::response_map(std::string_view peer) const {
  const auto found = responses_.find(peer);
  return found == responses_.end() ? nullptr : &found->second;
}

}  // namespace muster::rpc
