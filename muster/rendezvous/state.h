// State: everything the nodes of one run share about who is in this round.
//
// A value. `rules.h` says how it changes, `state_codec.h` how it travels. Times in it are on the
// clock of whoever holds it and never travel: each observer judges life and deadlines by what it
// has seen itself, on its own monotonic clock. (In a hosted run that is the server, and there is
// only one.)
//
// Invariants, after every action:
//  1. participants, wait_list and redundancy_list are disjoint, and each of their nodes has an
//  entry
//     in last_heartbeats.
//  2. complete implies that there are participants and no deadline; a deadline implies at least
//     `min_nodes` participants; there are never more than `max_nodes`.
//  3. Ranks are 0 … world_size-1 without gaps when the round completes and never change within it.
//     A member that leaves afterwards leaves a gap; world_size stays.
//  4. round never decreases, closed never turns false.
#pragma once

#include "muster/base/clock.h"
#include "muster/rendezvous/node.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace muster::rendezvous {

// Which wishes (wishes.h) have been dealt with: those up to `taken`, except those whose node had a
// number but had not yet said what it wants when they were read. It is written together with what
// they were granted, so nobody can grant one twice.
struct WishMarks {
  std::uint64_t taken = 0;
  std::set<std::uint64_t> missing;

  friend bool operator==(const WishMarks&, const WishMarks&) = default;
};

struct State {
  // Drawn by the first node of the run. A store that lost everything and began again gives another
  // one, so that (birth, round) never names two groups.
  std::uint64_t birth = 0;
  std::uint64_t round = 0;
  bool complete = false;
  bool closed = false;
  // A member of the complete round has left or died: the others should meet again.
  bool lost = false;
  // What the first node came with; 0 as long as there was none. Others must agree.
  std::int64_t min_nodes = 0;
  std::int64_t max_nodes = 0;
  // How many members the complete round had when it completed.
  std::int64_t world_size = 0;
  // The end of the last call, while there is one; and how many there have been in this run, which
  // is how observers know one from the next.
  std::optional<TimePoint> deadline;
  std::uint64_t last_call_count = 0;
  WishMarks wishes;

  std::map<Node, std::int64_t> participants;  // the rank is 0 until the round completes
  std::set<Node> wait_list;                   // late nodes, for whom there is to be a new round
  std::set<Node> redundancy_list;             // spare nodes, for whom there is not
  std::map<Node, TimePoint> last_heartbeats;  // of all of them

  friend bool operator==(const State&, const State&) = default;
};

}  // namespace muster::rendezvous
