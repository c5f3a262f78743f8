// Crew: the workers of one round on this node, from their start, all or none, to the moment nothing
// of them is left.
//
// Owned by an Agent; lives on its loop. Whoever destroys a crew has stopped it before.
#pragma once

#include "muster/agent/worker_environment.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/failures/failure.h"
#include "muster/failures/out_of_memory.h"
#include "muster/launch/resolve.h"
#include "muster/logs/layout.h"
#include "muster/logs/output.h"
#include "muster/logs/streams.h"
#include "muster/process/cgroup.h"
#include "muster/process/guard.h"
#include "muster/process/host.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace muster::agent {

// What all crews of one agent have in common.
struct CrewSurroundings {
  net::EpollLoop& loop;
  process::Host& host;
  logs::Output& output;
  logs::LogFolder& log_folder;
  const launch::LaunchConfig& config;
  logs::Routing routing;
  Environment environment;  // the agent's own
  std::string host_name;
  process::Guard* guard = nullptr;  // may be missing
};

struct Worker {
  int local_rank = 0;
  std::int64_t rank = 0;
  std::int64_t role_rank = 0;
  std::unique_ptr<process::Process> process;
  logs::WorkerPaths paths;
  std::int64_t started_nanoseconds = 0;  // wall clock
  TimePoint started;
  std::int64_t restart_count = 0;  // alone, in this round
  std::string note;                // why we killed it, if we did
  std::string status;              // what it says about itself
  std::optional<failures::Failure> failure;

  pid_t pid() const { return process ? process->pid() : 0; }
};

class Crew {
 public:
  // `exited` is called from the loop for each worker, after its failure record was made. Requires:
  // `surroundings` outlives the crew.
  Crew(CrewSurroundings& surroundings, RoundFacts facts, std::function<void(Worker&)> exited);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Starts all workers. After an error some may run: `stop` them.
  Result<> start();

  // Starts a worker again that has ended, and whose remains are gone; the others run on.
  Result<> restart(Worker& worker);

  // Ends the workers and everything they have started, and writes out what they have printed.
  // Answers what could not be killed.
  Task<std::vector<process::Stuck>> stop(process::StopOptions options);
  // From now on whoever dies dies because of us, unless it has recorded before what it dies of.
  void expect_exits();
  // A worker that is to be counted as failed, for the reason `note`.
  void kill(Worker& worker, int signal, std::string note);
  // To all of them, and nothing else happens.
  void forward(int signal);

  const RoundFacts& facts() const { return facts_; }
  const std::string& folder() const { return attempt_.path; }
  std::vector<Worker>& workers() { return workers_; }
  const std::vector<Worker>& workers() const { return workers_; }
  // The worker that `pid` is or descends from.
  Worker* find(pid_t pid);
  int running_count() const;
  std::vector<failures::Failure> failures() const;

 private:
  Result<> start_worker(Worker& worker);
  void on_exit(int local_rank, const process::Exit& exit);
  failures::Failure describe_failure(const Worker& worker, const process::Exit& exit) const;
  std::vector<std::string> last_lines(const Worker& worker) const;

  CrewSurroundings& surroundings_;
  RoundFacts facts_;
  std::function<void(Worker&)> exited_;
  logs::AttemptFolder attempt_;
  std::optional<process::Cgroup> cgroup_;
  failures::OutOfMemoryCounts memory_before_;
  // When that began, by the clock that files are stamped with; 0: it has not.
  std::int64_t expecting_exits_since_nanoseconds_ = 0;
  std::vector<Worker> workers_;
};

}  // namespace muster::agent
