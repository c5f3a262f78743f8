// A Member as bytes: how workers describe themselves in the store. Muster's own format, with a
// magic number and a version.
//
//   "MusterRM"  8 bytes
//   u32         format version, 2
//   member:     u64 incarnation, i64 id, then name, address and local address, each u32 length and
//               bytes; then its accelerators: i32 how many (-1: it does not say), u32 count and
//               that many devices, u32 count and that many maps, each the name of the destination,
//               u32 count and that many pairs of devices; a device is i32 kind and i32 index
//
// What is in the store may come from anybody: whatever does not decode, to the last byte, is
// Corrupt, and the message names the key and says what is wrong with its value. Nobody overwrites
// what cannot be read.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/group.h"
#include "muster/wire/codec.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {

inline constexpr std::size_t kMemberAddressBytesMax = 1024;

// Invalid unless others could read and reach it: an address of at most kMemberAddressBytesMax, an
// incarnation other than 0, an id that is not negative.
Result<> check_member(const Member& member);

// Requires: check_member has nothing against it.
std::string encode_member(const Member& member);
// `key` is where the bytes were, for the message.
Result<Member> decode_member(std::string_view key, std::string_view bytes);

// One inside something larger.
void put_member(std::string& out, const Member& member);
// Nothing if that is no member; the reader is then of no more use.
std::optional<Member> get_member(wire::Reader& reader);
// The least that `put_member` writes.
inline constexpr std::size_t kMemberBytesMin = 8 + 8 + 3 * 4 + 1 + 1 + 3 * 4;

// What they say about their devices. Requires: `members` is there while that is used.
DeviceRows device_rows(const std::vector<Member>& members);

// "the value of key "a" cannot be read: WHAT; it was left as it is".
tl::unexpected<Error> corrupt_value(std::string_view key, std::string_view what);
// What is wrong with a value that has another version.
std::string other_format_text(std::uint32_t found, std::uint32_t known);

}  // namespace muster::rpc
