// What the agent lets the world know; see agent.h.
#include "muster/agent/agent.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace muster::agent {

observe::AgentFacts Agent::agent_facts() const {
  observe::AgentFacts facts;
  if (round_) {
    facts.group_rank = round_->info.rank;
    facts.group_world_size = round_->info.world_size;
  }
  facts.run_time = now() - began_;
  facts.restarts_used = restarts_used();
  return facts;
}

observe::WorkerFacts Agent::worker_facts(const Worker& worker) const {
  observe::WorkerFacts facts;
  facts.global_rank = worker.rank;
  facts.local_rank = worker.local_rank;
  facts.role_rank = worker.role_rank;
  facts.role_world_size = crew_ ? crew_->facts().ranks.role_world_size : 0;
  facts.pid = worker.pid();
  if (worker.process && worker.process->exit()) facts.exit_code = worker.process->exit()->code;
  return facts;
}

void Agent::record_agent(observe::EventState state, observe::EventDetails details) {
  parts_.records.events().record(
      observe::agent_event(parts_.records.job(), agent_facts(), state, details));
}

void Agent::record_worker(const Worker& worker, observe::EventState state,
                          observe::EventDetails details) {
  parts_.records.events().record(observe::worker_event(parts_.records.job(), agent_facts(),
                                                       worker_facts(worker), state, details));
}

void Agent::record_own(std::string_view name, std::string_view state,
                       observe::EventDetails details) {
  parts_.records.events().record(
      observe::muster_event(name, parts_.records.job(), agent_facts(), {}, state, details));
}

void Agent::record_end() {
  const bool failed = ending_.outcome == Outcome::Failed;
  if (crew_) {
    for (const Worker& worker : crew_->workers()) {
      observe::EventDetails details;
      observe::EventState state = observe::EventState::Succeeded;
      if (worker.failure) {
        state = worker.failure->collateral ? observe::EventState::Terminated
                                           : observe::EventState::Failed;
        details.raw_error = failures::raw_error(*worker.failure);
      } else if (failed) {
        state = observe::EventState::Terminated;
      }
      record_worker(worker, state, std::move(details));
    }
  }
  observe::EventDetails details;
  const bool returned =
      ending_.outcome == Outcome::Succeeded || failed || ending_.outcome == Outcome::Released;
  if (!returned) {
    details.raw_error =
        ending_.message.empty() ? std::string(name_of(ending_.outcome)) : ending_.message;
  }
  record_agent(returned ? observe::EventState::Succeeded : observe::EventState::Failed,
               std::move(details));
  parts_.records.metrics().timed(observe::Phase::Run, now() - began_, returned);
  parts_.records.metrics().run_ended(failed, static_cast<int>(restarts_left()));
}

void Agent::show_state() {
  parts_.records.metrics().group_is(supervisor_.state(), static_cast<int>(restarts_left()));
  observe::WorkerCounts counts;
  if (crew_) {
    for (const Worker& worker : crew_->workers()) {
      if (!worker.process) continue;
      if (worker.process->is_running()) {
        ++counts.running;
      } else if (!worker.failure) {
        ++counts.succeeded;
      } else if (worker.failure->collateral) {
        ++counts.stopped;
      } else {
        ++counts.failed;
      }
    }
  }
  parts_.records.metrics().workers_are(counts);
  const logs::OutputCounts printed = parts_.crew.output.counts();
  parts_.records.metrics().log_totals("all", printed.bytes, printed.lines);
}

observe::HealthFacts Agent::health() const {
  observe::HealthFacts facts;
  facts.state = supervisor_.state();
  facts.phase = std::string(name_of(supervisor_.phase()));
  if (round_) facts.round = static_cast<std::int64_t>(round_->placing.round);
  // An agent that answers is alive; what may have stopped are its workers.
  if (signs_ && supervisor_.phase() == Phase::Running) facts.progress_age = signs_->silence(now());
  return facts;
}

std::string Agent::status_json() const {
  GroupTable table;
  table.run_id = config().rendezvous.run_id;
  table.role = config().role;
  table.host = parts_.crew.host_name;
  table.phase = std::string(name_of(supervisor_.phase()));
  table.state = std::string(observe::name_of(supervisor_.state()));
  table.restarts_used = restarts_used();
  table.restarts_max = config().max_restarts;
  table.log_folder = parts_.crew.log_folder.path();
  if (round_) {
    table.round = round_->placing.round;
    table.node_rank = round_->info.rank;
    table.node_count = round_->info.world_size;
    table.master = fmt::format("{}:{}", round_->info.bootstrap.master_addr,
                               round_->info.bootstrap.master_port);
  }
  if (crew_) {
    for (const Worker& worker : crew_->workers()) {
      if (!worker.process) continue;
      GroupTable::Row row;
      row.local_rank = worker.local_rank;
      row.rank = worker.rank;
      row.pid = worker.pid();
      if (const auto& exit = worker.process->exit()) row.exit_code = exit->code;
      row.status = worker.status;
      const auto seconds = [](Duration length) {
        return std::chrono::duration<double>(length).count();
      };
      row.running_seconds = seconds(now() - worker.started);
      if (signs_) {
        row.ready = signs_->is_ready(worker.local_rank);
        const auto alive = signs_->last_alive(worker.local_rank);
        if (alive) row.alive_seconds_ago = seconds(now() - *alive);
      }
      table.workers.push_back(std::move(row));
    }
  }
  return to_json(table);
}

std::string to_json(const GroupTable& table) {
  namespace json = boost::json;
  json::array workers;
  for (const GroupTable::Row& row : table.workers) {
    json::object object{{"local_rank", row.local_rank}, {"rank", row.rank}, {"pid", row.pid}};
    object["exit_code"] = row.exit_code ? json::value(*row.exit_code) : json::value();
    object["ready"] = row.ready;
    object["alive_seconds_ago"] =
        row.alive_seconds_ago ? json::value(*row.alive_seconds_ago) : json::value();
    object["running_seconds"] = row.running_seconds;
    object["status"] = row.status;
    workers.push_back(std::move(object));
  }
  json::object object{{"run_id", table.run_id},
                      {"role", table.role},
                      {"host", table.host},
                      {"phase", table.phase},
                      {"state", table.state}};
  object["round"] = table.round ? json::value(*table.round) : json::value();
  object["node_rank"] = table.node_rank;
  object["node_count"] = table.node_count;
  object["restarts_used"] = table.restarts_used;
  object["restarts_max"] = table.restarts_max;
  object["master"] = table.master;
  object["log_folder"] = table.log_folder;
  object["workers"] = std::move(workers);
  return json::serialize(object);
}

}  // namespace muster::agent
