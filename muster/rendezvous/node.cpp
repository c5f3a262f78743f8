#include "muster/rendezvous/node.h"

#include <fmt/format.h>

#include <atomic>
#include <unistd.h>
#include <utility>

namespace muster::rendezvous {

std::strong_ordering operator<=>(const Node& left, const Node& right) {
  // Strings compare as unsigned bytes, which for UTF-8 is the order of code points.
  if (const int addr = left.addr.compare(right.addr); addr != 0) return addr <=> 0;
  if (const auto pid = left.pid <=> right.pid; std::is_neq(pid)) return pid;
  if (const auto id = left.local_id <=> right.local_id; std::is_neq(id)) return id;
  return left.nonce <=> right.nonce;
}

std::string describe(const Node& node) {
  return fmt::format("{}_{}_{}", node.addr, node.pid, node.local_id);
}

Node make_node(std::string addr, Random& random) {
  static std::atomic<std::int64_t> count = 0;
  return {.addr = std::move(addr),
          .pid = ::getpid(),
          .local_id = count.fetch_add(1),
          .nonce = random.next()};
}

}  // namespace muster::rendezvous
