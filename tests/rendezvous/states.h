// Nodes, settings and states for tests of the rendezvous, and what must hold of every state.
#pragma once

#include "muster/rendezvous/node.h"
#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/settings.h"
#include "muster/rendezvous/state.h"
#include "tests/rendezvous/invariants.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace muster::rendezvous {

// For messages of GoogleTest.
inline void PrintTo(const Node& node, std::ostream* out) { *out << describe(node); }
inline void PrintTo(Action action, std::ostream* out) { *out << name_of(action); }

namespace testing {

inline Node node(std::string_view addr) {
  return {.addr = std::string(addr), .pid = 1, .local_id = 0, .nonce = 1};
}

// As in the specification's scenarios: 30 seconds between signs of life, dead after 90.
inline Settings settings(std::int64_t min_nodes, std::int64_t max_nodes) {
  Settings settings;
  settings.run_id = "run";
  settings.min_nodes = min_nodes;
  settings.max_nodes = max_nodes;
  settings.keep_alive_interval = std::chrono::seconds(30);
  settings.keep_alive_max_attempt = 3;
  return settings;
}

inline void check_invariants(const State& state, const Settings& settings) {
  EXPECT_EQ(what_is_wrong_with(state, settings.min_nodes, settings.max_nodes), "");
}

}  // namespace testing
}  // namespace muster::rendezvous
