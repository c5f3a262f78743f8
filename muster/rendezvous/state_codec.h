// The State as bytes: Muster's own format, with a magic number and a version.
//
//   "MusterRV"  8 bytes
//   u32         format version, 2
//   u64         birth, round
//   u8          flags: 1 complete, 2 closed, 4 lost, 8 in last call
//   i64         min_nodes, max_nodes, world_size
//   u64         last_call_count
//   u64         the number of the last wish that was dealt with
//   u32 count, then u64                    wishes before it that were not, in order
//   u32 count, then node and i64 rank      participants, in order
//   u32 count, then node                   wait list, in order
//   u32 count, then node                   redundancy list, in order
//
//   node: u32 length and address, i64 pid, i64 local_id, u64 nonce
//
// Times do not travel. Whatever does not decode, to the last byte, is Corrupt, and the message says
// what is wrong with it.
#pragma once

#include "muster/base/error.h"
#include "muster/rendezvous/state.h"
#include "muster/wire/codec.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace muster::rendezvous {

inline constexpr std::size_t kAddressBytesMax = 1024;
inline constexpr std::size_t kNodesMax = 1'000'000;

std::string encode(const State& state);
// The nodes have no heartbeats, and a last call under way has the deadline TimePoint::min(): what
// they are is for the observer to say.
Result<State> decode(std::string_view bytes);

void put_node(std::string& out, const Node& node);
Node get_node(wire::Reader& reader);

}  // namespace muster::rendezvous
