// Addresses of local sockets, for both sides of the agent's socket.
#pragma once

#include "muster/base/error.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>

namespace muster::watchdog::internal {

struct UnixAddress {
  sockaddr_un storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

inline Result<UnixAddress> unix_address(const std::string& path) {
  UnixAddress address;
  if (path.empty()) return fail(ErrorKind::Invalid, "the path of a socket is empty");
  // The name ends with a zero byte.
  constexpr std::size_t kPathBytesMax = sizeof address.storage.sun_path - 1;
  if (path.size() > kPathBytesMax) {
    return fail(ErrorKind::Invalid,
                fmt::format("the path of a socket may have {} bytes, {} has {}: choose a shorter "
                            "temporary folder (TMPDIR)",
                            kPathBytesMax, path, path.size()));
  }
  address.storage.sun_family = AF_UNIX;
  std::memcpy(address.storage.sun_path, path.c_str(), path.size() + 1);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return address;
}

}  // namespace muster::watchdog::internal
