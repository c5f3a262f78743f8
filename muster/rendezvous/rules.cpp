#include "muster/rendezvous/rules.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

namespace muster::rendezvous {
namespace {

std::int64_t count(const State& state) {
  return static_cast<std::int64_t>(state.participants.size());
}

// Whether the node's last sign of life is so old that it is time for another.
bool is_due(const Situation& now) {
  const auto last = now.state.last_heartbeats.find(now.node);
  return last != now.state.last_heartbeats.end() &&
         last->second <= now.now - now.settings.keep_alive_interval;
}

void complete(const Settings& settings, State& state) {
  state.complete = true;
  state.deadline.reset();
  state.lost = false;
  std::int64_t rank = 0;
  for (auto& [node, its_rank] : state.participants) its_rank = rank++;
  state.world_size = rank;
  // A full group has no seat for those who wait. Left where they are, they would make the members
  // meet again and again.
  if (count(state) == settings.max_nodes) {
    state.redundancy_list.merge(state.wait_list);
    state.wait_list.clear();
  }
}

// What follows when participants have been removed.
void after_removal(const Settings& settings, State& state) {
  if (state.complete && state.participants.empty()) {
    state.complete = false;
    state.lost = false;
    state.world_size = 0;
    ++state.round;
  } else if (state.complete) {
    state.lost = true;
  } else if (count(state) < settings.min_nodes) {
    state.deadline.reset();
  }
}

void add_to_participants(const Node& node, const Settings& settings, TimePoint now, State& state) {
  state.wait_list.erase(node);
  state.redundancy_list.erase(node);
  state.participants[node] = 0;
  if (count(state) == settings.min_nodes) {
    state.deadline = after(now, settings.timeouts.last_call_of(state.round));
    ++state.last_call_count;
  }
  if (count(state) == settings.max_nodes) complete(settings, state);
}

}  // namespace

std::string_view name_of(Action action) {
  switch (action) {
    case Action::KeepAlive:
      return "KEEP_ALIVE";
    case Action::AddToParticipants:
      return "ADD_TO_PARTICIPANTS";
    case Action::AddToWaitList:
      return "ADD_TO_WAIT_LIST";
    case Action::AddToRedundancyList:
      return "ADD_TO_REDUNDANCY_LIST";
    case Action::RemoveFromParticipants:
      return "REMOVE_FROM_PARTICIPANTS";
    case Action::RemoveFromWaitList:
      return "REMOVE_FROM_WAIT_LIST";
    case Action::RemoveFromRedundancyList:
      return "REMOVE_FROM_REDUNDANCY_LIST";
    case Action::MarkComplete:
      return "MARK_RENDEZVOUS_COMPLETE";
    case Action::MarkClosed:
      return "MARK_RENDEZVOUS_CLOSED";
    case Action::Sync:
      return "SYNC";
    case Action::ErrorClosed:
      return "ERROR_CLOSED";
    case Action::ErrorTimeout:
      return "ERROR_TIMEOUT";
    case Action::ErrorGracefulExit:
      return "ERROR_GRACEFUL_EXIT";
    case Action::Finish:
      return "FINISH";
  }
  return "UNKNOWN";
}

Action decide_exit(const Situation& now) {
  if (!now.state.participants.contains(now.node)) return Action::Finish;  // E3
  if (now.now > now.deadline) return Action::ErrorTimeout;                // E1
  return Action::RemoveFromParticipants;                                  // E2
}

Action decide_join(const Situation& now) {
  const State& state = now.state;
  const std::int64_t size = count(state);
  const std::int64_t max = now.settings.max_nodes;
  const bool is_member = state.participants.contains(now.node);
  const bool is_waiting = state.wait_list.contains(now.node);
  const bool is_spare = state.redundancy_list.contains(now.node);

  if (state.closed) return is_spare ? Action::ErrorGracefulExit : Action::ErrorClosed;  // J1 J2
  if (is_spare && size == max) return is_due(now) ? Action::KeepAlive : Action::Sync;   // J3 J4
  if (is_spare) return Action::RemoveFromRedundancyList;                                // J5
  if (state.complete && is_member) return Action::Finish;                               // J6
  if (now.now > now.deadline) {
    // Compared as a difference: a deadline of "never" has nothing behind it.
    const bool can_roll_back = now.now - now.deadline <= kRollbackWindow;
    if (can_roll_back && is_member) return Action::RemoveFromParticipants;  // J7
    if (can_roll_back && is_waiting) return Action::RemoveFromWaitList;     // J8
    return Action::ErrorTimeout;                                            // J9
  }
  if (state.complete && size < max && !is_waiting) return Action::AddToWaitList;         // J10
  if (state.complete && size >= max && !is_waiting) return Action::AddToRedundancyList;  // J11
  if (!state.complete && is_member && size >= now.settings.min_nodes && size <= max &&
      state.deadline && *state.deadline < now.now) {
    return Action::MarkComplete;  // J12
  }
  if (!state.complete && !is_member) return Action::AddToParticipants;  // J13
  return is_due(now) ? Action::KeepAlive : Action::Sync;                // J14 J15
}

Action decide_close(const Situation& now) {
  if (now.state.closed) return Action::Finish;              // C1
  if (now.now > now.deadline) return Action::ErrorTimeout;  // C2
  return Action::MarkClosed;                                // C3
}

Action decide_keep_alive(const Situation& now) {
  if (!is_due(now)) return Action::Finish;                  // K3
  if (now.now > now.deadline) return Action::ErrorTimeout;  // K1
  return Action::KeepAlive;                                 // K2
}

bool changes_state(Action action) {
  switch (action) {
    case Action::AddToParticipants:
    case Action::AddToWaitList:
    case Action::AddToRedundancyList:
    case Action::RemoveFromParticipants:
    case Action::RemoveFromWaitList:
    case Action::RemoveFromRedundancyList:
    case Action::MarkComplete:
    case Action::MarkClosed:
      return true;
    default:
      return false;
  }
}

void apply(Action action, const Node& node, const Settings& settings, TimePoint now, State& state) {
  switch (action) {
    case Action::KeepAlive:
      state.last_heartbeats[node] = now;
      return;
    case Action::AddToParticipants:
      add_to_participants(node, settings, now, state);
      break;
    case Action::AddToWaitList:
      state.redundancy_list.erase(node);
      state.wait_list.insert(node);
      break;
    case Action::AddToRedundancyList:
      state.redundancy_list.insert(node);
      break;
    case Action::RemoveFromParticipants:
      state.participants.erase(node);
      state.last_heartbeats.erase(node);
      after_removal(settings, state);
      return;
    case Action::RemoveFromWaitList:
      state.wait_list.erase(node);
      state.last_heartbeats.erase(node);
      return;
    case Action::RemoveFromRedundancyList:
      state.redundancy_list.erase(node);
      state.last_heartbeats.erase(node);
      return;
    case Action::MarkComplete:
      complete(settings, state);
      return;
    case Action::MarkClosed:
      state.closed = true;
      return;
    default:
      MUSTER_ASSERT(false && "not an action on the state");
  }
  // Only the three that add a node come here.
  state.last_heartbeats[node] = now;
  state.min_nodes = settings.min_nodes;
  state.max_nodes = settings.max_nodes;
}

bool drop(const Node& node, const Settings& settings, State& state) {
  const bool was_member = state.participants.erase(node) > 0;
  const bool was_late = state.wait_list.erase(node) + state.redundancy_list.erase(node) > 0;
  state.last_heartbeats.erase(node);
  if (was_member) after_removal(settings, state);
  return was_member || was_late;
}

std::vector<Node> drop_silent(const Settings& settings, TimePoint now, State& state) {
  std::vector<Node> silent;
  for (const auto& [node, heard] : state.last_heartbeats) {
    if (heard < now - settings.window()) silent.push_back(node);
  }
  bool lost_members = false;
  for (const Node& node : silent) {
    lost_members = state.participants.erase(node) > 0 || lost_members;
    state.wait_list.erase(node);
    state.redundancy_list.erase(node);
    state.last_heartbeats.erase(node);
  }
  if (lost_members) after_removal(settings, state);
  return silent;
}

void advance_late(const Settings& settings, TimePoint now, State& state) {
  std::vector<Node> late(state.wait_list.begin(), state.wait_list.end());
  late.insert(late.end(), state.redundancy_list.begin(), state.redundancy_list.end());
  for (const Node& node : late) {
    // Their deadlines are theirs to watch.
    Action action = decide_join({state, settings, node, now, kNever});
    // The end of a last call is for the members to see, when all who waited are in.
    while (changes_state(action) && action != Action::MarkComplete) {
      apply(action, node, settings, now, state);
      action = decide_join({state, settings, node, now, kNever});
    }
  }
}

Result<> check_limits(const State& state, const Settings& settings) {
  if (state.max_nodes == 0) return {};
  if (state.min_nodes == settings.min_nodes && state.max_nodes == settings.max_nodes) return {};
  return fail(
      ErrorKind::Invalid,
      fmt::format("run '{}' was begun with {} to {} nodes, but this node came with {} to {}; "
                  "start every node with the same --nnodes, or use another --rdzv-id",
                  settings.run_id, state.min_nodes, state.max_nodes, settings.min_nodes,
                  settings.max_nodes));
}

std::int64_t count_waiting(const State& state) {
  if (state.complete && count(state) == state.max_nodes) return 0;
  return static_cast<std::int64_t>(state.wait_list.size());
}

bool is_worth_a_signal(const State& before, const State& after) {
  if (before.birth != after.birth || before.round != after.round ||
      before.complete != after.complete || before.closed != after.closed ||
      before.lost != after.lost || before.deadline.has_value() != after.deadline.has_value() ||
      before.last_call_count != after.last_call_count) {
    return true;
  }
  if ((count_waiting(before) > 0) != (count_waiting(after) > 0)) return true;
  // Spares that may come in now.
  return !after.redundancy_list.empty() && count(after) < count(before);
}

}  // namespace muster::rendezvous
