// What a client says to the raw echo server when it connects; the server confirms it with one byte.
// From then on it answers every `request_bytes` bytes with `reply_bytes` bytes and looks at
// neither: the least that any request and reply over a socket can cost.
#pragma once

#include <cstdint>

namespace muster::bench {

enum class EchoRole : std::uint32_t {
  Echo,      // a reply to each request, on the same connection
  Listener,  // sends nothing more; gets a reply whenever an announcer sends a request
  Announcer,
};

// Sent as it lies in memory: both ends are on one machine.
struct EchoHello {
  EchoRole role = EchoRole::Echo;
  std::uint32_t request_bytes = 0;
  std::uint32_t reply_bytes = 0;
};
inline constexpr std::uint32_t kEchoBytesMax = 1U << 20;

}  // namespace muster::bench
