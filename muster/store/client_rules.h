// What every TCP client keeps to, whatever the server speaks: names of keys on the wire, limits,
// what may be repeated, and how failures are worded. Pure.
#pragma once

#include "muster/base/error.h"
#include "muster/net/transport.h"
#include "muster/store/tcp_store.h"
#include "muster/wire/store_protocol.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace muster::store {

// User keys carry a "/" on the wire, as PyTorch's do.
std::string wire_key(std::string_view key);
std::vector<std::string> wire_keys(const std::vector<std::string>& keys);
std::string user_key(std::string_view wire_key);

// Refuses what a server would refuse by closing the connection, before it is sent.
Result<> check_limits(const wire::Request& request);
// Likewise if so many bytes are still to be put in front of each key.
Result<> check_limits(const wire::Request& request, std::size_t key_prefix_bytes);

// Likewise what is said to a service.
Result<> check_message(std::string_view message);

// Whether doing it twice is the same as doing it once, whoever else does something in between.
bool is_repeatable(const wire::Request& request);

// "timed out waiting for keys "a", "b", "c" and 2 more".
std::string describe_wait(const wire::Request& request);
std::string describe_no_reply(const wire::Request& request, const TcpStoreOptions& options);
// For a write whose connection broke.
std::string describe_uncertain(const wire::Request& request, const net::Endpoint& endpoint,
                               std::string_view reason);

}  // namespace muster::store
