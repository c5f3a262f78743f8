#include "muster/rpc/member.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

constexpr std::string_view kMagic = "MusterRM";
constexpr std::uint32_t kFormatVersion = 2;
constexpr std::int32_t kNoDeviceCount = -1;

// A signed number of 32 bits.
void put_small(std::string& out, std::int32_t number) {
  wire::put(out, static_cast<std::uint32_t>(number));
}
std::int32_t get_small(wire::Reader& reader) {
  return static_cast<std::int32_t>(reader.integer<std::uint32_t>());
}

void put_device(std::string& out, const Device& device) {
  put_small(out, static_cast<std::int32_t>(device.kind));
  put_small(out, device.index);
}

Device get_device(wire::Reader& reader) {
  const auto kind = static_cast<DeviceKind>(get_small(reader));
  return {kind, get_small(reader)};
}

void put_devices(std::string& out, const DeviceOptions& options) {
  put_small(out, options.given_device_count().value_or(kNoDeviceCount));
  wire::put(out, static_cast<std::uint32_t>(options.devices().size()));
  for (const Device& device : options.devices()) put_device(out, device);
  wire::put(out, static_cast<std::uint32_t>(options.maps().size()));
  for (const auto& [to, map] : options.maps()) {
    wire::put_string(out, to);
    wire::put(out, static_cast<std::uint32_t>(map.size()));
    for (const auto& [from, target] : map) {
      put_device(out, from);
      put_device(out, target);
    }
  }
}

// As its setters take it, which refuse what no worker can have said; what does not fit together is
// for check_devices.
bool get_map(wire::Reader& reader, DeviceOptions& options) {
  const std::string to(reader.string(kWorkerNameBytesMax));
  const std::size_t count = reader.integer<std::uint32_t>();
  if (reader.failed() || count > kDevicesMax || options.maps().contains(to)) return false;
  DeviceMap map;
  for (std::size_t index = 0; index < count && !reader.failed(); ++index) {
    const Device from = get_device(reader);
    map.emplace(from, get_device(reader));
  }
  if (reader.failed() || map.size() != count || !options.add_device_map(to, map)) return false;
  return options.maps().at(to).size() == count;
}

std::optional<DeviceOptions> get_devices(wire::Reader& reader) {
  DeviceOptions options;
  const std::int32_t device_count = get_small(reader);
  const std::size_t count = reader.integer<std::uint32_t>();
  if (reader.failed() || count > kDevicesMax) return std::nullopt;
  if (device_count != kNoDeviceCount && !options.set_device_count(device_count)) {
    return std::nullopt;
  }
  std::vector<Device> devices;
  for (std::size_t index = 0; index < count && !reader.failed(); ++index) {
    devices.push_back(get_device(reader));
  }
  const std::size_t map_count = reader.integer<std::uint32_t>();
  if (reader.failed() || !options.set_devices(std::move(devices))) return std::nullopt;
  if (map_count > kDeviceMapsMax) return std::nullopt;
  for (std::size_t index = 0; index < map_count; ++index) {
    if (!get_map(reader, options)) return std::nullopt;
  }
  return options;
}

}  // namespace

Result<> check_member(const Member& member) {
  if (member.info.id() < 0) {
    return fail(ErrorKind::Invalid,
                fmt::format("{} cannot join a group: its id is negative", member.info.describe()));
  }
  if (member.incarnation == 0) {
    return fail(ErrorKind::Invalid, fmt::format("{} cannot join a group without an incarnation",
                                                member.info.describe()));
  }
  if (member.address.empty() || member.address.size() > kMemberAddressBytesMax ||
      member.local_address.size() > kMemberAddressBytesMax) {
    return fail(ErrorKind::Invalid,
                fmt::format("{} cannot join a group: it has no address, or one of more than {} "
                            "bytes",
                            member.info.describe(), kMemberAddressBytesMax));
  }
  return {};
}

void put_member(std::string& out, const Member& member) {
  wire::put<std::uint64_t>(out, member.incarnation);
  wire::put<std::int64_t>(out, member.info.id());
  wire::put_string(out, member.info.name());
  wire::put_string(out, member.address);
  wire::put_string(out, member.local_address);
  put_devices(out, member.devices);
}

std::optional<Member> get_member(wire::Reader& reader) {
  const auto incarnation = reader.integer<std::uint64_t>();
  const auto id = reader.integer<std::int64_t>();
  std::string name(reader.string(kWorkerNameBytesMax));
  std::string address(reader.string(kMemberAddressBytesMax));
  std::string local_address(reader.string(kMemberAddressBytesMax));
  std::optional<DeviceOptions> devices = get_devices(reader);
  if (reader.failed() || !devices) return std::nullopt;
  auto info = WorkerInfo::create_member(std::move(name), id);
  if (!info) return std::nullopt;
  Member member{std::move(*info), incarnation, std::move(address), std::move(local_address),
                std::move(*devices)};
  if (!check_member(member)) return std::nullopt;
  return member;
}

std::string encode_member(const Member& member) {
  std::string out(kMagic);
  wire::put(out, kFormatVersion);
  put_member(out, member);
  return out;
}

Result<Member> decode_member(std::string_view key, std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) {
    return corrupt_value(key, "it is no record of an RPC worker");
  }
  wire::Reader reader(bytes.substr(kMagic.size()));
  const auto version = reader.integer<std::uint32_t>();
  if (reader.failed()) return corrupt_value(key, "it is cut short");
  if (version != kFormatVersion) {
    return corrupt_value(key, other_format_text(version, kFormatVersion));
  }
  std::optional<Member> member = get_member(reader);
  if (!member) return corrupt_value(key, "the record of an RPC worker in it is damaged");
  if (!reader.finished()) return corrupt_value(key, "it is longer than it should be");
  return std::move(*member);
}

DeviceRows device_rows(const std::vector<Member>& members) {
  DeviceRows rows;
  for (const Member& member : members) rows.push_back({member.info.name(), &member.devices});
  return rows;
}

tl::unexpected<Error> corrupt_value(std::string_view key, std::string_view what) {
  return fail(ErrorKind::Corrupt,
              fmt::format("the value of key {} cannot be read: {}; it was left as it is",
                          log::quote(key), what));
}

std::string other_format_text(std::uint32_t found, std::uint32_t known) {
  return fmt::format(
      "it has format {}, and this version of Muster knows only {}; run the same version "
      "everywhere",
      found, known);
}

}  // namespace muster::rpc
