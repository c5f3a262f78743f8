// Under which prefix of the store the workers of one round of a job meet.
#include "muster/worker/worker.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <map>
#include <string>
#include <utility>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::options_for;
using testing::StoreHost;

class Environment {
 public:
  explicit Environment(std::map<std::string, std::string> variables)
      : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) ::unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const std::map<std::string, std::string> variables_;
};

// Whether `init` in this environment meets a worker under that prefix; why not, or nothing.
std::string meets_under(const std::string& prefix, std::map<std::string, std::string> variables) {
  const Environment environment(std::move(variables));
  const StoreHost store;
  auto other = std::async(std::launch::async, [&] {
    Functions functions;
    FunctionServer server(functions, 1, 1);
    std::string problem;
    if (auto started =
            NetworkAgent::start(options_for("worker1", 1, 2), store.opener(prefix), server, 10s)) {
      (*started)->shutdown();
    } else {
      problem = started.error().message;
    }
    server.stop();
    return problem;
  });
  InitOptions options;
  options.rank = 0;
  options.world_size = 2;
  options.store = "127.0.0.1:" + std::to_string(store.port());
  options.start_timeout = 10s;
  const auto started = init(options);
  if (started) (void)shutdown({.graceful = false});
  const std::string problem = other.get();
  return started ? problem : started.error().message;
}

TEST(WorkerRound, is_that_of_muster_run) {
  EXPECT_EQ(meets_under("rpc/job/7", {{"TORCHELASTIC_RUN_ID", "job"},
                                      {"MUSTER_ROUND", "7"},
                                      {"GROUP_WORLD_SIZE", "2"},
                                      {"MASTER_PORT", "29511"},
                                      {"TORCHELASTIC_RESTART_COUNT", "1"}}),
            "");
}

TEST(WorkerRound, is_the_restart_count_of_torchrun_on_one_node) {
  EXPECT_EQ(meets_under("rpc/job/3", {{"TORCHELASTIC_RUN_ID", "job"},
                                      {"GROUP_WORLD_SIZE", "1"},
                                      {"MASTER_PORT", "29511"},
                                      {"TORCHELASTIC_RESTART_COUNT", "3"}}),
            "");
}

TEST(WorkerRound, is_the_same_on_nodes_of_torchrun_that_have_failed_differently_often) {
  for (const char* const restart_count : {"0", "2"}) {
    EXPECT_EQ(meets_under("rpc/job/29511/2", {{"TORCHELASTIC_RUN_ID", "job"},
                                              {"GROUP_WORLD_SIZE", "2"},
                                              {"MASTER_PORT", "29511"},
                                              {"WORLD_SIZE", "2"},
                                              {"TORCHELASTIC_RESTART_COUNT", restart_count}}),
              "");
  }
}

}  // namespace
}  // namespace muster::rpc
