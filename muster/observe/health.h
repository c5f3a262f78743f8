// What `GET /healthz` says: does this agent make progress?
//
// Pure. It is an answer about the agent, for a job manager that restarts what hangs: a group that
// is between rounds, restarts or has failed is healthy as long as the agent gets on with it.
// Unhealthy are an agent whose last progress is too old and a group in state UNHEALTHY or UNKNOWN.
#pragma once

#include "muster/base/clock.h"
#include "muster/observe/group_state.h"

#include <cstdint>
#include <optional>
#include <string>

namespace muster::observe {

// PyTorch's.
inline constexpr Duration kHealthTimeout = std::chrono::seconds(60);

struct HealthFacts {
  GroupState state = GroupState::Init;
  std::string phase = {};                    // what the agent is doing, e.g. "rendezvous"
  std::optional<std::int64_t> round = {};    // before the first round: nothing
  Duration progress_age = Duration::zero();  // since the last progress
  Duration timeout = kHealthTimeout;
};

struct HealthAnswer {
  int status = 200;  // or 503
  std::string body;  // JSON
};

HealthAnswer judge(const HealthFacts& facts);

}  // namespace muster::observe
