// AgentMetrics: every metric of an agent, and the names they have.
//
// PyTorch's names go through DataPoints (see there); Muster's own are, all with the label `role`:
//
//   muster_group_state{state}            1 for the state the group is in, else 0
//   muster_workers{state}                local workers by state: starting, running, succeeded,
//                                        failed, stopped
//   muster_remaining_restarts            restarts left in the budget
//   muster_restarts_total{cause}         new rounds by cause
//   muster_round                         number of the current round
//   muster_rounds_total                  rounds that began here
//   muster_round_duration_seconds        how long workers ran in a round
//   muster_phase_duration_seconds{phase} rendezvous, assign_ranks, initialize, start, stop,
//   restart,
//                                        run (monitor: nothing is polled here)
//   muster_worker_exits_total{outcome}   success, error, signal
//   muster_log_bytes_total{stream}, muster_log_lines_total{stream}
//   muster_watchdog_expiries_total{kind}
//   muster_events_total, muster_events_lost_total   (without role)
//   muster_http_requests_total{path,status}         (without role)
//
// Owned by the agent; lives on its loop.
#pragma once

#include "muster/base/clock.h"
#include "muster/observe/data_points.h"
#include "muster/observe/event_log.h"
#include "muster/observe/group_state.h"
#include "muster/observe/metrics.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace muster::observe {

// What the agent times. The comment is the name that PyTorch's metrics have for it.
enum class Phase {
  Run,           // SimpleElasticAgent.run
  Rendezvous,    // SimpleElasticAgent._rendezvous
  AssignRanks,   // SimpleElasticAgent._assign_worker_ranks
  Initialize,    // SimpleElasticAgent._initialize_workers: the two above and Start
  Restart,       // SimpleElasticAgent._restart_workers: Stop and Initialize
  StartWorkers,  // LocalElasticAgent._start_workers
  StopWorkers,   // LocalElasticAgent._stop_workers
  Monitor,       // LocalElasticAgent._monitor_workers
};

struct WorkerCounts {
  int starting = 0;
  int running = 0;
  int succeeded = 0;
  int failed = 0;
  int stopped = 0;
};

// 100 for a run that failed; else how much of the budget was used, in percent of one more than the
// budget, rounded down.
int flakiness(bool failed, int remaining_restarts, int max_restarts);

class AgentMetrics {
 public:
  // Requires: both outlive it.
  AgentMetrics(Registry& registry, DataPoints& points, std::string role, int max_restarts);

  // Whenever the group's state or budget has changed or was looked at.
  void group_is(GroupState state, int remaining_restarts);
  void workers_are(const WorkerCounts& counts);
  void timed(Phase phase, Duration duration, bool success);
  // Once, at the end of the run.
  void run_ended(bool failed, int remaining_restarts);

  void round_began(std::int64_t round);
  void round_ended(Duration duration);
  // `cause`: "failure", "peer failure", "arrival", "departure", "expulsion"
  void restarted(std::string_view cause);
  // `code` as in worker events: minus the signal's number for a signal.
  void worker_exited(int code);
  void watchdog_expired(std::string_view kind);
  // Totals so far; `stream` is "stdout", "stderr" or "all" for both.
  void log_totals(std::string_view stream, std::uint64_t bytes, std::uint64_t lines);

  // Counts what `events` records from now on. Requires: `events` is destroyed or gets another
  // observer before this goes; and both live when the registry's text is asked for.
  void count_events(EventLog& events);

 private:
  Counter& counter(std::string_view name, std::string_view help, std::string_view label,
                   std::string_view value);

  Registry& registry_;
  DataPoints& points_;
  const std::string role_;
  const int max_restarts_;
  GroupState state_ = GroupState::Init;
};

// Adds the process_… metrics (memory, CPU time, descriptors, threads, start time) of this process;
// they are read from /proc when the text is asked for.
void add_process_metrics(Registry& registry);

}  // namespace muster::observe
