// Node: who takes part in a rendezvous. One descriptor a handler, kept across rounds.
#pragma once

#include "muster/base/random.h"

#include <compare>
#include <cstdint>
#include <string>

namespace muster::rendezvous {

struct Node {
  std::string addr = {};      // the configured local address, else the host name
  std::int64_t pid = 0;       // of the agent
  std::int64_t local_id = 0;  // counts the descriptors of one process
  // Tells apart nodes whose other fields are equal, such as pid 1 of two containers with one host
  // name.
  std::uint64_t nonce = 0;

  friend bool operator==(const Node&, const Node&) = default;
  // The order of ranks: address bytewise, then the numbers as numbers; the nonce only breaks ties.
  friend std::strong_ordering operator<=>(const Node& left, const Node& right);
};

// `addr_pid_local_id`, for people; not unique, since the nonce is not in it.
std::string describe(const Node& node);

// Makes descriptors of this process. The local ids count from 0, across all threads. `addr` is the
// configured local address or, where there is none, this machine's fully qualified name.
Node make_node(std::string addr, Random& random);

}  // namespace muster::rendezvous
