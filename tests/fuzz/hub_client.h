// What the tests of the Hub share: clients without a network, and what they expect on the wire.
#pragma once

#include "muster/store/hub.h"
#include "muster/wire/codec.h"
#include "muster/wire/store_extension.h"
#include "tests/fuzz/peer.h"
#include "tests/fuzz/requests.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::tests::hub {

using namespace std::string_literals;
using store::Change;
using store::Hub;
using store::HubOptions;
using wire::put;
using wire::put_blob;
using wire::put_string;

inline constexpr Dialect kPyTorchDialects[] = {Dialect::Legacy, Dialect::Modern};

// --- What is expected on the wire ----------------------------------------------------------------

inline const std::string kStopWaiting("\0", 1);
inline const std::string kWaitCanceled("\x01", 1);
inline const std::string kReady("\0", 1);
inline const std::string kNotReady("\x01", 1);
inline const std::string kNothing;

inline std::string number(std::int64_t value) {
  std::string out;
  put(out, value);
  return out;
}

inline std::string blob(std::string_view value) {
  std::string out;
  put_blob(out, value);
  return out;
}

// Bodies of the extension.
inline std::string string(std::string_view value) {
  std::string out;
  put_string(out, value);
  return out;
}
inline std::string flag(bool value) { return std::string(1, value ? '\1' : '\0'); }
inline std::string item(std::string_view value) { return flag(true) + string(value); }
inline const std::string kNoItem("\0", 1);

inline std::string reply(std::uint32_t id, std::uint8_t status, std::string_view body) {
  std::string out;
  const std::size_t start = wire::begin_reply(id, status, out);
  out += body;
  wire::end_reply(start, out);
  return out;
}
inline std::string ok(std::uint32_t id, std::string_view body = {}) {
  return reply(id, wire::kStatusOk, body);
}
inline std::string change(std::uint32_t id, Change::Kind kind, std::string_view key,
                          std::string_view value) {
  return reply(id, wire::kStatusChange,
               std::string(1, static_cast<char>(kind)) + string(key) + string(value));
}

// A message of a Legacy watch.
inline std::string watched(wire::WatchMessage message, std::string_view key,
                           std::string_view old_value, std::string_view new_value) {
  return std::string(1, static_cast<char>(message)) + blob(key) + blob(old_value) + blob(new_value);
}

// The kind of error with which `output` refuses the request `id`; nothing if it is anything but
// that one reply.
inline std::optional<ErrorKind> refusal(std::string_view output, std::uint32_t id) {
  wire::Reply decoded;
  const auto size = wire::decode_reply(output, output.size(), decoded);
  if (!size || *size != output.size() || decoded.id != id) return std::nullopt;
  const auto error = wire::error_of(decoded);
  if (!error || error->message.empty()) return std::nullopt;
  return error->kind;
}

// --- A client ------------------------------------------------------------------------------------

// A peer that speaks one dialect, with the handshake behind it.
class Client {
 public:
  Client(Hub& hub, Dialect dialect, std::string_view namespace_name = "",
         std::string_view upgrade_to = "")
      : peer_(hub, namespace_name), dialect_(dialect) {
    if (dialect == Dialect::Legacy) return;
    peer_.send(kValidate);
    EXPECT_EQ(peer_.read(), kNothing);
    if (dialect == Dialect::Modern) return;
    peer_.send(bytes_of(upgrade(wire::kExtensionVersion, upgrade_to), Dialect::Modern));
    EXPECT_EQ(peer_.read(), "\x01\0\0\0"s);
  }

  // Sends, and reads nothing.
  void tell(const Request& request) { peer_.send(bytes_of(request, dialect_)); }
  // Sends, and reads everything that has come.
  std::string ask(const Request& request) {
    tell(request);
    return peer_.read();
  }
  std::string read() { return peer_.read(); }
  void close() { peer_.close(); }
  bool closed() const { return peer_.closed(); }
  Peer& peer() { return peer_; }

 private:
  Peer peer_;
  Dialect dialect_;
};

inline std::int64_t described(const Hub& hub, std::string_view name) {
  for (const auto& [line, value] : hub.describe()) {
    if (line == name) return std::stoll(value);
  }
  ADD_FAILURE() << "the hub does not describe its " << name;
  return -1;
}

class HubTest : public ::testing::Test {
 protected:
  HubOptions options;
  Hub hub{options};
};

}  // namespace muster::tests::hub
