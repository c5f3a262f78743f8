#include "tests/rendezvous_sim/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace muster::rendezvous::testing {
namespace {

// One mistake shows again in every step; the first few say enough.
constexpr std::size_t kFaultsMax = 20;

}  // namespace

std::string describe(const State& state) {
  std::string text = fmt::format(
      "birth {:x} round {}{}{}{} size {} limits {}..{}{} members", state.birth, state.round,
      state.complete ? " complete" : "", state.closed ? " closed" : "", state.lost ? " lost" : "",
      state.world_size, state.min_nodes, state.max_nodes, state.deadline ? " in last call" : "");
  for (const auto& [node, rank] : state.participants) {
    text += fmt::format(" {}:{}", rendezvous::describe(node), rank);
  }
  text += ", waiting";
  for (const Node& node : state.wait_list) text += " " + rendezvous::describe(node);
  text += ", spare";
  for (const Node& node : state.redundancy_list) text += " " + rendezvous::describe(node);
  return text;
}

void Ledger::fault(std::string text) {
  if (faults_.size() < kFaultsMax) faults_.push_back(std::move(text));
}

void Ledger::note(const Node& node, Id id, std::int64_t rank, std::int64_t world_size) {
  const auto [found, is_new] = rounds_.try_emplace(id);
  Round& round = found->second;
  const std::string which = fmt::format("round {} of {:x}", id.second, id.first);
  if (is_new) {
    round.world_size = world_size;
    if (world_size < min_nodes_ || world_size > max_nodes_) {
      fault(fmt::format("{} has {} members, and the limits are {} and {}", which, world_size,
                        min_nodes_, max_nodes_));
    }
  }
  if (round.world_size != world_size) {
    fault(fmt::format("{} has {} members and, for {}, {}", which, round.world_size,
                      rendezvous::describe(node), world_size));
  }
  if (rank < 0 || rank >= world_size) {
    fault(fmt::format("{} is rank {} of {} in {}", rendezvous::describe(node), rank, world_size,
                      which));
  }
  const Node& member = round.members.emplace(rank, node).first->second;
  if (member != node) {
    fault(fmt::format("rank {} of {} is {}, and it is {}", rank, which,
                      rendezvous::describe(member), rendezvous::describe(node)));
  }
  const std::int64_t first_rank = round.ranks.emplace(node, rank).first->second;
  if (first_rank != rank) {
    fault(fmt::format("{} is rank {} and rank {} of {}", rendezvous::describe(node), first_rank,
                      rank, which));
  }
}

void Ledger::joined(const Node& node, const Place& place) {
  ++join_count_;
  tell(node.nonce);
  tell(place.id.birth);
  tell(place.id.round);
  tell(static_cast<std::uint64_t>(place.rank));
  note(node, {place.id.birth, place.id.round}, place.rank, place.world_size);
  const auto [last, is_first] = last_rounds_[node].try_emplace(place.id.birth, place.id.round);
  if (is_first) return;
  if (place.id.round <= last->second) {
    fault(fmt::format("{} came from round {} of {:x} and has joined round {}",
                      rendezvous::describe(node), last->second, place.id.birth, place.id.round));
  }
  last->second = std::max(last->second, place.id.round);
}

void Ledger::saw(const State& state, bool has_times) {
  if (state.birth == 0) return;
  // Most steps change nothing; times do change, and mean nothing here.
  if (state.birth == last_.birth && state.round == last_.round &&
      state.complete == last_.complete && state.closed == last_.closed &&
      state.lost == last_.lost && state.world_size == last_.world_size &&
      state.deadline.has_value() == last_.deadline.has_value() &&
      state.last_call_count == last_.last_call_count &&
      state.last_heartbeats.size() == last_.last_heartbeats.size() &&
      state.participants == last_.participants && state.wait_list == last_.wait_list &&
      state.redundancy_list == last_.redundancy_list) {
    return;
  }
  tell(state.birth);
  tell(state.round);
  tell(state.participants.size() * 3 + state.wait_list.size() * 5 +
       state.redundancy_list.size() * 7);
  check_invariants(state, has_times);
  check_course(state);
  last_ = state;
}

void Ledger::store_forgot() {
  newest_rounds_.clear();
  closed_.clear();
  last_ = State();
}

void Ledger::check_invariants(const State& state, bool has_times) {
  std::set<Node> all;
  std::size_t count = 0;
  const auto add = [&](const Node& node) {
    all.insert(node);
    ++count;
    if (has_times && !state.last_heartbeats.contains(node)) {
      fault(fmt::format("{} has no heartbeat: {}", rendezvous::describe(node), describe(state)));
    }
  };
  for (const auto& [node, rank] : state.participants) add(node);
  for (const Node& node : state.wait_list) add(node);
  for (const Node& node : state.redundancy_list) add(node);
  if (all.size() != count) fault("a node is in two lists: " + describe(state));
  if (has_times && state.last_heartbeats.size() != all.size()) {
    fault("there are heartbeats of nodes that are gone: " + describe(state));
  }

  const auto size = static_cast<std::int64_t>(state.participants.size());
  if (state.complete && size == 0) fault("complete without members: " + describe(state));
  if (state.complete && state.deadline) fault("complete in last call: " + describe(state));
  if (state.deadline && size < min_nodes_) fault("a last call for too few: " + describe(state));
  if (size > max_nodes_) fault("too many members: " + describe(state));
  if (!state.complete) return;
  for (const auto& [node, rank] : state.participants) {
    note(node, {state.birth, state.round}, rank, state.world_size);
  }
}

void Ledger::check_course(const State& state) {
  const auto [newest, is_first] = newest_rounds_.try_emplace(state.birth, state.round);
  if (state.round < newest->second) {
    fault(fmt::format("round {} comes after round {}: {}", state.round, newest->second,
                      describe(state)));
  }
  newest->second = std::max(newest->second, state.round);

  bool& closed = closed_[state.birth];
  if (closed && !state.closed) fault("a closed run is open again: " + describe(state));
  closed = closed || state.closed;

  // The step in which a round completes: nobody has left yet. (A state that a restarted server has
  // taken over from its members is not such a step.)
  const bool completes =
      last_.birth == state.birth && last_.round == state.round && !last_.complete && state.complete;
  if (completes && !state.lost &&
      static_cast<std::int64_t>(state.participants.size()) != state.world_size) {
    fault("a round completes with gaps: " + describe(state));
  }
}

}  // namespace muster::rendezvous::testing
