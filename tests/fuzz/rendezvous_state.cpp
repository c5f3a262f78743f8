// The stored state of a run, whatever the bytes: it is refused, or it is one that can be and stays
// one, whoever joins it, leaves it or dies.
#include "muster/base/assert.h"
#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/state_codec.h"
#include "tests/rendezvous/invariants.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

constexpr TimePoint kNow(std::chrono::hours(1));

void check(const State& state) {
  MUSTER_ASSERT(testing::what_is_wrong_with(state, state.min_nodes, state.max_nodes).empty());
}

// What an observer adds: times.
State with_times(State state) {
  for (const auto& [node, rank] : state.participants) state.last_heartbeats[node] = kNow;
  for (const Node& node : state.wait_list) state.last_heartbeats[node] = kNow;
  for (const Node& node : state.redundancy_list) state.last_heartbeats[node] = kNow;
  if (state.deadline) state.deadline = kNow - Duration(1);
  return state;
}

// Does what the rules say for `node` until they say nothing more.
State join(State state, const Node& node, const Settings& settings) {
  for (int step = 0;; ++step) {
    MUSTER_ASSERT(step < 10);
    const Action action = decide_join({state, settings, node, kNow, kNever});
    if (!changes_state(action)) return state;
    apply(action, node, settings, kNow, state);
    check(state);
  }
}

void run(std::string_view input) {
  const auto decoded = decode(input);
  if (!decoded) {
    MUSTER_ASSERT(decoded.error().kind == ErrorKind::Corrupt && !decoded.error().message.empty());
    return;
  }
  // There is one form of every state.
  MUSTER_ASSERT(encode(*decoded) == input);
  const State state = with_times(*decoded);
  check(state);

  Settings settings;
  settings.run_id = "run";
  settings.min_nodes = state.max_nodes == 0 ? 1 : state.min_nodes;
  settings.max_nodes = state.max_nodes == 0 ? 1 : state.max_nodes;
  MUSTER_ASSERT(check_limits(state, settings).has_value());
  const State joined = join(state, {"newcomer", 1, 0, 1}, settings);
  MUSTER_ASSERT(joined.round == state.round && joined.closed == state.closed);
  MUSTER_ASSERT(state.closed || joined.last_heartbeats.contains({"newcomer", 1, 0, 1}));
  std::vector<Node> nodes;
  for (const auto& [node, heard] : state.last_heartbeats) nodes.push_back(node);
  if (nodes.size() > 20) nodes.resize(20);
  for (const Node& node : nodes) {
    check(join(state, node, settings));
    State dropped = state;
    MUSTER_ASSERT(drop(node, settings, dropped));
    check(dropped);
    MUSTER_ASSERT(dropped.round >= state.round);
  }
  State silent = state;
  MUSTER_ASSERT(drop_silent(settings, kNow + settings.window() + Duration(1), silent).size() ==
                state.last_heartbeats.size());
  check(silent);
}

}  // namespace
}  // namespace muster::rendezvous

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // In memory of exactly its size, so that AddressSanitizer notices every byte read past it.
  const std::vector<char> exact(data, data + size);
  muster::rendezvous::run({exact.data(), exact.size()});
  return 0;
}
