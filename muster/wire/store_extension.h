// Muster's extension of the store protocol: frames with request ids, so that many requests are
// under way on one connection, waits do not hold up what comes behind them, and the server can push
// changes.
//
// A client asks with CHECK for `kExtensionKey` whether the server has it, then sends UPGRADE
// (version, namespace). The server answers with the version it chose as u32, and from then on both
// sides send frames:
//
//   request: u32 size of what follows, u32 id, u8 opcode, body
//   reply:   u32 size of what follows, u32 id, u8 status, body
//
// Every request but CANCEL and SAY gets exactly one final reply with its id; a watch gets an Ok,
// then Change replies, then a final error when it ends. A conversation with a service (OPEN, then
// SAY with the same id) gets Change replies, then a final Ok or error. Strings are a u32 length and
// the bytes; lists a u32 count and the elements. An operation the server does not know is refused
// with Unimplemented, and the connection goes on.
#pragma once

#include "muster/base/error.h"
#include "muster/wire/store_protocol.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::wire {

inline constexpr std::size_t kFrameHeaderBytes = 9;

// The status byte: Ok, a change of a watch or a message of a service, or kStatusErrorBase +
// ErrorKind with the message as body.
inline constexpr std::uint8_t kStatusOk = 0;
inline constexpr std::uint8_t kStatusChange = 1;
inline constexpr std::uint8_t kStatusErrorBase = 16;

constexpr std::uint8_t status_of(ErrorKind kind) {
  return static_cast<std::uint8_t>(kStatusErrorBase + static_cast<int>(kind));
}

struct Reply {
  std::uint32_t id = 0;
  std::uint8_t status = kStatusOk;
  std::string_view body;
};

// The error a reply carries, if it does. Kinds this version does not know read as Invalid.
std::optional<Error> error_of(const Reply& reply);

void encode_request(const Request& request, std::string& out);
// Likewise with `key_prefix` in front of every key.
void encode_request(const Request& request, std::string_view key_prefix, std::string& out);
// False if the frame is not well formed: `reason` says why and the connection must be closed. A
// frame with an opcode nobody knows is well formed: `request.operation` is Upgrade, which no frame
// can otherwise hold.
// A message is the rest of its frame.
bool decode_request(std::string_view frame, const Limits& limits, Request& request,
                    std::string& reason);

// False if the frame that begins with `input` will be refused for its size, whatever comes.
bool may_become_request(std::string_view input, const Limits& limits);

// Begins a reply whose body is written behind it; `end_reply` fills in the size.
std::size_t begin_reply(std::uint32_t id, std::uint8_t status, std::string& out);
void end_reply(std::size_t start, std::string& out);
void encode_error(std::uint32_t id, ErrorKind kind, std::string_view message, std::string& out);

// Finds the reply at the beginning of `input`: its size in bytes, 0 if it is not complete, nothing
// if it is malformed or larger than `size_max`.
std::optional<std::size_t> decode_reply(std::string_view input, std::size_t size_max, Reply& reply);

}  // namespace muster::wire
