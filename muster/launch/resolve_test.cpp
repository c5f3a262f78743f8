#include "muster/launch/resolve.h"

#include "muster/launch/fake_facts_test.h"

#include <algorithm>
#include <chrono>
#include <csignal>

namespace muster::launch {
namespace {

using namespace std::chrono_literals;

// With an argument, since a fixture of facts is one.
Facts with_gpus(int count, Variables variables = {}) {
  Facts facts = fake_facts(std::move(variables));
  facts.visible_gpus = [count] {
    std::vector<Gpu> gpus;
    for (int index = 0; index < count; ++index)
      gpus.push_back({"0000:0" + std::to_string(index) + ":00.0", ""});
    return gpus;
  };
  return facts;
}

std::optional<std::string> set_variable(const LaunchConfig& config, std::string_view name) {
  for (const auto& [each, value] : config.environment) {
    if (each == name) return value;
  }
  return std::nullopt;
}

TEST(Resolve, LimitsTheExitBarrierOfAGroupThatDoesNotNoticeALoss) {
  const auto config = launch_of(
      {"--nnodes=2", "--node-rank=0", "--rdzv-backend=static", "--master-addr=host", "train.py"});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->exit_barrier_timeout, 300s);
}

TEST(Resolve, GivesAPlainStartItsDefaults) {
  const auto config = launch_of({"train.py"});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->workers_per_node, 1);
  EXPECT_EQ(config->role, "default");
  EXPECT_EQ(config->max_restarts, 0);
  EXPECT_EQ(config->monitor_interval, 100ms);
  EXPECT_EQ(config->shutdown_timeout, 30s);
  EXPECT_LT(config->exit_barrier_timeout, 0s) << "as long as the others run";
  EXPECT_EQ(config->restart_window, 0s);
  EXPECT_EQ(config->restart_delay, 0s);
  EXPECT_EQ(config->restart_delay_max, 60s);
  EXPECT_FALSE(config->start_timeout || config->hang_timeout);
  EXPECT_EQ(config->signals_to_handle, (std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT}));
  EXPECT_TRUE(config->signals_to_forward.empty());
  EXPECT_EQ(set_variable(*config, "TORCHELASTIC_SIGNALS_TO_HANDLE"),
            "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
  EXPECT_FALSE(set_variable(*config, "OMP_NUM_THREADS"));
  EXPECT_EQ(config->event_log_handler, "null");
  EXPECT_EQ(config->http, "off");
  EXPECT_EQ(config->log_level, log::Level::Warn);
  EXPECT_TRUE(config->bindings.empty() && config->visible_devices.empty());
  EXPECT_TRUE(config->warnings.empty() && config->banner.empty());
}

TEST(WorkerCount, IsANumberOrCountsDevices) {
  EXPECT_EQ(launch_of({"--nproc-per-node=3", "train.py"})->workers_per_node, 3);
  EXPECT_EQ(launch_of({"--nproc-per-node= 3 ", "train.py"})->workers_per_node, 3);
  EXPECT_EQ(launch_of({"--nproc-per-node=cpu", "train.py"})->workers_per_node, 4);
  EXPECT_EQ(launch_of({"--nproc-per-node=gpu", "train.py"}, with_gpus(2))->workers_per_node, 2);
  EXPECT_EQ(launch_of({"--nproc-per-node=auto", "train.py"}, with_gpus(2))->workers_per_node, 2);
  EXPECT_EQ(launch_of({"--nproc-per-node=auto", "train.py"})->workers_per_node, 4);
  Facts facts = fake_facts();
  facts.xpu_count = [] { return 3; };
  EXPECT_EQ(launch_of({"--nproc-per-node=xpu", "train.py"}, facts)->workers_per_node, 3);
  EXPECT_EQ(launch_of({"--nproc-per-node=auto", "train.py"}, facts)->workers_per_node, 3);
}

TEST(WorkerCount, RespectsTheQuotaOfTheCgroup) {
  Facts facts = fake_facts();
  for (const auto& [quota, count] :
       std::vector<std::pair<double, int>>{{0.5, 1}, {1.0, 1}, {2.9, 2}, {4.0, 4}, {64.0, 4}}) {
    facts.cpu_quota = quota;
    EXPECT_EQ(launch_of({"--nproc-per-node=cpu", "train.py"}, facts)->workers_per_node, count);
  }
}

TEST(WorkerCount, IsRefusedWithOneLine) {
  EXPECT_TRUE(contains(error_of({"--nproc-per-node=0", "train.py"}), "at least 1 worker"));
  EXPECT_TRUE(contains(error_of({"--nproc-per-node=-2", "train.py"}), "at least 1 worker"));
  EXPECT_TRUE(contains(error_of({"--nproc-per-node=999999", "train.py"}), "at most"));
  EXPECT_TRUE(contains(error_of({"--nproc-per-node=gpu", "train.py"}), "no CUDA device"));
  EXPECT_TRUE(contains(error_of({"--nproc-per-node=xpu", "train.py"}), "no XPU device"));
  EXPECT_TRUE(contains(error_of({"--nproc-per-node=gpus", "train.py"}), "did you mean gpu?"));
  EXPECT_TRUE(contains(error_of({"--nproc-per-node=", "train.py"}), "neither a number"));
  const Facts facts = fake_facts({{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_TRUE(
      contains(error_of({"--nproc-per-node=gpu", "train.py"}, facts), "CUDA_VISIBLE_DEVICES"));
}

TEST(Threads, AreOneInEachOfSeveralWorkers) {
  const auto several = launch_of({"--nproc-per-node=2", "train.py"});
  EXPECT_EQ(set_variable(*several, "OMP_NUM_THREADS"), "1");
  EXPECT_TRUE(several->banner.starts_with("****")) << several->banner;
  EXPECT_TRUE(several->banner.ends_with("****\n")) << several->banner;
  const auto chosen =
      launch_of({"--nproc-per-node=2", "train.py"}, fake_facts({{"OMP_NUM_THREADS", "7"}}));
  EXPECT_FALSE(set_variable(*chosen, "OMP_NUM_THREADS"));
  EXPECT_EQ(chosen->banner, "");
}

TEST(Restarts, AreTakenAndChecked) {
  const auto config =
      launch_of({"--max-restarts=3", "--restart-window=1h", "--restart-delay=90s", "train.py"});
  EXPECT_EQ(config->max_restarts, 3);
  EXPECT_EQ(config->restart_window, 1h);
  EXPECT_EQ(config->restart_delay, 90s);
  EXPECT_EQ(config->restart_delay_max, 90s);
  EXPECT_FALSE(config->restart_alone);
  EXPECT_EQ(config->max_departures, -1);
  EXPECT_EQ(launch_of({"--max-departures=2", "train.py"})->max_departures, 2);
  EXPECT_TRUE(contains(error_of({"--max-departures=-2", "train.py"}), "--max-departures is -2"));
  EXPECT_TRUE(launch_of({"--restart-scope=worker", "train.py"})->restart_alone);
  EXPECT_TRUE(contains(error_of({"--max-restarts=-1", "train.py"}), "--max-restarts is -1"));
  EXPECT_TRUE(contains(error_of({"--restart-delay=-1", "train.py"}), "--restart-delay"));
  EXPECT_TRUE(contains(error_of({"--restart-delay=5", "--restart-delay-max=1", "train.py"}),
                       "--restart-delay 5s is above --restart-delay-max 1s"));
}

TEST(Limits, AreTakenAndChecked) {
  const auto config =
      launch_of({"--monitor-interval=2.5", "--shutdown-timeout=0", "--exit-barrier-timeout=-1",
                 "--start-timeout=1m", "--hang-timeout=30", "train.py"});
  EXPECT_EQ(config->monitor_interval, 2500ms);
  EXPECT_EQ(config->shutdown_timeout, 0s);
  EXPECT_LT(config->exit_barrier_timeout, 0s);
  EXPECT_EQ(config->start_timeout, 60s);
  EXPECT_EQ(config->hang_timeout, 30s);
  EXPECT_TRUE(contains(error_of({"--monitor-interval=0", "train.py"}), "--monitor-interval is 0"));
  EXPECT_TRUE(contains(error_of({"--monitor-interval=-1", "train.py"}), "--monitor-interval"));
  EXPECT_TRUE(
      contains(error_of({"--shutdown-timeout=-3", "train.py"}), "--shutdown-timeout is -3"));
  EXPECT_TRUE(contains(error_of({"--start-timeout=0", "train.py"}), "--start-timeout"));
  EXPECT_FALSE(launch_of({"--hang-timeout=-1", "train.py"})->hang_timeout);
}

TEST(ShutdownTimeout, ComesFromTheOptionElseFromTheVariable) {
  constexpr const char* kName = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  EXPECT_EQ(launch_of({"train.py"}, fake_facts({{kName, "7"}}))->shutdown_timeout, 7s);
  EXPECT_EQ(
      launch_of({"--shutdown-timeout=8", "train.py"}, fake_facts({{kName, "x"}}))->shutdown_timeout,
      8s);
  EXPECT_TRUE(contains(error_of({"train.py"}, fake_facts({{kName, "soon"}})), kName));
  EXPECT_TRUE(contains(error_of({"train.py"}, fake_facts({{kName, "-1"}})), kName));
}

TEST(ExitBarrierTimeout, ComesFromTheOptionElseFromTheVariable) {
  constexpr const char* kName = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT";
  EXPECT_EQ(launch_of({"train.py"}, fake_facts({{kName, "7"}}))->exit_barrier_timeout, 7s);
  EXPECT_EQ(launch_of({"--exit-barrier-timeout=2m", "train.py"}, fake_facts({{kName, "7"}}))
                ->exit_barrier_timeout,
            120s);
  EXPECT_TRUE(contains(error_of({"train.py"}, fake_facts({{kName, "soon"}})), kName));
}

TEST(Signals, ThatAreUnknownAreSkippedWithAWarning) {
  const auto config =
      launch_of({"--signals-to-handle=SIGUSR1, SIGBOGUS,SIGKILL,SIGTERM,SIGUSR1", "train.py"});
  EXPECT_EQ(config->signals_to_handle, (std::vector<int>{SIGUSR1, SIGTERM}));
  EXPECT_TRUE(warns_of(*config, "\"SIGBOGUS\" is no signal"));
  EXPECT_TRUE(warns_of(*config, "\"SIGKILL\" cannot be handled"));
  EXPECT_EQ(set_variable(*config, "TORCHELASTIC_SIGNALS_TO_HANDLE"),
            "SIGUSR1, SIGBOGUS,SIGKILL,SIGTERM,SIGUSR1");
}

TEST(Signals, CanBePassedOn) {
  const auto config = launch_of({"--signals-to-forward=SIGUSR1,SIGHUP", "train.py"});
  EXPECT_EQ(config->signals_to_forward, (std::vector<int>{SIGUSR1, SIGHUP}));
  EXPECT_EQ(config->signals_to_handle, (std::vector<int>{SIGTERM, SIGINT, SIGQUIT}));
  EXPECT_TRUE(contains(error_of({"--signals-to-forward=SIGUSR3", "train.py"}), "did you mean"));
  EXPECT_TRUE(contains(error_of({"--signals-to-forward=SIGKILL", "train.py"}), "SIGKILL"));
  EXPECT_TRUE(
      contains(error_of({"--signals-to-forward=SIGHUP", "--signals-to-handle=SIGHUP", "train.py"}),
               "cannot both"));
}

TEST(Logs, AreTakenAsTheyAre) {
  const auto config = launch_of(
      {"--log-dir=logs/new", "-r", "0-3:1,10:3", "-t3", "--local-ranks-filter=0, 3,8-11",
       "--duplicate-stdout-filters=", "--log-line-prefix-template=${rank}", "--log-format=json",
       "--log-rotate-bytes=64M", "--log-keep=5", "--log-max-bytes=1G", "train.py"});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->logs.folder, "logs/new");
  EXPECT_EQ(config->logs.redirects, "0-3:1,10:3");
  EXPECT_EQ(config->logs.tee, "3");
  EXPECT_EQ(config->logs.local_ranks, "0,3,8-11");
  EXPECT_EQ(config->logs.duplicate_stdout, "");
  EXPECT_FALSE(config->logs.duplicate_stderr);
  EXPECT_EQ(config->logs.prefix_template, "${rank}");
  EXPECT_TRUE(config->logs.json);
  EXPECT_EQ(config->logs.rotate_bytes, 64U << 20);
  EXPECT_EQ(config->logs.keep, 5);
  EXPECT_EQ(config->logs.max_bytes, 1U << 30);
}

TEST(Logs, AreRefusedWithOneLine) {
  for (const char* text : {"4", "", "0:4", "0", "x"}) {
    if (std::string(text) == "0") continue;
    EXPECT_TRUE(contains(error_of({"-r", text, "train.py"}), "0, 1, 2 or 3")) << text;
    EXPECT_TRUE(contains(error_of({"-t", text, "train.py"}), "--tee is")) << text;
  }
  EXPECT_TRUE(contains(error_of({"--local-ranks-filter=a", "train.py"}), "0,3,8-11"));
  EXPECT_TRUE(contains(error_of({"--logs-specs=mine", "train.py"}), "torchrun.logs_specs"));
  EXPECT_EQ(error_of({"--logs-specs=default", "train.py"}), "");
  EXPECT_TRUE(contains(error_of({"--log-dir=file", "train.py"}), "is not a folder"));
  EXPECT_TRUE(contains(error_of({"--log-dir=file/below", "train.py"}), "\"file\" is not a folder"));
  EXPECT_TRUE(contains(error_of({"--log-keep=-1", "train.py"}), "--log-keep"));
  EXPECT_TRUE(
      contains(error_of({"train.py"}, fake_facts({{"PET_LOG_FORMAT", "xml"}})), "PET_LOG_FORMAT"));
  EXPECT_EQ(error_of({"--log-dir=/dev/null", "train.py"}), "");
  EXPECT_TRUE(warns_of(*launch_of({"--log-keep=2", "train.py"}), "--log-keep"));
}

TEST(LinePrefix, ComesFromTheOptionElseFromTheVariable) {
  const Facts facts = fake_facts({{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "v"}});
  EXPECT_EQ(launch_of({"train.py"}, facts)->logs.prefix_template, "v");
  EXPECT_EQ(launch_of({"--log-line-prefix-template=o", "train.py"}, facts)->logs.prefix_template,
            "o");
}

TEST(Http, IsOffOrAnAddress) {
  EXPECT_EQ(launch_of({"--http=8080", "train.py"})->http, "8080");
  EXPECT_EQ(launch_of({"--http=0.0.0.0:80", "train.py"})->http, "0.0.0.0:80");
  EXPECT_EQ(launch_of({"--http=:80", "train.py"})->http, ":80");
  for (const char* text : {"", "on", "host", "70000", "host:x", "-1", "::1"})
    EXPECT_TRUE(contains(error_of({std::string("--http=") + text, "train.py"}), "--http is"));
  constexpr const char* kName = "TORCHELASTIC_HEALTH_CHECK_PORT";
  EXPECT_EQ(launch_of({"train.py"}, fake_facts({{kName, "9000"}}))->http, "9000");
  EXPECT_EQ(launch_of({"--http=off", "train.py"}, fake_facts({{kName, "9000"}}))->http, "off");
  const auto ignored = launch_of({"train.py"}, fake_facts({{kName, "abc"}}));
  EXPECT_EQ(ignored->http, "off");
  EXPECT_TRUE(warns_of(*ignored, kName));
}

TEST(VirtualLocalRank, GivesEachWorkerOneDevice) {
  const WordList words = {"--virtual-local-rank", "--nproc-per-node=2", "train.py"};
  EXPECT_EQ(launch_of(words)->visible_devices, (WordList{"0", "1"}));
  EXPECT_EQ(launch_of(words, fake_facts({{"CUDA_VISIBLE_DEVICES", "5, GPU-7,9"}}))->visible_devices,
            (WordList{"5", "GPU-7"}));
  EXPECT_EQ(launch_of(words, fake_facts({{"CUDA_VISIBLE_DEVICES", ""}}))->visible_devices,
            (WordList{"", ""}));
  EXPECT_TRUE(contains(error_of(words, fake_facts({{"CUDA_VISIBLE_DEVICES", "5"}})),
                       "CUDA_VISIBLE_DEVICES=5 names only 1"));
}

TEST(Numa, BindsEachWorker) {
  const WordList words = {"--numa-binding=node", "--numa-memory=bind", "--nproc-per-node=2",
                          "train.py"};
  const auto config = launch_of(words);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->numa_mode, NumaMode::Node);
  EXPECT_EQ(config->numa_memory, NumaMemory::Bind);
  EXPECT_EQ(config->bindings, (std::vector<Binding>{{{0, 1}, {0}}, {{2, 3}, {1}}}));
  Facts facts = with_gpus(2);
  facts.device_node = [](const std::string& address) {
    return Result<int>(address == "0000:00:00.0" ? 1 : 0);
  };
  EXPECT_EQ(launch_of(words, facts)->bindings,
            (std::vector<Binding>{{{2, 3}, {1}}, {{0, 1}, {0}}}));
}

TEST(Numa, IsRefusedWithOneLine) {
  EXPECT_TRUE(contains(error_of({"--numa-memory=bind", "train.py"}), "needs --numa-binding"));
  EXPECT_TRUE(
      contains(error_of({"--numa-binding=node", "--nproc-per-node=3", "train.py"}, with_gpus(2)),
               "3 workers and 2 GPUs"));
  Facts facts = fake_facts();
  facts.visible_gpus = [] { return std::vector<Gpu>(1); };
  EXPECT_TRUE(contains(error_of({"--numa-binding=node", "train.py"}, facts), "PCI address"));
  EXPECT_TRUE(
      contains(error_of({"train.py"}, fake_facts({{"PET_NUMA_MEMORY", "x"}})), "PET_NUMA_MEMORY"));
}

TEST(RunPath, SaysWhatHasNoEffect) {
  const auto config = launch_of({"--run-path", "-m", "--start-method=fork", "train.py"});
  EXPECT_TRUE(warns_of(*config, "--module has no effect"));
  EXPECT_TRUE(warns_of(*config, "--start-method fork has no effect"));
  const Facts facts = fake_facts({{"PET_START_METHOD", "bogus"}});
  EXPECT_TRUE(contains(error_of({"--run-path", "train.py"}, facts), "PET_START_METHOD"));
  EXPECT_EQ(error_of({"train.py"}, facts), "");
}

TEST(LogLevel, IsNamedAsInPython) {
  for (const auto& [text, level] :
       std::vector<std::pair<std::string, log::Level>>{{"DEBUG", log::Level::Debug},
                                                       {"info", log::Level::Info},
                                                       {"WARNING", log::Level::Warn},
                                                       {"CRITICAL", log::Level::Error},
                                                       {"20", log::Level::Info},
                                                       {"", log::Level::Warn}}) {
    EXPECT_EQ(launch_of({"train.py"}, fake_facts({{"LOGLEVEL", text}}))->log_level, level) << text;
  }
  EXPECT_TRUE(warns_of(*launch_of({"train.py"}, fake_facts({{"LOGLEVEL", "loud"}})), "LOGLEVEL"));
}

TEST(Switches, ComeFromVariables) {
  const AgentSwitches none = launch_of({"train.py"})->switches;
  EXPECT_FALSE(none.file_timer || none.worker_identical);
  EXPECT_TRUE(none.share_store);
  const AgentSwitches all =
      launch_of({"train.py"}, fake_facts({{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"},
                                          {"TORCHELASTIC_TIMER_FILE", "/x"},
                                          {"TORCHELASTIC_ERROR_FILE", "/e"},
                                          {"TORCH_ELASTIC_WORKER_IDENTICAL", "1"},
                                          {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"},
                                          {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "5"}}))
          ->switches;
  EXPECT_TRUE(all.file_timer && all.worker_identical);
  EXPECT_FALSE(all.share_store);
  EXPECT_EQ(all.timer_file, "/x");
  EXPECT_EQ(all.error_file, "/e");
  EXPECT_EQ(all.uninterruptible_timeout, 5s);
}

}  // namespace
}  // namespace muster::launch
