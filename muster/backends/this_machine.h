// Which names and addresses are this machine's own: how a node finds out that the rendezvous
// endpoint names it, so that it is the one to host the store.
//
// The decision is a pure function of facts. Collecting the facts blocks, since the system's name
// resolution does: do it in EpollLoop::run_in_background.
#pragma once

#include "muster/base/error.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::backends {

// An IPv4 or IPv6 address. IPv4 addresses are kept as IPv6-mapped ones, so that two spellings of
// one address are equal.
struct IpAddress {
  std::array<unsigned char, 16> bytes{};

  // Nothing if it is not a literal address.
  static std::optional<IpAddress> parse(std::string_view text);
  bool is_loopback() const;

  friend bool operator==(const IpAddress&, const IpAddress&) = default;
};

struct MachineFacts {
  std::string host_name = {};
  // What the host name's address records say. Empty if it cannot be resolved.
  std::vector<std::string> canonical_names = {};
  std::vector<IpAddress> addresses = {};
  std::vector<IpAddress> interface_addresses = {};
};

// Whether `host`, a name or a literal address, is this machine. `resolved` are the addresses that a
// name resolves to; empty if it does not.
bool is_this_machine(const MachineFacts& facts, std::string_view host,
                     const std::vector<IpAddress>& resolved);

// Blocking, and safe from any thread. Failures count as "nothing there".
MachineFacts collect_machine_facts();
std::vector<IpAddress> resolve(const std::string& host);
// All of it: collects only what is needed to decide.
bool is_this_machine(const std::string& host);

// The machine's name with its domain if the system knows it, else without. Blocking.
std::string fully_qualified_name();
// The rule: the first canonical name with a dot, else the host name.
std::string fully_qualified_name(const MachineFacts& facts);

// A TCP port on which nothing listens now. Someone else may take it at any time.
Result<int> find_free_port();

}  // namespace muster::backends
