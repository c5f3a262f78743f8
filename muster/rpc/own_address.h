// Which address of this machine other workers should use.
#pragma once

#include "muster/base/error.h"
#include "muster/net/transport.h"

#include <string>

namespace muster::rpc {

// The address of the interface `name`; IPv4 before IPv6. Invalid if it has none: the text lists the
// interfaces there are.
Result<std::string> address_of_interface(const std::string& name);

// The address that this machine uses on the way to `endpoint`, where the others are as well.
// Nothing is sent. Unavailable if there is no way.
Result<std::string> address_towards(const net::Endpoint& endpoint);

// The address that this machine's own name stands for, where it is one of this machine; else that
// of loopback.
std::string address_of_this_machine();

}  // namespace muster::rpc
