// A worker in C++: does some steps, saves what it has done, and goes on from there when it is
// started again. Fails when told to, so that one can watch what happens then:
//
//   muster run --nproc-per-node 2 --max-restarts 1 build/bin/example_worker --steps 5 --fail-at 3
//       --checkpoint progress
//
//   --steps N          how many steps to do (default 5)
//   --pause SECONDS    how long one takes (default 0.2)
//   --checkpoint FILE  rank 0 saves the step there; all ranks begin after it
//   --fail-at STEP     fail before that step, in the first start only, ...
//   --fail-rank RANK   ... if this is the rank (default 0), ...
//   --fail-how HOW     ... with an `error` (default), an `exit` status of 3, or a `crash`
//
// worker.sh and worker.py do the same.

#include "muster/failures/recorder.h"
#include "muster/watchdog/socket.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The launcher starts every worker with these; docs/torchrun.md lists all of them.
void print_environment() {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR",
                           "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "MUSTER_ROUND"}) {
    fmt::print("{}={} ", name, variable(name));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

// Tells the agent that this worker makes progress. Only needed under --hang-timeout.
void say_alive() {
  const std::string path = variable(muster::watchdog::kAgentSocketVariable);
  if (path.empty()) return;
  const auto told = muster::watchdog::tell_agent(path, "alive", std::chrono::seconds(5));
  if (!told) fmt::print(stderr, "the agent did not listen: {}\n", told.error().message);
}

int load(const std::string& path) {
  int step = 0;
  std::ifstream(path) >> step;
  return step;
}

// Whoever is killed while saving leaves the old file as it was.
void save(const std::string& path, int step) {
  const std::string temporary = path + ".new";
  std::ofstream(temporary) << step << '\n';
  if (std::rename(temporary.c_str(), path.c_str()) != 0)
    throw std::runtime_error("cannot save to " + path);
}

[[noreturn]] void fail(const std::string& how, int step) {
  if (how == "crash") std::abort();
  if (how == "exit") std::exit(3);
  throw std::runtime_error(fmt::format("step {} went wrong", step));
}

int work(const std::map<std::string, std::string>& options) {
  const auto option = [&options](const std::string& name, const std::string& otherwise) {
    const auto found = options.find(name);
    return found == options.end() ? otherwise : found->second;
  };
  const std::string rank = variable("RANK").empty() ? "0" : variable("RANK");
  const std::string checkpoint = option("--checkpoint", "");
  const std::chrono::duration<double> pause(std::stod(option("--pause", "0.2")));
  const int steps = std::stoi(option("--steps", "5"));
  const std::string restarts = variable("TORCHELASTIC_RESTART_COUNT");
  const bool is_first_start = restarts.empty() || restarts == "0";
  const bool may_fail = is_first_start && option("--fail-rank", "0") == rank;
  const int fails_at = std::stoi(option("--fail-at", "0"));

  print_environment();
  int done = checkpoint.empty() ? 0 : load(checkpoint);
  if (done > 0) fmt::print("rank {} goes on after step {}\n", rank, done);
  while (done < steps) {
    const int step = done + 1;
    if (may_fail && step == fails_at) fail(option("--fail-how", "error"), step);
    std::this_thread::sleep_for(pause);
    fmt::print("rank {} has done step {} of {}\n", rank, step, steps);
    std::fflush(stdout);
    done = step;
    if (!checkpoint.empty() && rank == "0") save(checkpoint, done);
    say_alive();
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  std::map<std::string, std::string> options;
  for (int index = 1; index + 1 < count; index += 2) options[words[index]] = words[index + 1];
  // An exception that leaves `work` goes into the error file, and so into the report of the job.
  muster::failures::install_recorder();
  return work(options);
}
