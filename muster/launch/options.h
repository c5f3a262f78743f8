// Options: what `muster run` was asked for, word by word, before anything is derived from it.
//
// One table (option_table.h) says how every option is spelled, which variable stands for it, what
// kind of value it has and what it does; parsing, help and completion all read that table. The
// spellings, variables and defaults are those of torchrun; rows marked as ours are additions.
//
// Pure: the environment is an argument.
#pragma once

#include "muster/base/clock.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace muster::launch {

// The environment variables of this process.
using Variables = std::map<std::string, std::string, std::less<>>;
// From `environ`: the first of several entries of one name counts.
Variables read_variables(const char* const* entries);
// Nothing if it is not set; set and empty is the empty text.
std::optional<std::string> find_variable(const Variables& variables, std::string_view name);

// Under which name we were started. As `torchrun` every program is a Python script unless the
// command line says otherwise; as `muster run` only a `.py` file is, and all else runs as it is.
enum class Style { Muster, Torchrun };
// By the last part of the path: Torchrun for `torchrun` only.
Style style_of(std::string_view program_path);
// "muster run" or "torchrun".
std::string_view name_of(Style style);

struct Options {
  Style style = Style::Muster;

  // Nodes and workers.
  std::string nnodes = "1:1";
  std::string nproc_per_node = "1";
  std::string role = "default";

  // Rendezvous.
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint = {};
  std::string rdzv_id = "none";
  std::string rdzv_conf = {};
  bool standalone = false;
  std::int64_t node_rank = 0;
  std::string master_addr = "127.0.0.1";
  std::optional<std::int64_t> master_port = {};
  std::optional<std::string> local_addr = {};

  // The program.
  bool module = false;
  bool no_python = false;
  bool python = false;  // ours: run the program with Python, whatever it is called
  bool run_path = false;
  std::string start_method = "spawn";
  bool virtual_local_rank = false;
  bool dry_run = false;  // ours

  // Restarts and time limits.
  std::int64_t max_restarts = 0;
  std::string restart_scope = "job";                  // ours
  std::int64_t max_departures = -1;                   // ours
  std::optional<Duration> restart_window = {};        // ours
  std::optional<Duration> restart_delay = {};         // ours
  std::optional<Duration> restart_delay_max = {};     // ours
  double monitor_interval = 0.1;                      // seconds
  std::optional<std::int64_t> shutdown_timeout = {};  // seconds
  std::optional<Duration> exit_barrier_timeout = {};
  std::optional<Duration> start_timeout = {};  // ours
  std::optional<Duration> hang_timeout = {};   // ours
  bool propagate_exit_code = false;            // ours
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  std::string signals_to_forward = {};  // ours

  // Logs.
  std::optional<std::string> log_dir = {};
  std::string redirects = "0";
  std::string tee = "0";
  std::string local_ranks_filter = {};
  std::optional<std::string> duplicate_stdout_filters = {};  // set and empty: every line
  std::optional<std::string> duplicate_stderr_filters = {};
  std::optional<std::string> log_line_prefix_template = {};
  std::optional<std::string> logs_specs = {};
  std::string log_format = "text";                     // ours
  std::optional<std::uint64_t> log_rotate_bytes = {};  // ours
  std::int64_t log_keep = 3;                           // ours
  std::optional<std::uint64_t> log_max_bytes = {};     // ours

  // Observation.
  std::string event_log_handler = "null";
  std::optional<std::string> http = {};  // ours

  // Placement.
  std::optional<std::string> numa_binding = {};
  std::string numa_memory = "default";  // ours

  std::string program = {};
  std::vector<std::string> arguments = {};

  // The names of those options that were given, by either way: "rdzv-id".
  std::set<std::string, std::less<>> given = {};
  // Those of them that came from a variable.
  std::set<std::string, std::less<>> from_variable = {};

  bool was_given(std::string_view name) const { return given.contains(name); }
};

// To be printed on standard output; the program then ends with success.
struct Print {
  std::string text;
};

// To be printed on standard error as it is, line ends included. The program ends with `status`: 2
// for usage errors, 1 for a flag's variable that is no number.
struct Refusal {
  std::string text;
  int status = 2;
};

using Parsed = std::variant<Options, Print, Refusal>;

// Reads the words behind `muster run` or `torchrun`. Options end at the program, whose arguments
// are never looked at. One `--` directly before the program, else one directly behind it, is
// dropped. Each option comes from the command line, else from its variable, else has its default.
Parsed parse(std::span<const std::string> words, const Variables& variables, Style style);

}  // namespace muster::launch
