// Event: one thing that happened to a job, as a record that other programs read.
//
// The records are those of PyTorch's elastic agent (name, source, timestamp, flat metadata; keys
// and their order included), so that what reads those reads ours. Two things differ: the times are
// real, and Muster adds events and metadata of its own behind the known ones, under names that
// begin with `muster.`.
//
// Pure: the time is given, or left at 0 for the EventLog to fill in.
#pragma once

#include "muster/base/clock.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace muster::observe {

enum class EventSource { Agent, Worker };
// "AGENT", "WORKER".
std::string_view name_of(EventSource source);

// The states of agent and worker events; each is a part of the event's name and of its metadata.
enum class EventState {
  Rendezvous,         // AGENT: a round was joined; has a duration
  AssignWorkerRanks,  // AGENT: has a duration
  Start,              // WORKER: it was started
  Succeeded,          // WORKER, or AGENT: the run returned, whatever the workers did
  Failed,             // WORKER, or AGENT: an error or a signal ended the run
  Terminated,         // WORKER: stopped without a failure of its own in a group that failed
  Running,            // AGENT: events of the watchdog
};
// "RENDEZVOUS", "ASSIGN_WORKER_RANKS", …
std::string_view name_of(EventState state);

// null, a boolean, a number or text.
using Scalar = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

struct EventField {
  std::string key;
  Scalar value = {};

  friend bool operator==(const EventField&, const EventField&) = default;
};

struct Event {
  std::string name;
  EventSource source = EventSource::Agent;
  std::int64_t timestamp_ms = 0;  // wall clock; 0: the EventLog's time of recording
  std::vector<EventField> metadata = {};

  friend bool operator==(const Event&, const Event&) = default;
};

// One line of JSON, without a newline.
std::string to_json(const Event& event);

// What stays the same as long as the agent lives.
struct JobFacts {
  std::string run_id;
  std::string role;
  std::string hostname;  // fully qualified
  std::string rdzv_backend;
  std::string entry_point;
};

// Where the agent stands at the moment of an event.
struct AgentFacts {
  std::optional<std::int64_t> group_rank = {};
  std::optional<std::int64_t> group_world_size = {};
  Duration run_time = Duration::zero();
  std::int64_t restarts_used = 0;
};

struct WorkerFacts {
  std::optional<std::int64_t> global_rank = {};
  std::int64_t local_rank = 0;
  std::optional<std::int64_t> role_rank = {};
  std::optional<std::int64_t> role_world_size = {};
  std::optional<std::int64_t> pid = {};
  std::optional<std::int64_t> exit_code = {};  // minus the signal's number for a signal
};

// What only some events have.
struct EventDetails {
  std::optional<std::string> raw_error = {};  // the error file's JSON text, or a message
  std::optional<Duration> duration = {};
  std::vector<EventField> more = {};  // Muster's own metadata, behind the known keys
  std::int64_t timestamp_ms = 0;
};

// "torchelastic.worker.status.<state>" for both: PyTorch names agents' events so, too.
Event agent_event(const JobFacts& job, const AgentFacts& agent, EventState state,
                  const EventDetails& details);
Event worker_event(const JobFacts& job, const AgentFacts& agent, const WorkerFacts& worker,
                   EventState state, const EventDetails& details);

// Muster's own live events: a worker failed, a round began, … The name gets the prefix "muster.";
// `state` is free text, the source is WORKER when there is a worker.
Event muster_event(std::string_view name, const JobFacts& job, const AgentFacts& agent,
                   const std::optional<WorkerFacts>& worker, std::string_view state,
                   const EventDetails& details);

enum class WatchdogMoment { Started, TimerExpired, KillWorker, Stopped };
// "watchdog started", "timer expired", "kill worker process", "watchdog stopped".
std::string_view name_of(WatchdogMoment moment);

struct WatchdogTimer {
  std::int64_t worker_pid = 0;
  std::string scope_id;
  double expiration_time = 0;  // seconds since 1970, as the worker gave it
  int signal = 0;
};

// Requires: with a timer for TimerExpired and KillWorker.
Event watchdog_event(const JobFacts& job, const AgentFacts& agent, WatchdogMoment moment,
                     const std::optional<WatchdogTimer>& timer);

// A rendezvous event has a record of its own kind: flat, without source and metadata.
struct RendezvousRecord {
  std::string name;
  std::string run_id;
  std::string message;
  std::string hostname;
  std::int64_t pid = 0;
  std::string node_state;  // "INIT", "RUNNING", "SUCCEEDED", "FAILED"
  std::string master_endpoint;
  std::optional<std::int64_t> rank = {};
  std::optional<std::int64_t> local_id = {};
  std::string error_trace;
  std::int64_t timestamp_ms = 0;  // Muster's addition, last; 0: the EventLog's time of recording
};
std::string to_json(const RendezvousRecord& record);

}  // namespace muster::observe
