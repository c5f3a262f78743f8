// What the replies of the extension hold, for its clients. Pure.
#pragma once

#include "muster/base/error.h"
#include "muster/wire/codec.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace muster::store {

inline tl::unexpected<Error> malformed() {
  return fail(ErrorKind::Invalid, "the server's reply is malformed; is it a newer version?");
}

// The reply to a get or a pop: a value, or that there is none. Points into `body`.
inline Result<std::optional<std::string_view>> decode_optional(std::string_view body) {
  wire::Reader reader(body);
  std::optional<std::string_view> value;
  if (reader.integer<std::uint8_t>() != 0) value = reader.string(body.size());
  if (!reader.finished()) return malformed();
  return value;
}

}  // namespace muster::store
