#include "muster/base/log.h"
#include "muster/net/transport.h"

#include <fmt/format.h>

#include <charconv>

namespace muster::net {
namespace {

Result<int> parse_port(std::string_view text, std::string_view whole) {
  int port = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || port < 0 || port > 65535) {
    return fail(ErrorKind::Invalid,
                fmt::format("{} has no valid port: {} is not a number from 0 to 65535",
                            log::quote(whole), log::quote(text)));
  }
  return port;
}

}  // namespace

std::string describe(const Endpoint& endpoint) {
  if (endpoint.host.find(':') != std::string::npos)
    return fmt::format("[{}]:{}", endpoint.host, endpoint.port);
  return fmt::format("{}:{}", endpoint.host, endpoint.port);
}

Result<Endpoint> parse_endpoint(std::string_view text, int default_port) {
  Endpoint endpoint{"", default_port};
  std::string_view port_text;
  bool has_port = false;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) {
      return fail(ErrorKind::Invalid, fmt::format("{} has no closing bracket", log::quote(text)));
    }
    endpoint.host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && rest[0] != ':') {
      return fail(ErrorKind::Invalid,
                  fmt::format("{} has {} behind the bracket; only :PORT may follow",
                              log::quote(text), log::quote(rest)));
    }
    has_port = !rest.empty();
    if (has_port) port_text = rest.substr(1);
  } else {
    const std::size_t colon = text.rfind(':');
    // Several colons and no bracket: an IPv6 address without a port.
    has_port = colon != std::string_view::npos && text.find(':') == colon;
    endpoint.host = has_port ? text.substr(0, colon) : text;
    if (has_port) port_text = text.substr(colon + 1);
  }
  if (has_port) {
    const auto port = parse_port(port_text, text);
    if (!port) return fail(port.error());
    endpoint.port = *port;
  }
  return endpoint;
}

}  // namespace muster::net
