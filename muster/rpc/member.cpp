#include "muster/rpc/member.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

namespace muster::rpc {
namespace {

constexpr std::string_view kMagic = "MusterRM";
constexpr std::uint32_t kFormatVersion = 1;

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
}

std::optional<Member> get_member(wire::Reader& reader) {
  const auto incarnation = reader.integer<std::uint64_t>();
  const auto id = reader.integer<std::int64_t>();
  std::string name(reader.string(kWorkerNameBytesMax));
  std::string address(reader.string(kMemberAddressBytesMax));
  std::string local_address(reader.string(kMemberAddressBytesMax));
  if (reader.failed()) return std::nullopt;
  auto info = WorkerInfo::create_member(std::move(name), id);
  if (!info) return std::nullopt;
  Member member{std::move(*info), incarnation, std::move(address), std::move(local_address)};
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
