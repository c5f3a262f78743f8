// Which address of this machine other workers should use.
#pragma once

#include "muster/base/error.h"
#include "muster/net/transport.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {

// ---- the decision -------------------------------------------------------------------------------

// Whether whoever says `host` can only mean the machine on which it is said: a literal loopback
// address, the address that stands for any, `localhost` and its like, or nothing. The name of a
// machine is none of these, though it often has an address of loopback on that machine itself.
bool names_loopback(std::string_view host);

// Whether only this machine reaches that literal address.
bool is_loopback(const std::string& address);

// Literal addresses, the best of each kind first.
struct AddressCandidates {
  // Of this machine on the ways to the store; or, where the store is a file, what the machine's own
  // name stands for. Never empty.
  std::vector<std::string> towards_store;
  // Nobody is on another machine, so an address of loopback is as good as any.
  bool all_are_here = false;
  // Of this machine on the ways to everywhere else, and of its interfaces that are up.
  std::vector<std::string> on_default_route{};
  std::vector<std::string> of_interfaces{};
};
// The first that others can reach, in the order above; of one kind, those of the family in which
// the store was found come first. If there is none, the one towards the store.
std::string choose_address(const AddressCandidates& candidates);

// ---- what there is to decide on -----------------------------------------------------------------

// The address of the interface `name`; IPv4 before IPv6. Invalid if it has none: the text lists the
// interfaces there are.
Result<std::string> address_of_interface(const std::string& name);

// The addresses that this machine uses on the ways to `endpoint`, where the others are as well, as
// the system orders them. Nothing is sent. Unavailable if there is no way.
Result<std::vector<std::string>> addresses_towards(const net::Endpoint& endpoint);

// The address that this machine's own name stands for, where it is one of this machine; else that
// of loopback.
std::string address_of_this_machine();

// What `choose_address` makes of this machine. `store`: nothing if it is a file.
// `spans_machines`: the launcher says that the job has workers on other machines; if these cannot
// reach what is chosen, a warning says so.
Result<std::string> address_for_others(const std::optional<net::Endpoint>& store,
                                       bool spans_machines);

// Where to listen, so that connections to `address` arrive: there, if it is an address of this
// machine (or a name of one); otherwise at every address of its family, since something between
// the workers translates it. Unavailable if it is a name that stands for nothing.
Result<std::string> address_to_bind(const std::string& address);

}  // namespace muster::rpc
