// LaunchConfig: everything that follows from the options and the machine, checked and complete.
//
// Pure: what it must know of the machine is in Facts. An agent is built from a LaunchConfig, and
// `--dry-run` prints one; nothing is decided later that could have been refused here.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/launch/command.h"
#include "muster/launch/facts.h"
#include "muster/launch/numa.h"
#include "muster/launch/options.h"
#include "muster/rendezvous/parameters.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::launch {

inline constexpr std::int64_t kWorkersMax = 65536;

// The texts are checked here and read by the logs library.
struct LogConfig {
  std::string folder = {};  // empty: a temporary one
  std::string redirects = "0";
  std::string tee = "0";
  std::string local_ranks = {};                      // empty: all
  std::optional<std::string> duplicate_stdout = {};  // nothing: none; empty: every line
  std::optional<std::string> duplicate_stderr = {};
  std::string prefix_template = {};  // empty: the default prefix
  bool json = false;
  std::uint64_t rotate_bytes = 0;  // 0: never
  int keep = 3;                    // how many rotated files
  std::uint64_t max_bytes = 0;     // of one stream of one worker; 0: no limit
};

// What the agent is told by variables alone.
struct AgentSwitches {
  bool file_timer = false;        // TORCHELASTIC_ENABLE_FILE_TIMER is 1
  std::string timer_file = {};    // TORCHELASTIC_TIMER_FILE
  std::string error_file = {};    // TORCHELASTIC_ERROR_FILE: of the launcher itself
  bool worker_identical = false;  // TORCH_ELASTIC_WORKER_IDENTICAL is 1
  bool share_store = true;        // unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE is 1
  // TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT; zero: off.
  Duration uninterruptible_timeout = {};
};

struct LaunchConfig {
  // Backend, endpoint, run id, numbers of nodes, local address and options, our defaults included.
  rendezvous::Parameters rendezvous = {};
  bool standalone = false;     // a private rendezvous on this host, asked for or by default
  std::int64_t node_rank = 0;  // static only
  int workers_per_node = 1;
  std::string role = "default";

  Command command = {};
  // To be set in our own environment, and so in that of the workers.
  std::vector<std::pair<std::string, std::string>> environment = {};
  bool virtual_local_rank = false;
  // CUDA_VISIBLE_DEVICES of each local rank; empty unless virtual_local_rank.
  std::vector<std::string> visible_devices = {};

  std::int64_t max_restarts = 0;
  std::int64_t max_departures = -1;  // negative: any number
  // Only the failed worker is started again, with a budget of its own, and the others run on.
  bool restart_alone = false;
  Duration restart_window = {};  // only restarts of the last so long count; zero: all do
  Duration restart_delay = {};   // before the first restart; doubles with each one
  Duration restart_delay_max = {};
  Duration monitor_interval = std::chrono::milliseconds(100);
  Duration shutdown_timeout = std::chrono::seconds(30);  // zero: SIGKILL at once
  Duration exit_barrier_timeout = Duration(-1);          // negative: as long as they run
  std::optional<Duration> start_timeout = {};            // until every worker says that it is ready
  std::optional<Duration> hang_timeout = {};             // between two signs of life
  bool propagate_exit_code = false;
  std::vector<int> signals_to_handle = {};
  std::vector<int> signals_to_forward = {};

  LogConfig logs = {};
  std::string event_log_handler = "null";  // judged by those who make sinks
  std::string http = "off";                // off, PORT or HOST:PORT
  log::Level log_level = log::Level::Warn;
  AgentSwitches switches = {};

  std::optional<NumaMode> numa_mode = {};
  NumaMemory numa_memory = NumaMemory::Default;
  std::vector<Binding> bindings = {};  // of each local rank; empty without numa_mode

  bool dry_run = false;

  // For people, one line each.
  std::vector<std::string> warnings = {};
  // Several lines, to be printed as they are; usually empty.
  std::string banner = {};
};

// Invalid, with one line that says what to do, for everything that cannot work. The launcher then
// ends with status 1.
Result<LaunchConfig> resolve(const Options& options, const Facts& facts);

}  // namespace muster::launch
