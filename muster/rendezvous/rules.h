// The rules of rendezvous: what a node should do next, and what that does to the State.
//
// Pure functions. Both drivers run them: `SharedDriver` at every node, over a state that is
// compared and set; `Host` once, in the store server. Time is an argument.
//
// An operation is a decision table: the first row that applies gives the Action. The rows' names
// (E1, J7, …) are those of docs/rendezvous.md.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/rendezvous/node.h"
#include "muster/rendezvous/settings.h"
#include "muster/rendezvous/state.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace muster::rendezvous {

enum class Action {
  KeepAlive,
  AddToParticipants,
  AddToWaitList,
  AddToRedundancyList,
  RemoveFromParticipants,
  RemoveFromWaitList,
  RemoveFromRedundancyList,
  MarkComplete,
  MarkClosed,
  Sync,               // nothing to do until something changes
  ErrorClosed,        // the run is closed
  ErrorTimeout,       // the operation's deadline has passed
  ErrorGracefulExit,  // the run is closed and this node was a spare: it ends with success
  Finish,             // the operation is done
};
// As events spell it, e.g. "ADD_TO_PARTICIPANTS".
std::string_view name_of(Action action);

// What a decision depends on. `deadline` is that of the running operation.
struct Situation {
  const State& state;
  const Settings& settings;
  const Node& node;
  TimePoint now;
  TimePoint deadline;
};

// How long after its deadline a join still tries to take its traces back.
inline constexpr Duration kRollbackWindow = std::chrono::seconds(5);

Action decide_exit(const Situation& situation);
Action decide_join(const Situation& situation);
Action decide_close(const Situation& situation);
Action decide_keep_alive(const Situation& situation);

// Whether it changes what the nodes share. KeepAlive does not: signs of life travel apart.
bool changes_state(Action action);

// Carries out an action of `node`. Requires: it is one that changes the state, or KeepAlive.
void apply(Action action, const Node& node, const Settings& settings, TimePoint now, State& state);

// Takes a node that has died out of everything, with what follows from it. False if it was not
// there.
bool drop(const Node& node, const Settings& settings, State& state);

// Drops every node whose last heartbeat is older than the settings' window, and says which.
std::vector<Node> drop_silent(const Settings& settings, TimePoint now, State& state);

// Decides for everybody who waits or is a spare, as each of them would: they all want to be in the
// next round. Whoever writes does it for all of them, so that N nodes that wait are one write and
// not N.
void advance_late(const Settings& settings, TimePoint now, State& state);

// Invalid if the run was begun with other limits than these.
Result<> check_limits(const State& state, const Settings& settings);

// How many nodes wait for a new round. A full group has no room for them, so then it is none.
std::int64_t count_waiting(const State& state);

// Whether those who wait for something should look at `after`: everything but the mere coming and
// going of nodes while a round forms.
bool is_worth_a_signal(const State& before, const State& after);

}  // namespace muster::rendezvous
