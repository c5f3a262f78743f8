#include "muster/observe/address.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace muster::observe {
namespace {

constexpr std::string_view kLoopback = "127.0.0.1";
constexpr int kPortMax = 65535;
constexpr int kNoPort = -1;

std::optional<int> parse_port(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (port < 0 || port > kPortMax) return std::nullopt;
  return port;
}

}  // namespace

Result<std::optional<net::Endpoint>> parse_http_address(std::string_view text) {
  using Address = std::optional<net::Endpoint>;
  if (text == "off") return Address();
  if (const auto port = parse_port(text)) {
    return Address(net::Endpoint{std::string(kLoopback), *port});
  }
  const std::string expected = fmt::format(
      "the HTTP address {} is none: use off, PORT (on loopback) or HOST:PORT", log::quote(text));
  // A host without a port would be read as a host with some port; here it is most likely a typo.
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || !parse_port(text.substr(colon + 1))) {
    return fail(ErrorKind::Invalid, expected);
  }
  // An IPv6 address without brackets ends in what looks like a port and is none.
  auto endpoint = net::parse_endpoint(text, kNoPort);
  if (!endpoint || endpoint->port == kNoPort) return fail(ErrorKind::Invalid, expected);
  return Address(std::move(*endpoint));
}

Result<HttpAddress> choose_http_address(const std::optional<std::string>& option,
                                        const std::optional<std::string>& health_check_port) {
  HttpAddress address;
  if (option) {
    auto parsed = parse_http_address(*option);
    if (!parsed) return fail(parsed.error());
    address.endpoint = std::move(*parsed);
    return address;
  }
  if (!health_check_port || health_check_port->empty()) return address;
  if (const auto port = parse_port(*health_check_port)) {
    address.endpoint = net::Endpoint{std::string(kLoopback), *port};
  } else {
    address.warning =
        fmt::format("TORCHELASTIC_HEALTH_CHECK_PORT={} is not a port, there is no health server",
                    log::quote(*health_check_port));
  }
  return address;
}

}  // namespace muster::observe
