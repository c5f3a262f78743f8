#include "muster/rendezvous/endpoint.h"

#include "muster/base/log.h"
#include "muster/rendezvous/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <optional>
#include <utility>

namespace muster::rendezvous {
namespace {

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

bool is_host_letter(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || is_digit(letter) ||
         letter == '_' || letter == '.' || letter == ':' || letter == '-';
}

bool is_ipv6(std::string_view text) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1;
}

struct Parts {
  std::string_view host;
  std::optional<std::string_view> port;
};

Parts split(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const bool all_host = text.starts_with('[') && text.ends_with(']');
  Parts parts{text, std::nullopt};
  if (!all_host && colon != std::string_view::npos)
    parts = {text.substr(0, colon), text.substr(colon + 1)};
  if (parts.host.size() >= 2 && parts.host.starts_with('[') && parts.host.ends_with(']'))
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  return parts;
}

std::optional<int> port_in(std::string_view text) {
  constexpr std::size_t kDigitsMax = 5;
  if (text.empty() || text.size() > kDigitsMax || !std::ranges::all_of(text, is_digit))
    return std::nullopt;
  int port = 0;
  for (const char digit : text) port = port * 10 + (digit - '0');
  if (port > 65535) return std::nullopt;
  return port;
}

}  // namespace

std::string describe(const Endpoint& endpoint) {
  if (endpoint.host.find(':') != std::string::npos)
    return fmt::format("[{}]:{}", endpoint.host, endpoint.port);
  return fmt::format("{}:{}", endpoint.host, endpoint.port);
}

Result<Endpoint> parse_endpoint(std::string_view text, int default_port) {
  text = trim(text);
  if (text.empty()) return Endpoint{"localhost", default_port};
  if (is_ipv6(text)) {
    return fail(
        ErrorKind::Invalid,
        fmt::format("the rendezvous endpoint {0} is an IPv6 address without brackets; write "
                    "[{0}] or [{0}]:PORT",
                    text));
  }
  const Parts parts = split(text);
  int port = default_port;
  if (parts.port) {
    const auto given = port_in(*parts.port);
    if (!given) {
      return fail(ErrorKind::Invalid,
                  fmt::format("the rendezvous endpoint {} has no valid port: {} is not a number "
                              "from 0 to 65535",
                              log::quote(text), log::quote(*parts.port)));
    }
    port = *given;
  }
  if (parts.host.empty() || !std::ranges::all_of(parts.host, is_host_letter)) {
    return fail(ErrorKind::Invalid,
                fmt::format("the rendezvous endpoint {} has no valid host name: {}; write HOST, "
                            "HOST:PORT or [IPV6 ADDRESS]:PORT",
                            log::quote(text), log::quote(parts.host)));
  }
  return Endpoint{std::string(parts.host), port};
}

bool has_port(std::string_view text) {
  text = trim(text);
  return !is_ipv6(text) && split(text).port.has_value();
}

Result<std::vector<Endpoint>> parse_endpoint_list(std::string_view text, int default_port) {
  std::vector<Endpoint> endpoints;
  const bool is_list = text.find(',') != std::string_view::npos;
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    if (is_list && trim(item).empty())
      return fail(ErrorKind::Invalid, "one of the rendezvous endpoints is empty");
    if (endpoints.size() == kEndpointsMax) {
      return fail(ErrorKind::Invalid,
                  fmt::format("there are more than {} rendezvous endpoints", kEndpointsMax));
    }
    auto endpoint = parse_endpoint(item, default_port);
    if (!endpoint) return fail(endpoint.error());
    endpoints.push_back(std::move(*endpoint));
    if (comma == std::string_view::npos) return endpoints;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace muster::rendezvous
