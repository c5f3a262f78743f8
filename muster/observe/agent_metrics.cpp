#include "muster/observe/agent_metrics.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <utility>

namespace muster::observe {
namespace {

struct PhaseName {
  std::string_view ours;
  std::string_view theirs;
};
constexpr std::array<PhaseName, 8> kPhaseNames = {{
    {"run", "SimpleElasticAgent.run"},
    {"rendezvous", "SimpleElasticAgent._rendezvous"},
    {"assign_ranks", "SimpleElasticAgent._assign_worker_ranks"},
    {"initialize", "SimpleElasticAgent._initialize_workers"},
    {"restart", "SimpleElasticAgent._restart_workers"},
    {"start", "LocalElasticAgent._start_workers"},
    {"stop", "LocalElasticAgent._stop_workers"},
    {"monitor", "LocalElasticAgent._monitor_workers"},
}};
static_assert(kPhaseNames.size() == static_cast<std::size_t>(Phase::Monitor) + 1);

double seconds(Duration length) { return std::chrono::duration<double>(length).count(); }

}  // namespace

int flakiness(bool failed, int remaining_restarts, int max_restarts) {
  if (failed || max_restarts < 0) return 100;
  return 100 * (max_restarts - remaining_restarts) / (max_restarts + 1);
}

AgentMetrics::AgentMetrics(Registry& registry, DataPoints& points, std::string role,
                           int max_restarts)
    : registry_(registry), points_(points), role_(std::move(role)), max_restarts_(max_restarts) {
  // What can be counted is there from the start, so that a rate over it misses nothing.
  registry_.counter("muster_rounds_total", "Rounds that began on this agent.", {{"role", role_}});
  for (const std::string_view cause : {"failure", "peer failure", "arrival", "departure"}) {
    counter("muster_restarts_total", "New rounds of this agent's workers, by cause.", "cause",
            cause);
  }
  for (const std::string_view outcome : {"success", "error", "signal"}) {
    counter("muster_worker_exits_total", "Workers that ended, by how.", "outcome", outcome);
  }
}

Counter& AgentMetrics::counter(std::string_view name, std::string_view help, std::string_view label,
                               std::string_view value) {
  return registry_.counter(name, help, {{"role", role_}, {std::string(label), std::string(value)}});
}

void AgentMetrics::group_is(GroupState state, int remaining_restarts) {
  const auto point_name = [&](GroupState which) {
    return fmt::format("workers.{}.{}", role_, lower_name_of(which));
  };
  points_.put(fmt::format("workers.{}.remaining_restarts", role_), remaining_restarts);
  points_.put(point_name(state), 1);
  // A handler only ever hears of the state that is; a page of last values must not show them all.
  if (state_ != state) points_.correct(point_name(state_), 0);
  state_ = state;
  registry_.gauge("muster_remaining_restarts", "Restarts left in the budget.", {{"role", role_}})
      .set(remaining_restarts);
  for (std::size_t index = 0; index < kGroupStateNames.size(); ++index) {
    const auto each = static_cast<GroupState>(index);
    registry_
        .gauge("muster_group_state", "1 for the state the local worker group is in.",
               {{"role", role_}, {"state", lower_name_of(each)}})
        .set(each == state ? 1 : 0);
  }
}

void AgentMetrics::workers_are(const WorkerCounts& counts) {
  const auto set = [&](std::string_view state, int count) {
    registry_
        .gauge("muster_workers", "Local workers, by state.",
               {{"role", role_}, {"state", std::string(state)}})
        .set(count);
  };
  set("starting", counts.starting);
  set("running", counts.running);
  set("succeeded", counts.succeeded);
  set("failed", counts.failed);
  set("stopped", counts.stopped);
}

void AgentMetrics::timed(Phase phase, Duration duration, bool success) {
  const PhaseName& name = kPhaseNames[static_cast<std::size_t>(phase)];
  points_.timed(name.theirs, duration, success);
  registry_
      .histogram("muster_phase_duration_seconds", "How long the agent's phases took.",
                 {{"role", role_}, {"phase", std::string(name.ours)}}, duration_bounds())
      .observe(seconds(duration));
}

void AgentMetrics::run_ended(bool failed, int remaining_restarts) {
  const auto put = [&](std::string_view name, int value) {
    points_.put(fmt::format("workers.{}.{}", role_, name), value);
  };
  const bool retried = remaining_restarts < max_restarts_;
  put("flakiness", flakiness(failed, remaining_restarts, max_restarts_));
  put("run_total", 1);
  put("run_success_with_retries", !failed && retried ? 1 : 0);
  put("run_success_no_retries", !failed && !retried ? 1 : 0);
  put("run_failed_with_retries", failed && retried ? 1 : 0);
  put("run_failed_no_retries", failed && !retried ? 1 : 0);
}

void AgentMetrics::round_began(std::int64_t round) {
  registry_.gauge("muster_round", "Number of the current round.", {{"role", role_}})
      .set(static_cast<double>(round));
  registry_.counter("muster_rounds_total", "Rounds that began on this agent.", {{"role", role_}})
      .add();
}

void AgentMetrics::round_ended(Duration duration) {
  // Rounds last from seconds to weeks.
  static const std::vector<double> bounds = {1,    5,    10,    30,    60,     300,
                                             1800, 3600, 21600, 86400, 604800, 2592000};
  registry_
      .histogram("muster_round_duration_seconds", "How long the workers of a round ran.",
                 {{"role", role_}}, bounds)
      .observe(seconds(duration));
}

void AgentMetrics::restarted(std::string_view cause) {
  counter("muster_restarts_total", "New rounds of this agent's workers, by cause.", "cause", cause)
      .add();
}

void AgentMetrics::worker_exited(int code) {
  const std::string_view outcome = code == 0 ? "success" : code > 0 ? "error" : "signal";
  counter("muster_worker_exits_total", "Workers that ended, by how.", "outcome", outcome).add();
}

void AgentMetrics::watchdog_expired(std::string_view kind) {
  counter("muster_watchdog_expiries_total", "Deadlines of workers that passed, by kind.", "kind",
          kind)
      .add();
}

void AgentMetrics::log_totals(std::string_view stream, std::uint64_t bytes, std::uint64_t lines) {
  counter("muster_log_bytes_total", "Bytes of worker output that went through the agent.", "stream",
          stream)
      .advance_to(static_cast<double>(bytes));
  counter("muster_log_lines_total", "Lines of worker output that went through the agent.", "stream",
          stream)
      .advance_to(static_cast<double>(lines));
}

void AgentMetrics::count_events(EventLog& events) {
  Counter& recorded = registry_.counter("muster_events_total", "Events that were recorded.");
  Counter& lost =
      registry_.counter("muster_events_lost_total", "Events that a sink could not write.");
  events.set_observer([&recorded](std::string_view) { recorded.add(); });
  registry_.before_text(
      [&events, &lost] { lost.advance_to(static_cast<double>(events.lost_count())); });
}

}  // namespace muster::observe
