// Requests as bytes, in each dialect, for tests that talk to a server without a client.
#pragma once

#include "muster/wire/codec.h"
#include "muster/wire/store_extension.h"
#include "muster/wire/store_protocol.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::tests {

using wire::Dialect;
using wire::Operation;

inline constexpr std::string_view kValidate = wire::kProbe.substr(0, 5);

inline std::string bytes_of(const wire::Request& request, Dialect dialect) {
  std::string bytes;
  if (dialect == Dialect::Extension) {
    wire::encode_request(request, bytes);
  } else {
    wire::encode(request, dialect, bytes);
  }
  return bytes;
}

inline std::string request_bytes(Dialect dialect, Operation operation, std::string_view key = {},
                                 std::string_view value = {}, std::int64_t number = 0) {
  wire::Request request;
  request.operation = operation;
  request.key = key;
  request.value = value;
  request.number = number;
  return bytes_of(request, dialect);
}

inline std::string request_bytes(Dialect dialect, Operation operation,
                                 const std::vector<std::string>& keys) {
  wire::Request request;
  request.operation = operation;
  request.keys.assign(keys.begin(), keys.end());
  return bytes_of(request, dialect);
}

// What a client sends before its first request. The extension's is answered with four bytes.
inline std::string opening(Dialect dialect, std::string_view namespace_name = {}) {
  switch (dialect) {
    case Dialect::Modern:
      return std::string(kValidate);
    case Dialect::Extension:
      return std::string(kValidate) + request_bytes(Dialect::Modern, Operation::Upgrade,
                                                    namespace_name, {}, wire::kExtensionVersion);
    default:
      return "";
  }
}

// A value as the PyTorch dialects send it.
inline std::string blob(std::string_view value) {
  std::string bytes;
  wire::put_blob(bytes, value);
  return bytes;
}

inline std::string number(std::int64_t value) {
  std::string bytes;
  wire::put(bytes, value);
  return bytes;
}

}  // namespace muster::tests
