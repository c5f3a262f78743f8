// Where a rendezvous takes place, as it is typed: `host`, `host:port`, `[v6 address]:port`.
//
// The rules are those of `--rdzv-endpoint`, which differ from net::parse_endpoint: nothing at all
// means this machine, and host names are checked.
#pragma once

#include "muster/base/error.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rendezvous {

// The host is a name or a literal address without brackets.
struct Endpoint {
  std::string host;
  int port = 0;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// "host:port", with brackets around IPv6 literals.
std::string describe(const Endpoint& endpoint);

// Blank: `localhost`. Invalid if the port is not a number of at most 5 digits below 65536, if the
// host is empty or has other letters than those of names and addresses, and for an IPv6 address
// without brackets, whose end cannot be told from a port.
Result<Endpoint> parse_endpoint(std::string_view text, int default_port);

// Whether the text says a port, right or wrong.
bool has_port(std::string_view text);

// Several endpoints, separated by commas. Only the whole text may be blank, not one of several.
Result<std::vector<Endpoint>> parse_endpoint_list(std::string_view text, int default_port);
inline constexpr std::size_t kEndpointsMax = 64;

}  // namespace muster::rendezvous
