// Where the agent's HTTP server listens, from what the user said.
#pragma once

#include "muster/base/error.h"
#include "muster/net/transport.h"

#include <optional>
#include <string>
#include <string_view>

namespace muster::observe {

// "off": nothing; "PORT": on loopback; "HOST:PORT", "[v6]:PORT", ":PORT" (every address). Port 0
// lets the system choose. Anything else is Invalid.
Result<std::optional<net::Endpoint>> parse_http_address(std::string_view text);

struct HttpAddress {
  std::optional<net::Endpoint> endpoint = {};
  std::string warning = {};  // to be logged; empty: none
};

// The option wins over PyTorch's TORCHELASTIC_HEALTH_CHECK_PORT; neither: off. A value of the
// variable that is no port is ignored with a warning; a bad option is an error.
Result<HttpAddress> choose_http_address(const std::optional<std::string>& option,
                                        const std::optional<std::string>& health_check_port);

}  // namespace muster::observe
