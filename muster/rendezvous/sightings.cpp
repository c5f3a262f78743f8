#include "muster/rendezvous/sightings.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::rendezvous {
namespace {

constexpr std::size_t kObserverCount = 2;

// The lowest nodes of all three lists.
std::vector<Node> lowest(const State& state) {
  std::vector<Node> nodes;
  const auto take = [&](const Node& node) { nodes.push_back(node); };
  std::size_t taken = 0;
  for (auto it = state.participants.begin();
       it != state.participants.end() && taken < kObserverCount; ++it, ++taken) {
    take(it->first);
  }
  for (const std::set<Node>* list : {&state.wait_list, &state.redundancy_list}) {
    taken = 0;
    for (auto it = list->begin(); it != list->end() && taken < kObserverCount; ++it, ++taken) {
      take(*it);
    }
  }
  std::sort(nodes.begin(), nodes.end());
  if (nodes.size() > kObserverCount) nodes.resize(kObserverCount);
  return nodes;
}

template <typename Visit>
void for_each_node(const State& state, Visit visit) {
  for (const auto& [node, rank] : state.participants) visit(node);
  for (const Node& node : state.wait_list) visit(node);
  for (const Node& node : state.redundancy_list) visit(node);
}

}  // namespace

std::string sign_name(const Node& node) {
  // The nonce alone would do; with the rest a person can tell whose it is.
  return fmt::format("{}-{:016x}", describe(node), node.nonce);
}

bool Sightings::watches_all(const State& state) const {
  const std::vector<Node> observers = lowest(state);
  return std::find(observers.begin(), observers.end(), self_) != observers.end();
}

std::vector<Node> Sightings::whom_to_watch(const State& state) const {
  if (!watches_all(state)) return lowest(state);
  std::vector<Node> others;
  for_each_node(state, [&](const Node& node) {
    if (node != self_) others.push_back(node);
  });
  return others;
}

void Sightings::note(const std::vector<Node>& nodes, const std::vector<Sign>& signs,
                     bool has_leases, TimePoint now) {
  MUSTER_ASSERT(nodes.size() == signs.size());
  // A little late is usual. Half of the interval more than that is not.
  const Duration longest =
      look_interval_ == Duration::max() ? look_interval_ : look_interval_ + look_interval_ / 2;
  const Duration gap = std::min(now - looked_, longest);
  std::map<Node, Sight> watched;
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    const Sign& sign = signs[index];
    const auto before = watched_.find(nodes[index]);
    Sight sight{sign.mark, Duration::zero()};
    if (has_leases) {
      if (!sign.present) sight.silence = Duration::max();
    } else if (before != watched_.end() && before->second.mark == sign.mark) {
      sight.silence = before->second.silence + gap;
    }
    watched.emplace(nodes[index], std::move(sight));
  }
  watched_ = std::move(watched);
  looked_ = now;
}

void Sightings::forget_absent(const State& state) {
  std::erase_if(watched_, [&](const auto& entry) {
    return !state.participants.contains(entry.first) && !state.wait_list.contains(entry.first) &&
           !state.redundancy_list.contains(entry.first);
  });
}

void Sightings::fill(const Settings& settings, TimePoint now, State& state) {
  state.last_heartbeats.clear();
  for_each_node(state, [&](const Node& node) {
    TimePoint& heard = state.last_heartbeats[node];
    const auto watched = watched_.find(node);
    if (node == self_) {
      // Whether we have been silent for too long, the others say.
      heard = std::max(last_beat_.value_or(now), now - settings.window());
    } else if (watched == watched_.end()) {
      heard = now;
    } else if (watched->second.silence == Duration::max()) {
      heard = TimePoint::min();
    } else {
      heard = now - watched->second.silence;
    }
  });
  if (!state.deadline) return;
  if (birth_ != state.birth || last_call_count_ != state.last_call_count || !deadline_) {
    birth_ = state.birth;
    last_call_count_ = state.last_call_count;
    // TimePoint::min() stands for a last call that somebody else began; ours has its own end.
    deadline_ = *state.deadline == TimePoint::min()
                    ? after(now, settings.timeouts.last_call_of(state.round))
                    : *state.deadline;
  }
  state.deadline = deadline_;
}

}  // namespace muster::rendezvous
