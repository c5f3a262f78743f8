#include "muster/rendezvous/state_codec.h"

#include "muster/rendezvous/wishes.h"

#include <fmt/format.h>

#include <cstdint>
#include <set>
#include <utility>

namespace muster::rendezvous {
namespace {

constexpr std::string_view kMagic = "MusterRV";
constexpr std::uint32_t kFormatVersion = 2;

constexpr std::uint8_t kComplete = 1;
constexpr std::uint8_t kClosed = 2;
constexpr std::uint8_t kLost = 4;
constexpr std::uint8_t kInLastCall = 8;
constexpr std::uint8_t kFlagsKnown = kComplete | kClosed | kLost | kInLastCall;

// The least a node can take: no address, three numbers.
constexpr std::size_t kNodeBytesMin = 4 + 8 + 8 + 8;

std::uint8_t flags_of(const State& state) {
  return static_cast<std::uint8_t>((state.complete ? kComplete : 0) | (state.closed ? kClosed : 0) |
                                   (state.lost ? kLost : 0) | (state.deadline ? kInLastCall : 0));
}

tl::unexpected<Error> corrupt(std::string_view what) {
  return fail(ErrorKind::Corrupt, fmt::format("the stored rendezvous state cannot be read: {}; "
                                              "it was left as it is",
                                              what));
}

void put_count(std::string& out, std::size_t count) {
  wire::put(out, static_cast<std::uint32_t>(count));
}

// No more than the input can hold, so that a wrong count costs nothing.
std::size_t get_count(wire::Reader& reader) {
  const std::size_t count = reader.integer<std::uint32_t>();
  return count <= kNodesMax && count * kNodeBytesMin <= reader.rest().size() ? count : SIZE_MAX;
}

// In order, so that a state has one form only.
bool get_nodes(wire::Reader& reader, std::set<Node>& nodes) {
  const std::size_t count = get_count(reader);
  if (count == SIZE_MAX) return false;
  for (std::size_t index = 0; index < count; ++index) {
    Node node = get_node(reader);
    if (!nodes.empty() && node <= *nodes.rbegin()) return false;
    nodes.insert(nodes.end(), std::move(node));
  }
  return !reader.failed();
}

bool get_members(wire::Reader& reader, std::map<Node, std::int64_t>& members) {
  const std::size_t count = get_count(reader);
  if (count == SIZE_MAX) return false;
  for (std::size_t index = 0; index < count; ++index) {
    Node node = get_node(reader);
    const auto rank = reader.integer<std::int64_t>();
    if (!members.empty() && node <= members.rbegin()->first) return false;
    members.emplace_hint(members.end(), std::move(node), rank);
  }
  return !reader.failed();
}

bool are_disjoint(const State& state) {
  for (const Node& node : state.wait_list) {
    if (state.participants.contains(node) || state.redundancy_list.contains(node)) return false;
  }
  for (const Node& node : state.redundancy_list) {
    if (state.participants.contains(node)) return false;
  }
  return true;
}

bool get_wishes(wire::Reader& reader, WishMarks& wishes) {
  wishes.taken = reader.integer<std::uint64_t>();
  const std::size_t count = reader.integer<std::uint32_t>();
  if (count > kWishesMissingMax) return false;
  for (std::size_t index = 0; index < count; ++index) {
    const auto number = reader.integer<std::uint64_t>();
    const bool in_order = wishes.missing.empty() || number > *wishes.missing.rbegin();
    if (!in_order || number == 0 || number > wishes.taken) return false;
    wishes.missing.insert(wishes.missing.end(), number);
  }
  return !reader.failed();
}

// What is wrong with the numbers; empty if nothing is.
std::string_view judge(const State& state) {
  const auto size = static_cast<std::int64_t>(state.participants.size());
  const bool is_empty =
      size == 0 && state.wait_list.empty() && state.redundancy_list.empty() && !state.complete;
  const bool has_limits = state.max_nodes != 0 || state.min_nodes != 0;
  if (has_limits ? state.min_nodes < 1 || state.max_nodes < state.min_nodes : !is_empty) {
    return "it has no limits, or impossible ones";
  }
  if (size > state.max_nodes) return "it has more members than it may have";
  if (!state.complete && size > 0 && size == state.max_nodes) {
    return "it has all the members it may have and is not complete";
  }
  if (state.complete && (size == 0 || state.deadline)) {
    return "a complete round has no members or is in last call";
  }
  if (state.deadline && size < state.min_nodes) return "a last call has too few members";
  if (state.complete ? size > state.world_size || state.world_size > state.max_nodes ||
                           state.world_size < state.min_nodes
                     : state.world_size != 0 || state.lost) {
    return "its size does not fit its round";
  }
  if (state.complete && size == state.max_nodes && !state.wait_list.empty()) {
    return "somebody waits at a full group";
  }
  std::set<std::int64_t> ranks;
  for (const auto& [node, rank] : state.participants) {
    const bool fits = state.complete
                          ? rank >= 0 && rank < state.world_size && ranks.insert(rank).second
                          : rank == 0;
    if (!fits) return "a member has an impossible rank";
  }
  return "";
}

}  // namespace

void put_node(std::string& out, const Node& node) {
  wire::put_string(out, node.addr);
  wire::put<std::int64_t>(out, node.pid);
  wire::put<std::int64_t>(out, node.local_id);
  wire::put<std::uint64_t>(out, node.nonce);
}

Node get_node(wire::Reader& reader) {
  Node node;
  node.addr = reader.string(kAddressBytesMax);
  node.pid = reader.integer<std::int64_t>();
  node.local_id = reader.integer<std::int64_t>();
  node.nonce = reader.integer<std::uint64_t>();
  return node;
}

std::string encode(const State& state) {
  std::string out(kMagic);
  wire::put(out, kFormatVersion);
  wire::put(out, state.birth);
  wire::put(out, state.round);
  wire::put(out, flags_of(state));
  wire::put(out, state.min_nodes);
  wire::put(out, state.max_nodes);
  wire::put(out, state.world_size);
  wire::put(out, state.last_call_count);
  wire::put(out, state.wishes.taken);
  put_count(out, state.wishes.missing.size());
  for (const std::uint64_t number : state.wishes.missing) wire::put(out, number);
  put_count(out, state.participants.size());
  for (const auto& [node, rank] : state.participants) {
    put_node(out, node);
    wire::put(out, rank);
  }
  put_count(out, state.wait_list.size());
  for (const Node& node : state.wait_list) put_node(out, node);
  put_count(out, state.redundancy_list.size());
  for (const Node& node : state.redundancy_list) put_node(out, node);
  return out;
}

Result<State> decode(std::string_view bytes) {
  if (!bytes.starts_with(kMagic)) {
    return corrupt(bytes.empty() ? "it is empty"
                                 : "it was not written by Muster (is another program using this "
                                   "run id and store?)");
  }
  wire::Reader reader(bytes.substr(kMagic.size()));
  const auto version = reader.integer<std::uint32_t>();
  if (reader.failed()) return corrupt("it is cut short");
  if (version != kFormatVersion) {
    return corrupt(
        fmt::format("it has format {}, and this version of Muster knows only {}; run the "
                    "same version on every node",
                    version, kFormatVersion));
  }
  State state;
  state.birth = reader.integer<std::uint64_t>();
  state.round = reader.integer<std::uint64_t>();
  const auto flags = reader.integer<std::uint8_t>();
  state.min_nodes = reader.integer<std::int64_t>();
  state.max_nodes = reader.integer<std::int64_t>();
  state.world_size = reader.integer<std::int64_t>();
  state.last_call_count = reader.integer<std::uint64_t>();
  if (reader.failed()) return corrupt("it is cut short");
  if ((flags & ~kFlagsKnown) != 0) return corrupt("it has flags that nobody knows");
  state.complete = (flags & kComplete) != 0;
  state.closed = (flags & kClosed) != 0;
  state.lost = (flags & kLost) != 0;
  if ((flags & kInLastCall) != 0) state.deadline = TimePoint::min();

  if (!get_wishes(reader, state.wishes)) return corrupt("its wishes are damaged");
  if (!get_members(reader, state.participants) || !get_nodes(reader, state.wait_list) ||
      !get_nodes(reader, state.redundancy_list)) {
    return corrupt("its lists of nodes are damaged");
  }
  if (!reader.finished()) return corrupt("it is longer than it should be");
  if (!are_disjoint(state)) return corrupt("a node is in two lists");
  if (const std::string_view wrong = judge(state); !wrong.empty()) return corrupt(wrong);
  return state;
}

}  // namespace muster::rendezvous
