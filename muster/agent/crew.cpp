#include "muster/agent/crew.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/failures/error_file.h"
#include "muster/launch/command.h"
#include "muster/logs/recent.h"
#include "muster/watchdog/lineage.h"

#include <fmt/format.h>

#include <csignal>
#include <ctime>
#include <unistd.h>
#include <utility>

namespace muster::agent {
namespace {

// How long what a leaked descendant holds open may delay us after the workers have ended.
constexpr Duration kDrainTime = std::chrono::seconds(5);

std::int64_t nanoseconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

process::Placement placement_of(const launch::LaunchConfig& config, int local_rank) {
  process::Placement placement;
  if (config.bindings.empty()) return placement;
  const launch::Binding& binding = config.bindings.at(static_cast<std::size_t>(local_rank));
  placement.cpus = binding.cpus;
  switch (config.numa_memory) {
    case launch::NumaMemory::Default:
      return placement;
    case launch::NumaMemory::Bind:
      placement.memory = process::Placement::Memory::Bind;
      break;
    case launch::NumaMemory::Prefer:
      placement.memory = process::Placement::Memory::Prefer;
      break;
  }
  placement.nodes = binding.nodes;
  return placement;
}

}  // namespace

Crew::Crew(CrewSurroundings& surroundings, RoundFacts facts, std::function<void(Worker&)> exited)
    : surroundings_(surroundings), facts_(std::move(facts)), exited_(std::move(exited)) {}

Crew::~Crew() = default;

Result<> Crew::start() {
  const int count = static_cast<int>(facts_.worker_count);
  auto attempt = surroundings_.log_folder.start_attempt(static_cast<int>(facts_.restart_count),
                                                        static_cast<int>(facts_.round), count);
  if (!attempt) return fail(std::move(attempt.error()));
  attempt_ = std::move(*attempt);
  auto begun = surroundings_.output.start_round(static_cast<int>(facts_.round), attempt_);
  if (!begun) return fail(std::move(begun.error()));

  auto cgroup = process::Cgroup::create(
      fmt::format("muster-{}-{}", static_cast<std::int64_t>(::getpid()), facts_.round));
  if (cgroup) {
    cgroup_ = std::move(*cgroup);
    if (surroundings_.guard != nullptr) surroundings_.guard->watch_cgroup(cgroup_->folder());
  } else {
    log::debug("agent", "the workers get no cgroup of their own: {}", cgroup.error().message);
  }
  failures::OutOfMemorySources sources;
  if (cgroup_) sources.group_folder = cgroup_->folder();
  memory_before_ = failures::read_out_of_memory_counts(sources);

  workers_.reserve(static_cast<std::size_t>(count));
  for (int local_rank = 0; local_rank < count; ++local_rank) {
    Worker& worker = workers_.emplace_back();
    worker.local_rank = local_rank;
    worker.rank = facts_.ranks.first_rank + local_rank;
    worker.role_rank = facts_.ranks.first_role_rank + local_rank;
    auto started = start_worker(worker);
    if (!started) return started;
  }
  return {};
}

Result<> Crew::start_worker(Worker& worker) {
  const launch::LaunchConfig& config = surroundings_.config;
  const int local_rank = worker.local_rank;
  worker.paths = attempt_.worker(local_rank, worker.restart_count);
  logs::WorkerStreams streams;
  streams.role = facts_.role;
  streams.rank = static_cast<int>(worker.rank);
  streams.local_rank = local_rank;
  streams.folder = worker.paths.folder;
  streams.out = logs::target_of(surroundings_.routing, local_rank, logs::Stream::Out);
  streams.err = logs::target_of(surroundings_.routing, local_rank, logs::Stream::Err);
  auto fds = surroundings_.output.open_worker(std::move(streams));
  if (!fds) return fail(std::move(fds.error()));

  WorkerFacts identity;
  identity.local_rank = local_rank;
  identity.error_file = worker.paths.error_file;
  identity.restart_count = worker.restart_count;
  if (!config.visible_devices.empty()) {
    identity.visible_device = config.visible_devices.at(static_cast<std::size_t>(local_rank));
  }
  process::Command command;
  command.executable = config.command.executable;
  command.arguments = launch::arguments_of(config.command, local_rank);
  command.environment = entries_of(worker_environment(surroundings_.environment, facts_, identity));
  command.output = fds->out.get();
  command.error = fds->err.get();
  command.placement = placement_of(config, local_rank);
  if (cgroup_) command.cgroup = cgroup_->folder();
  worker.started = surroundings_.loop.now();
  worker.started_nanoseconds = nanoseconds_of(CLOCK_REALTIME);
  auto process = surroundings_.host.start(
      command, [this, local_rank](const process::Exit& exit) { on_exit(local_rank, exit); });
  if (!process) {
    return fail(process.error().kind,
                fmt::format("cannot start worker {}: {}", local_rank, process.error().message));
  }
  worker.process = std::move(*process);
  return {};
}

Result<> Crew::restart(Worker& worker) {
  MUSTER_ASSERT(worker.process && !worker.process->is_running());
  ++worker.restart_count;
  worker.note.clear();
  worker.status.clear();
  worker.failure.reset();
  auto made =
      surroundings_.log_folder.add_restart(attempt_, worker.local_rank, worker.restart_count);
  if (!made) return made;
  return start_worker(worker);
}

void Crew::on_exit(int local_rank, const process::Exit& exit) {
  Worker& worker = workers_.at(static_cast<std::size_t>(local_rank));
  if (!exit.succeeded()) worker.failure = describe_failure(worker, exit);
  exited_(worker);
}

failures::Failure Crew::describe_failure(const Worker& worker, const process::Exit& exit) const {
  failures::Failure failure;
  failure.global_rank = static_cast<int>(worker.rank);
  failure.local_rank = worker.local_rank;
  failure.node_rank = static_cast<int>(facts_.node_rank);
  failure.role = facts_.role;
  failure.host = surroundings_.host_name;
  failure.pid = static_cast<int>(worker.pid());
  failure.exit_code = exit.code;
  failure.exited_nanoseconds = exit.wall_nanoseconds;
  failure.clock_lead_nanoseconds = facts_.clock_lead_nanoseconds;
  failure.order = exit.order;
  failure.note = worker.note;
  if (!worker.paths.error_file.empty()) {
    failures::add_details(failure, worker.paths.error_file,
                          failures::read_error_file(worker.paths.error_file),
                          worker.started_nanoseconds);
  }
  // One that takes long to end may have failed first: the others die of losing it meanwhile.
  const std::int64_t since = expecting_exits_since_nanoseconds_;
  const bool has_failed_before =
      failure.recorded_nanoseconds != 0 && failure.recorded_nanoseconds < since;
  failure.collateral = since != 0 && !has_failed_before;
  failures::OutOfMemorySources sources;
  if (cgroup_) sources.group_folder = cgroup_->folder();
  failure.out_of_memory =
      worker.note.empty() && since == 0 &&
      failures::ran_out_of_memory(exit.code,
                                  {memory_before_, failures::read_out_of_memory_counts(sources)});
  failure.last_lines = last_lines(worker);
  return failure;
}

std::vector<std::string> Crew::last_lines(const Worker& worker) const {
  auto lines = surroundings_.output.recent_lines(worker.local_rank);
  if (!lines.empty() || worker.paths.err.empty()) return lines;
  return logs::last_lines_of_file(worker.paths.err, logs::kRecentLines);
}

void Crew::expect_exits() {
  if (expecting_exits_since_nanoseconds_ != 0) return;
  expecting_exits_since_nanoseconds_ = nanoseconds_of(CLOCK_REALTIME_COARSE);
}

Task<std::vector<process::Stuck>> Crew::stop(process::StopOptions options) {
  expect_exits();
  std::vector<process::Process*> processes;
  for (Worker& worker : workers_) {
    if (worker.process) processes.push_back(worker.process.get());
  }
  std::vector<process::Stuck> stuck =
      co_await surroundings_.host.stop(std::move(processes), options);
  if (cgroup_) {
    cgroup_->kill();
    cgroup_.reset();
    if (surroundings_.guard != nullptr) surroundings_.guard->watch_cgroup({});
  }
  const TimePoint drained_by = after(surroundings_.loop.now(), kDrainTime);
  auto drained = co_await surroundings_.output.drain(drained_by);
  if (!drained) log::warn("agent", "{}", drained.error().message);
  co_return stuck;
}

void Crew::kill(Worker& worker, int signal, std::string note) {
  if (!worker.process || !worker.process->is_running()) return;
  if (worker.note.empty()) worker.note = std::move(note);
  worker.process->signal(signal);
}

void Crew::forward(int signal) {
  for (Worker& worker : workers_) {
    if (worker.process) worker.process->signal(signal);
  }
}

Worker* Crew::find(pid_t pid) {
  const auto by_pid = [this](pid_t candidate) -> Worker* {
    for (Worker& worker : workers_) {
      if (worker.pid() == candidate) return &worker;
    }
    return nullptr;
  };
  const auto ancestor = watchdog::nearest_ancestor(
      pid, ::getpid(), [&](pid_t candidate) { return by_pid(candidate) != nullptr; });
  if (ancestor) return by_pid(*ancestor);
  const auto token = watchdog::environment_of(pid, process::kTokenVariable);
  if (!token) return nullptr;
  for (Worker& worker : workers_) {
    if (worker.process && worker.process->token() == *token) return &worker;
  }
  return nullptr;
}

int Crew::running_count() const {
  int count = 0;
  for (const Worker& worker : workers_) {
    if (worker.process && worker.process->is_running()) ++count;
  }
  return count;
}

std::vector<failures::Failure> Crew::failures() const {
  std::vector<failures::Failure> all;
  for (const Worker& worker : workers_) {
    if (!worker.failure) continue;
    // What it printed last may have been on its way when it ended.
    failures::Failure failure = *worker.failure;
    failure.last_lines = last_lines(worker);
    all.push_back(std::move(failure));
  }
  return all;
}

}  // namespace muster::agent
