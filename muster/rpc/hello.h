// The first words on a connection, and the signs of life on it. Programs never see these messages.
//
//   who connects          who was connected to
//   HELLO          ->
//                  <-     WELCOME, or REFUSED with a reason, after which it closes
//   requests       ->
//                  <-     responses
//   SIGN_OF_LIFE  <->     whenever nothing else was sent for a while
//   CANCEL         ->     nobody waits any more for the answer to the request of this number
//
// The number of the others is 0, which means nothing. Nothing is decoded for a stranger but a HELLO
// of at most kHelloBytesMax, without buffers.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/frame.h"
#include "muster/rpc/message.h"
#include "muster/rpc/worker_info.h"

#include <cstdint>
#include <string>

namespace muster::rpc {

inline constexpr MessageType kHello{0x1f0};
inline constexpr MessageType kWelcome{0x2f1};
inline constexpr MessageType kRefused{0x2f2};
inline constexpr MessageType kSignOfLife{0x1f3};
inline constexpr MessageType kCancel{0x1f4};

inline constexpr std::uint64_t kHelloBytesMax = 4096;
inline constexpr FrameLimits kHelloLimits{kHelloBytesMax, 0, 0};
inline constexpr std::uint32_t kProtocolVersion = 2;

struct Hello {
  std::string job;  // a secret of the group: who does not know it does not belong to it
  std::string from_name;
  std::int16_t from_id = 0;
  std::uint64_t from_incarnation = 0;
  std::uint64_t to_incarnation = 0;  // whom it wants; an address may belong to another by now
};

Message encode(const Hello& hello);
// Corrupt if it is none; Unimplemented if the version is another.
Result<Hello> decode_hello(const Message& message);

Message refusal(std::string_view reason);

}  // namespace muster::rpc
