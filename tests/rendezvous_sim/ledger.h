// Ledger: writes down what nodes were told and what is stored, and notices what must never be true.
//
//  1. Two nodes hold different members, ranks or sizes of the same complete round.
//  2. A rank outside of 0 … world_size-1, a rank given twice, a size outside of the limits.
//  3. A closed run that is open again.
//  4. A state that breaks an invariant of state.h.
//  5. A join that returns a round which its node had been in, or an older one.
//
// Owned by a World, or by a test that feeds it by hand.
#pragma once

#include "muster/rendezvous/driver.h"
#include "muster/rendezvous/node.h"
#include "muster/rendezvous/state.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous::testing {

class Ledger {
 public:
  // The limits of every group.
  Ledger(std::int64_t min_nodes, std::int64_t max_nodes)
      : min_nodes_(min_nodes), max_nodes_(max_nodes) {}

  // A join of `node` has returned `place`.
  void joined(const Node& node, const Place& place);

  // What is stored now, or what the server has. `has_times`: the heartbeats are in it, too.
  void saw(const State& state, bool has_times);

  // The store has lost its memory. What it says from now on need not go with what it said before;
  // what nodes are told must.
  void store_forgot();

  // What was noticed, in order; as long as all is well, nothing.
  const std::vector<std::string>& faults() const { return faults_; }
  std::size_t round_count() const { return rounds_.size(); }
  std::size_t join_count() const { return join_count_; }
  // A number that stands for all that was seen, in its order.
  std::uint64_t story() const { return story_; }

 private:
  using Id = std::pair<std::uint64_t, std::uint64_t>;  // birth and round
  struct Round {
    std::int64_t world_size = 0;
    std::map<std::int64_t, Node> members;  // by rank
    std::map<Node, std::int64_t> ranks;
  };

  void note(const Node& node, Id id, std::int64_t rank, std::int64_t world_size);
  void check_invariants(const State& state, bool has_times);
  void check_course(const State& state);
  void fault(std::string text);
  void tell(std::uint64_t what) { story_ = (story_ ^ what) * 0x100000001b3U; }

  const std::int64_t min_nodes_;
  const std::int64_t max_nodes_;
  std::map<Id, Round> rounds_;
  std::map<Node, std::map<std::uint64_t, std::uint64_t>> last_rounds_;  // by node and birth
  std::map<std::uint64_t, std::uint64_t> newest_rounds_;                // by birth, as stored
  std::map<std::uint64_t, bool> closed_;                                // by birth
  State last_;
  std::size_t join_count_ = 0;
  std::uint64_t story_ = 0xcbf29ce484222325U;
  std::vector<std::string> faults_;
};

// For the message of a test that failed.
std::string describe(const State& state);

}  // namespace muster::rendezvous::testing
