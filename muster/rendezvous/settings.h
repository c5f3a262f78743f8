// Settings: what the nodes of one run agree on. Made and checked by `create`; from then on they are
// passed on as they are.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace muster::rendezvous {

struct Parameters;

// No time limit is longer, so that sums of a few of them stay far from overflowing.
inline constexpr Duration kSettingDurationMax = std::chrono::hours(24) * 365 * 50;

struct TimeoutOptions {
  std::optional<Duration> join = {};
  std::optional<Duration> last_call = {};
  std::optional<Duration> regroup = {};
  std::optional<Duration> close = {};
  std::optional<Duration> heartbeat = {};
};

struct Timeouts {
  // What is not set gets its default. Invalid, naming the timeout and its value, for a length of
  // zero or less, or above kSettingDurationMax.
  static Result<Timeouts> create(const TimeoutOptions& options);

  // One next_rendezvous: leaving the old round and joining the new one together.
  Duration join = std::chrono::seconds(600);
  // From the moment `min_nodes` is reached until the round completes with fewer than `max_nodes`.
  Duration last_call = std::chrono::seconds(30);
  // Likewise in every round but the first: whoever is known has come when such a round opens, so it
  // need not wait for long. Nothing: as long as `last_call`.
  std::optional<Duration> regroup = {};
  // One set_closed or shutdown.
  Duration close = std::chrono::seconds(30);
  // One keep-alive.
  Duration heartbeat = std::chrono::seconds(5);

  Duration last_call_of(std::uint64_t round) const {
    return round == 0 ? last_call : regroup.value_or(last_call);
  }

  friend bool operator==(const Timeouts&, const Timeouts&) = default;
};

struct Settings {
  // Returns `settings` if they can be used. Invalid for an empty run id, `min_nodes` < 1,
  // `max_nodes` < `min_nodes`, a timeout, a keep-alive interval or a number of attempts that is not
  // positive, a negative grace, and for lengths of time above kSettingDurationMax.
  static Result<Settings> create(Settings settings);

  std::string run_id = {};
  std::int64_t min_nodes = 1;
  std::int64_t max_nodes = 1;
  Timeouts timeouts = {};
  Duration keep_alive_interval = std::chrono::seconds(5);
  std::int64_t keep_alive_max_attempt = 3;
  // How long a node whose connection broke may take to come back before it counts as gone.
  Duration grace = std::chrono::milliseconds(500);

  // A node that was silent for longer counts as dead.
  Duration window() const { return keep_alive_interval * keep_alive_max_attempt; }

  friend bool operator==(const Settings&, const Settings&) = default;
};

// Reads the options `join_timeout`, `last_call_timeout`, `regroup_timeout`, `close_timeout`,
// `heartbeat_timeout`, `keep_alive_interval`, `keep_alive_max_attempt` and `grace`. Null counts as
// unset, except for the two of the keep-alive, for which it is an error.
Result<Settings> settings_from(const Parameters& parameters);

}  // namespace muster::rendezvous
