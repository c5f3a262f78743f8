#include "muster/observe/event.h"

#include "muster/base/assert.h"
#include "muster/observe/json.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <utility>

namespace muster::observe {
namespace {

constexpr std::array<std::string_view, 7> kStateNames = {
    "RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "SUCCEEDED", "FAILED", "TERMINATED", "RUNNING"};
static_assert(kStateNames.size() == static_cast<std::size_t>(EventState::Running) + 1);

constexpr std::array<std::string_view, 4> kMomentNames = {
    "watchdog started", "timer expired", "kill worker process", "watchdog stopped"};
static_assert(kMomentNames.size() == static_cast<std::size_t>(WatchdogMoment::Stopped) + 1);

template <typename T>
Scalar scalar(const std::optional<T>& value) {
  return value ? Scalar(*value) : Scalar();
}

std::int64_t whole_seconds(Duration length) {
  return std::chrono::duration_cast<std::chrono::seconds>(length).count();
}

double milliseconds(Duration length) {
  return std::chrono::duration<double, std::milli>(length).count();
}

void write_scalar(JsonWriter& json, const Scalar& value) {
  std::visit(
      [&](const auto& held) {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::monostate>) {
          json.null();
        } else {
          json.any(held);
        }
      },
      value);
}

// JSON text inside of JSON, with each of a worker's values in an array of its own: PyTorch's
// records have it so.
std::string inner_metadata(const JobFacts& job, const AgentFacts& agent,
                           const WorkerFacts* worker) {
  JsonWriter json;
  json.begin_object();
  json.field("group_world_size", agent.group_world_size);
  json.field("entry_point", job.entry_point);
  if (worker != nullptr) {
    const auto alone = [&](std::string_view key, const std::optional<std::int64_t>& value) {
      json.key(key).begin_array().any(value).end_array();
    };
    alone("local_rank", worker->local_rank);
    alone("role_rank", worker->role_rank);
    alone("role_world_size", worker->role_world_size);
    alone("exit_code", worker->exit_code);
    alone("worker_pid", worker->pid);
  }
  return json.end_object().take();
}

Event make(std::string name, const JobFacts& job, const AgentFacts& agent,
           const WorkerFacts* worker, std::string_view state, const EventDetails& details) {
  Event event;
  event.name = std::move(name);
  event.source = worker != nullptr ? EventSource::Worker : EventSource::Agent;
  event.timestamp_ms = details.timestamp_ms;
  std::optional<std::string> worker_id;
  if (worker != nullptr && worker->pid) worker_id = fmt::to_string(*worker->pid);
  std::optional<double> duration_ms;
  if (details.duration) duration_ms = milliseconds(*details.duration);
  event.metadata = {
      {"run_id", job.run_id},
      {"global_rank", worker != nullptr ? scalar(worker->global_rank) : Scalar()},
      {"group_rank", scalar(agent.group_rank)},
      {"worker_id", scalar(worker_id)},
      {"role", job.role},
      {"hostname", job.hostname},
      {"state", std::string(state)},
      {"total_run_time", whole_seconds(agent.run_time)},
      {"rdzv_backend", job.rdzv_backend},
      {"raw_error", scalar(details.raw_error)},
      {"metadata", inner_metadata(job, agent, worker)},
      {"agent_restarts", agent.restarts_used},
      {"duration_ms", scalar(duration_ms)},
  };
  event.metadata.insert(event.metadata.end(), details.more.begin(), details.more.end());
  return event;
}

std::string status_name(EventState state) {
  return fmt::format("torchelastic.worker.status.{}", name_of(state));
}

// As Python writes a float: 12.0, not 12.
std::string python_float(double value) {
  JsonWriter json;
  return json.number(value).take();
}

}  // namespace

std::string_view name_of(EventSource source) {
  return source == EventSource::Agent ? "AGENT" : "WORKER";
}

std::string_view name_of(EventState state) { return kStateNames[static_cast<std::size_t>(state)]; }

std::string_view name_of(WatchdogMoment moment) {
  return kMomentNames[static_cast<std::size_t>(moment)];
}

std::string to_json(const Event& event) {
  JsonWriter json;
  json.begin_object();
  json.field("name", event.name);
  json.field("source", name_of(event.source));
  json.field("timestamp", event.timestamp_ms);
  json.key("metadata").begin_object();
  for (const EventField& field : event.metadata) {
    json.key(field.key);
    write_scalar(json, field.value);
  }
  return json.end_object().end_object().take();
}

Event agent_event(const JobFacts& job, const AgentFacts& agent, EventState state,
                  const EventDetails& details) {
  return make(status_name(state), job, agent, nullptr, name_of(state), details);
}

Event worker_event(const JobFacts& job, const AgentFacts& agent, const WorkerFacts& worker,
                   EventState state, const EventDetails& details) {
  return make(status_name(state), job, agent, &worker, name_of(state), details);
}

Event muster_event(std::string_view name, const JobFacts& job, const AgentFacts& agent,
                   const std::optional<WorkerFacts>& worker, std::string_view state,
                   const EventDetails& details) {
  return make(fmt::format("muster.{}", name), job, agent, worker ? &*worker : nullptr, state,
              details);
}

Event watchdog_event(const JobFacts& job, const AgentFacts& agent, WatchdogMoment moment,
                     const std::optional<WatchdogTimer>& timer) {
  MUSTER_ASSERT(timer ||
                (moment != WatchdogMoment::TimerExpired && moment != WatchdogMoment::KillWorker));
  JsonWriter inner;
  inner.begin_object();
  inner.field("watchdog_event", name_of(moment));
  if (timer) {
    inner.field("worker_pid", fmt::to_string(timer->worker_pid));
    inner.field("scope_id", timer->scope_id);
    inner.field("expiration_time", python_float(timer->expiration_time));
    inner.field("signal", fmt::to_string(timer->signal));
  }
  inner.end_object();
  Event event = make(std::string(name_of(moment)), job, agent, nullptr,
                     name_of(EventState::Running), EventDetails{});
  // These have no duration, and an inner text of their own.
  MUSTER_ASSERT(event.metadata.back().key == "duration_ms");
  event.metadata.pop_back();
  for (EventField& field : event.metadata) {
    if (field.key == "metadata") field.value = inner.take();
  }
  return event;
}

std::string to_json(const RendezvousRecord& record) {
  JsonWriter json;
  json.begin_object();
  json.field("name", record.name);
  json.field("run_id", record.run_id);
  json.field("message", record.message);
  json.field("hostname", record.hostname);
  json.field("pid", record.pid);
  json.field("node_state", record.node_state);
  json.field("master_endpoint", record.master_endpoint);
  json.field("rank", record.rank);
  json.field("local_id", record.local_id);
  json.field("error_trace", record.error_trace);
  json.field("timestamp", record.timestamp_ms);
  return json.end_object().take();
}

}  // namespace muster::observe
