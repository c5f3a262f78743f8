// What workers tell each other about references: the fork data that travels inside arguments and
// results, and the payloads of the control messages.
//
//   message             from -> to           payload         answered by RREF_ACK with
//   RREF_FORK_REQUEST   child -> owner       rref, fork      Done, Ended
//   RREF_USER_DELETE    user -> owner        rref, fork      Done
//   RREF_CHILD_ACCEPT   child -> parent      fork            Done
//   RREF_FORK_CANCEL    parent -> child      fork            Kept, Cancelled
//
// The payloads of a fork request and of the delete of the same fork are equal byte for byte, since
// fault injection counts failures by the payload alone. So nothing that concerns only one of the
// two may ever go into them: what a fork request has to learn comes back in the answer, and what a
// delete would have to add needs a message of its own.
//
// Done is an empty payload, as programs know RREF_ACK; the other answers are one byte. They are
// acks and not exceptions because repeating the request would not change them.
//
// Everything here is a value. What is decoded comes from outside and is not trusted.
#pragma once

#include "muster/base/error.h"
#include "muster/rpc/message.h"
#include "muster/rref/ids.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster::rref {

inline constexpr std::size_t kTypeTextBytesMax = 4096;

inline constexpr std::int64_t kSeriesUnknown = -1;

// One handle on its way to another worker.
struct ForkData {
  WorkerId owner = 0;
  GlobalId rref;
  GlobalId fork;
  WorkerId parent = 0;  // the worker that forked it
  // Which process the parent takes for the owner: the series of ids that it draws from.
  std::int64_t owner_series = kSeriesUnknown;
  std::string type;  // of the value, as the program spells it; not looked at here

  friend bool operator==(const ForkData&, const ForkData&) = default;
};
// Requires: the type has at most kTypeTextBytesMax bytes.
std::string encode(const ForkData& data);
// Corrupt unless the bytes are exactly one fork data.
Result<ForkData> decode_fork_data(std::string_view bytes);

// One control message, without its destination. `rref` is empty in those that do not carry it.
struct Control {
  rpc::MessageType type = rpc::MessageType::Unknown;
  GlobalId rref;
  GlobalId fork;

  friend bool operator==(const Control&, const Control&) = default;
};
bool is_control(rpc::MessageType type);
// Requires: is_control(control.type).
std::string encode(const Control& control);
Result<Control> decode_control(rpc::MessageType type, std::string_view payload);

enum class Ack : std::uint8_t {
  Done = 0,
  Ended = 1,      // a fork request came for what has ended
  Kept = 2,       // the fork had arrived
  Cancelled = 3,  // the fork had not arrived, and counts for nothing when it does
};
std::string encode(Ack ack);
Result<Ack> decode_ack(std::string_view payload);

// The payload of the fetch requests. With the fork, so that the owner can tell a late fetch of a
// handle that has ended from one that overtook the creation.
struct FetchCall {
  GlobalId rref;
  GlobalId fork;

  friend bool operator==(const FetchCall&, const FetchCall&) = default;
};
std::string encode(const FetchCall& call);
Result<FetchCall> decode_fetch_call(std::string_view payload);

}  // namespace muster::rref
