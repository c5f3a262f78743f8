// What a node and the server that hosts its run say to each other, over a store::Talk.
//
// The node opens with a Hello, which may join at once. From then on it says Join, Leave, Close,
// Beat, Alive or Show; the server tells Joined, Failed, Status, Left, Alive or Snapshot. A Beat is
// a sign of life, an Alive one that asks for a sign of life in return. A join stays pending at the
// server until its round is complete, so that for N nodes there are N requests and N answers, and
// each is of the same size whatever N is.
//
//   Hello: u8 version, u8 flags, string run id, then, but for observers,
//          node, i64 min_nodes, i64 max_nodes, i64 last call, i64 window, i64 grace (nanoseconds),
//          place if the flag says so
//   place: u64 birth, u64 round, i64 rank, i64 world_size
//   said:  u8 kind, then for Join: u64 birth, u64 round of what the node leaves behind (0 0:
//   nothing) told:  u8 kind, then for Joined: place; Failed: u8 error kind, string; Status: u64
//   round,
//          u32 waiting, u8 flags; Snapshot: its fields
//
// Everything from outside is checked; what does not decode ends the conversation with Invalid.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/rendezvous/driver.h"
#include "muster/rendezvous/node.h"
#include "muster/rendezvous/settings.h"
#include "muster/rendezvous/snapshot.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::rendezvous {

inline constexpr std::uint8_t kHostProtocolVersion = 2;
inline constexpr std::size_t kRunIdBytesMax = 1024;

struct Hello {
  std::string run_id;
  bool observes = false;  // only looks: the rest is not used
  bool joins = false;
  bool closes = false;        // the node wants the run closed, and does not know yet that it is
  bool knows_closed = false;  // the node knows that the run is closed, whatever this server knows
  Node node;
  // Of these only the limits, the last call, the grace and the window are sent.
  Settings settings;
  // The node's last place, if it has one: what it leaves behind if it joins, else what it still is
  // a member of.
  std::optional<Place> place;

  friend bool operator==(const Hello&, const Hello&) = default;
};

struct Said {
  enum class Kind : std::uint8_t { Join = 1, Leave = 2, Close = 3, Alive = 4, Show = 5, Beat = 6 };
  Kind kind = Kind::Alive;
  RoundId after;  // Join

  friend bool operator==(const Said&, const Said&) = default;
};

struct Told {
  enum class Kind : std::uint8_t {
    Joined = 1,
    Failed = 2,
    Status = 3,
    Left = 4,
    Alive = 5,
    Snapshot = 6,
  };
  Kind kind = Kind::Alive;
  Place place;         // Joined
  Error error;         // Failed
  Status status;       // Status
  bool spare = false;  // Status: the node is parked, and its join has no deadline
  Snapshot snapshot;   // Snapshot
};

std::string encode(const Hello& hello);
Result<Hello> decode_hello(std::string_view bytes);
std::string encode(const Said& said);
Result<Said> decode_said(std::string_view bytes);

std::string encode_joined(const Place& place);
std::string encode_failed(ErrorKind kind, std::string_view message);
std::string encode_status(const Status& status, bool spare);
std::string encode_plain(Told::Kind kind);  // Left, Alive
std::string encode_snapshot(const Snapshot& snapshot);
Result<Told> decode_told(std::string_view bytes);

}  // namespace muster::rendezvous
