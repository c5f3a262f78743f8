#include "muster/agent/worker_environment.h"

#include <gtest/gtest.h>

namespace muster::agent {
namespace {

RoundFacts facts() {
  RoundFacts round;
  round.run_id = "job";
  round.role = "trainer";
  round.round = 7;
  round.node_rank = 1;
  round.node_count = 2;
  round.worker_count = 3;
  round.ranks = {4, 7, 0, 3};
  round.master_addr = "node-0";
  round.master_port = 31000;
  round.use_agent_store = true;
  round.restart_count = 1;
  round.restarts_max = 3;
  return round;
}

Environment made(const Environment& base, const RoundFacts& round, std::int64_t local_rank) {
  return worker_environment(base, round, {local_rank, "/logs/error.json", "GPU-7"});
}

TEST(WorkerEnvironment, SaysWhoTheWorkerIs) {
  const Environment expected = {{"LOCAL_RANK", "2"},
                                {"RANK", "6"},
                                {"GROUP_RANK", "1"},
                                {"ROLE_RANK", "2"},
                                {"ROLE_NAME", "trainer"},
                                {"LOCAL_WORLD_SIZE", "3"},
                                {"WORLD_SIZE", "7"},
                                {"GROUP_WORLD_SIZE", "2"},
                                {"ROLE_WORLD_SIZE", "3"},
                                {"MASTER_ADDR", "node-0"},
                                {"MASTER_PORT", "31000"},
                                {"TORCHELASTIC_RESTART_COUNT", "1"},
                                {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                {"TORCHELASTIC_RUN_ID", "job"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                {"NCCL_ASYNC_ERROR_HANDLING", "1"},
                                {"TORCHELASTIC_ERROR_FILE", "/logs/error.json"},
                                {"MUSTER_ROUND", "7"}};
  EXPECT_EQ(made({}, facts(), 2), expected);
}

TEST(WorkerEnvironment, KeepsEverythingElseOfTheAgents) {
  const Environment environment =
      made({{"PATH", "/bin"}, {"PET_NNODES", "2"}, {"RANK", "99"}}, facts(), 0);
  EXPECT_EQ(environment.at("PATH"), "/bin");
  EXPECT_EQ(environment.at("PET_NNODES"), "2");
  EXPECT_EQ(environment.at("RANK"), "4");
}

TEST(WorkerEnvironment, PassesTheAgentsNcclSettingOn) {
  const Environment environment = made({{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}}, facts(), 0);
  EXPECT_EQ(environment.at("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
}

TEST(WorkerEnvironment, SaysFalseIfTheWorkersHostTheStore) {
  RoundFacts round = facts();
  round.use_agent_store = false;
  EXPECT_EQ(made({}, round, 0).at("TORCHELASTIC_USE_AGENT_STORE"), "False");
}

TEST(WorkerEnvironment, ShowsEachWorkerOneDeviceWithVirtualLocalRanks) {
  RoundFacts round = facts();
  round.virtual_local_rank = true;
  const Environment environment = made({{"CUDA_VISIBLE_DEVICES", "4,5,GPU-7"}}, round, 2);
  EXPECT_EQ(environment.at("LOCAL_RANK"), "0");
  EXPECT_EQ(environment.at("RANK"), "6");
  EXPECT_EQ(environment.at("CUDA_VISIBLE_DEVICES"), "GPU-7");
}

TEST(WorkerEnvironment, LeavesTheDevicesAloneOtherwise) {
  EXPECT_EQ(made({{"CUDA_VISIBLE_DEVICES", "4,5"}}, facts(), 1).at("CUDA_VISIBLE_DEVICES"), "4,5");
  EXPECT_FALSE(made({}, facts(), 1).contains("CUDA_VISIBLE_DEVICES"));
}

TEST(WorkerEnvironment, NamesTheWatchdogsThatThereAre) {
  RoundFacts round = facts();
  round.agent_socket = "/run/agent";
  round.timer_file = "/run/timer";
  const Environment environment = made({}, round, 0);
  EXPECT_EQ(environment.at("MUSTER_AGENT_SOCKET"), "/run/agent");
  EXPECT_EQ(environment.at("TORCHELASTIC_TIMER_FILE"), "/run/timer");
}

TEST(WorkerEnvironment, IsReadAndWrittenAsTheSystemHasIt) {
  const char* const entries[] = {"A=1", "B=x=y", "broken", "=C:=x", "EMPTY=", nullptr};
  const Environment expected = {{"A", "1"}, {"B", "x=y"}, {"EMPTY", ""}};
  EXPECT_EQ(read_environment(entries), expected);
  const std::vector<std::string> texts = {"A=1", "B=x=y", "EMPTY="};
  EXPECT_EQ(entries_of(expected), texts);
}

}  // namespace
}  // namespace muster::agent
