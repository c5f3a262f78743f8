#include "muster/launch/option_table.h"

#include <algorithm>

namespace muster::launch {
namespace {

constexpr std::string_view kCounts[] = {"auto", "cpu", "gpu", "xpu"};
constexpr std::string_view kBackends[] = {"static", "c10d", "muster", "etcd", "etcd-v2", "file"};
constexpr std::string_view kStartMethods[] = {"spawn", "fork", "forkserver"};
constexpr std::string_view kRestartScopes[] = {"job", "worker"};
constexpr std::string_view kStreams[] = {"0", "1", "2", "3"};
constexpr std::string_view kFormats[] = {"text", "json"};
constexpr std::string_view kSinks[] = {"null", "console", "file:", "unix:"};
constexpr std::string_view kServers[] = {"off"};
constexpr std::string_view kNumaModes[] = {"node", "socket", "exclusive", "core-complex"};
constexpr std::string_view kNumaMemory[] = {"default", "bind", "prefer"};
constexpr std::string_view kShells[] = {"bash", "zsh", "tcsh"};

using O = Options;

constexpr OptionRow kTable[] = {
    // -- workers -------------------------------------------------------------------------------
    {.name = "nnodes",
     .group = Group::Workers,
     .value = "N|MIN:MAX",
     .field = &O::nnodes,
     .meaning = "how many nodes take part; with MIN:MAX nodes may come and go",
     .otherwise = "1"},
    {.name = "nproc-per-node",
     .group = Group::Workers,
     .value = "N",
     .field = &O::nproc_per_node,
     .meaning = "workers on this node: a number, or one for each CPU we may use (cpu), each GPU "
                "(gpu, xpu), or each GPU if there are any, else each CPU (auto)",
     .otherwise = "1",
     .words = kCounts},
    {.name = "role",
     .group = Group::Workers,
     .value = "NAME",
     .field = &O::role,
     .meaning = "what the workers of this node are called",
     .otherwise = "default"},

    // -- rendezvous ----------------------------------------------------------------------------
    {.name = "standalone",
     .group = Group::Rendezvous,
     .field = &O::standalone,
     .meaning = "one node alone, on a free port; overrides backend, endpoint and id"},
    {.name = "rdzv-backend",
     .group = Group::Rendezvous,
     .value = "NAME",
     .field = &O::rdzv_backend,
     .meaning = "how the nodes find one another: static, c10d, muster, etcd, etcd-v2, file, or a "
                "plug-in",
     .otherwise = "static",
     .words = kBackends},
    {.name = "rdzv-endpoint",
     .group = Group::Rendezvous,
     .value = "HOST[:PORT]",
     .field = &O::rdzv_endpoint,
     .meaning = "where they meet"},
    {.name = "rdzv-id",
     .group = Group::Rendezvous,
     .value = "ID",
     .field = &O::rdzv_id,
     .meaning = "the name of this run, the same on all nodes",
     .otherwise = "none"},
    {.name = "rdzv-conf",
     .group = Group::Rendezvous,
     .value = "KEY=VALUE,...",
     .field = &O::rdzv_conf,
     .meaning = "further options of the backend"},
    {.name = "node-rank",
     .group = Group::Rendezvous,
     .value = "N",
     .field = &O::node_rank,
     .meaning = "the rank of this node; static only",
     .otherwise = "0"},
    {.name = "master-addr",
     .group = Group::Rendezvous,
     .value = "HOST",
     .field = &O::master_addr,
     .meaning = "the address of the node of rank 0; static only",
     .otherwise = "127.0.0.1"},
    {.name = "master-port",
     .group = Group::Rendezvous,
     .value = "PORT",
     .field = &O::master_port,
     .meaning = "its port; static only",
     .otherwise = "29500"},
    {.name = "local-addr",
     .group = Group::Rendezvous,
     .value = "HOST",
     .field = &O::local_addr,
     .meaning = "the address by which other nodes reach this one",
     .otherwise = "the machine's full name"},

    // -- program -------------------------------------------------------------------------------
    {.name = "module",
     .letter = 'm',
     .group = Group::Program,
     .field = &O::module,
     .meaning = "the program is a Python module, as with `python -m`"},
    {.name = "no-python",
     .group = Group::Program,
     .field = &O::no_python,
     .meaning = "execute the program itself, whatever it is called"},
    {.name = "python",
     .group = Group::Program,
     .field = &O::python,
     .meaning = "run the program with Python, whatever it is called",
     .ours = true},
    {.name = "run-path",
     .group = Group::Program,
     .field = &O::run_path,
     .meaning = "run the script in a fresh Python as its main program; wins over --no-python"},
    {.name = "start-method",
     .group = Group::Program,
     .value = "METHOD",
     .field = &O::start_method,
     .meaning = "for --run-path; workers always start fresh (spawn)",
     .otherwise = "spawn",
     .words = kStartMethods,
     .only_words = true},
    {.name = "virtual-local-rank",
     .group = Group::Program,
     .field = &O::virtual_local_rank,
     .meaning = "every worker sees LOCAL_RANK=0 and one GPU"},
    {.name = "dry-run",
     .group = Group::Program,
     .field = &O::dry_run,
     .meaning = "print what would be done, and do nothing",
     .ours = true},

    // -- limits --------------------------------------------------------------------------------
    {.name = "max-restarts",
     .group = Group::Limits,
     .value = "N",
     .field = &O::max_restarts,
     .meaning = "how often failed workers are restarted",
     .otherwise = "0"},
    {.name = "restart-scope",
     .group = Group::Limits,
     .value = "SCOPE",
     .field = &O::restart_scope,
     .meaning = "what is restarted when a worker fails: the whole job, or only that worker",
     .otherwise = "job",
     .words = kRestartScopes,
     .only_words = true,
     .ours = true},
    {.name = "max-departures",
     .group = Group::Limits,
     .value = "N",
     .field = &O::max_departures,
     .meaning = "how often the job may lose a node and go on with the others; -1: always",
     .otherwise = "-1",
     .ours = true},
    {.name = "restart-window",
     .group = Group::Limits,
     .value = "TIME",
     .field = &O::restart_window,
     .meaning = "count only the restarts, and departures, of the last TIME",
     .otherwise = "all count",
     .ours = true},
    {.name = "restart-delay",
     .group = Group::Limits,
     .value = "TIME",
     .field = &O::restart_delay,
     .meaning = "wait so long before the first restart, and twice as long before each next one",
     .otherwise = "0",
     .ours = true},
    {.name = "restart-delay-max",
     .group = Group::Limits,
     .value = "TIME",
     .field = &O::restart_delay_max,
     .meaning = "but never longer than this",
     .otherwise = "1m",
     .ours = true},
    {.name = "monitor-interval",
     .group = Group::Limits,
     .value = "SECONDS",
     .field = &O::monitor_interval,
     .meaning = "accepted for torchrun's sake: failures are noticed at once",
     .otherwise = "0.1"},
    {.name = "shutdown-timeout",
     .group = Group::Limits,
     .value = "SECONDS",
     .field = &O::shutdown_timeout,
     .meaning = "between asking workers to stop and SIGKILL; else TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
     .otherwise = "30"},
    {.name = "exit-barrier-timeout",
     .group = Group::Limits,
     .value = "TIME",
     .field = &O::exit_barrier_timeout,
     .meaning = "how long a node that is done waits for the others; -1: as long as they run; else "
                "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT",
     .otherwise = "-1, static 300",
     .ours = true},
    {.name = "start-timeout",
     .group = Group::Limits,
     .value = "TIME",
     .field = &O::start_timeout,
     .meaning = "workers must say `muster ready` within this time",
     .otherwise = "none",
     .ours = true},
    {.name = "hang-timeout",
     .group = Group::Limits,
     .value = "TIME",
     .field = &O::hang_timeout,
     .meaning = "a worker that said `muster alive` must say it again within this time",
     .otherwise = "none",
     .ours = true},
    {.name = "propagate-exit-code",
     .group = Group::Limits,
     .field = &O::propagate_exit_code,
     .meaning = "end with the status of the worker that failed first (128+N for signal N)",
     .ours = true},
    {.name = "signals-to-handle",
     .group = Group::Limits,
     .value = "NAMES",
     .field = &O::signals_to_handle,
     .meaning = "signals that end the job; the workers get the same one",
     .otherwise = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
    {.name = "signals-to-forward",
     .group = Group::Limits,
     .value = "NAMES",
     .field = &O::signals_to_forward,
     .meaning = "signals that are only passed on to the workers",
     .ours = true},

    // -- logs ----------------------------------------------------------------------------------
    {.name = "log-dir",
     .group = Group::Logs,
     .value = "FOLDER",
     .field = &O::log_dir,
     .meaning = "where log files go",
     .otherwise = "a temporary folder",
     .completes = Completes::Folders},
    {.name = "redirects",
     .letter = 'r',
     .group = Group::Logs,
     .value = "STREAMS",
     .field = &O::redirects,
     .meaning = "streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank: "
                "0:3,4-7:1",
     .otherwise = "0",
     .words = kStreams},
    {.name = "tee",
     .letter = 't',
     .group = Group::Logs,
     .value = "STREAMS",
     .field = &O::tee,
     .meaning = "streams that go to files and to the console",
     .otherwise = "0",
     .words = kStreams},
    {.name = "local-ranks-filter",
     .group = Group::Logs,
     .value = "RANKS",
     .field = &O::local_ranks_filter,
     .meaning = "only these workers write to the console: 0,3,8-11",
     .otherwise = "all"},
    {.name = "duplicate-stdout-filters",
     .group = Group::Logs,
     .value = "TEXTS",
     .field = &O::duplicate_stdout_filters,
     .meaning = "copy tee'd stdout lines that contain one of these texts to one more file; comma "
                "separated, a doubled comma stands for one"},
    {.name = "duplicate-stderr-filters",
     .group = Group::Logs,
     .value = "TEXTS",
     .field = &O::duplicate_stderr_filters,
     .meaning = "the same for stderr"},
    {.name = "log-line-prefix-template",
     .group = Group::Logs,
     .value = "TEXT",
     .field = &O::log_line_prefix_template,
     .meaning = "begins tee'd lines; knows ${role_name} ${rank} ${local_rank} ${hostname}; else "
                "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
     .otherwise = "[${role_name}${local_rank}]:"},
    {.name = "logs-specs",
     .group = Group::Logs,
     .value = "NAME",
     .field = &O::logs_specs,
     .meaning = "the layout of the log folder; there is only one",
     .otherwise = "default",
     .has_variable = false},
    {.name = "log-format",
     .group = Group::Logs,
     .value = "FORMAT",
     .field = &O::log_format,
     .meaning = "of tee'd lines on the console: text or json",
     .otherwise = "text",
     .words = kFormats,
     .only_words = true,
     .ours = true},
    {.name = "log-rotate-bytes",
     .group = Group::Logs,
     .value = "SIZE",
     .field = &O::log_rotate_bytes,
     .meaning = "begin a new file when one has this size",
     .otherwise = "never",
     .ours = true},
    {.name = "log-keep",
     .group = Group::Logs,
     .value = "N",
     .field = &O::log_keep,
     .meaning = "how many full files are kept",
     .otherwise = "3",
     .ours = true},
    {.name = "log-max-bytes",
     .group = Group::Logs,
     .value = "SIZE",
     .field = &O::log_max_bytes,
     .meaning = "write no more than this of one stream of one worker",
     .otherwise = "no limit",
     .ours = true},

    // -- observation ---------------------------------------------------------------------------
    {.name = "event-log-handler",
     .group = Group::Observation,
     .value = "SINK",
     .field = &O::event_log_handler,
     .meaning = "where events go: null, console, file:PATH, unix:PATH",
     .otherwise = "null",
     .words = kSinks},
    {.name = "http",
     .group = Group::Observation,
     .value = "ADDRESS",
     .field = &O::http,
     .meaning = "serve health, status, metrics and events: off, PORT (this machine only), or "
                "HOST:PORT; else TORCHELASTIC_HEALTH_CHECK_PORT",
     .otherwise = "off",
     .words = kServers,
     .ours = true},

    // -- placement -----------------------------------------------------------------------------
    {.name = "numa-binding",
     .group = Group::Placement,
     .value = "MODE",
     .field = &O::numa_binding,
     .meaning = "bind each worker to the CPUs near its GPU, or divide the CPUs if there is none: "
                "node, socket, exclusive, core-complex",
     .otherwise = "none",
     .words = kNumaModes,
     .only_words = true,
     .has_variable = false},
    {.name = "numa-memory",
     .group = Group::Placement,
     .value = "POLICY",
     .field = &O::numa_memory,
     .meaning = "and its memory: default, bind (only there), prefer (there first)",
     .otherwise = "default",
     .words = kNumaMemory,
     .only_words = true,
     .ours = true},

    // -- other ---------------------------------------------------------------------------------
    {.name = "print-completion",
     .group = Group::Other,
     .value = "SHELL",
     .meaning = "print the completion script of bash, zsh or tcsh",
     .words = kShells,
     .only_words = true,
     .has_variable = false},
    {.name = "help", .letter = 'h', .meaning = "print this", .has_variable = false},
};

}  // namespace

std::string_view title_of(Group group) {
  switch (group) {
    case Group::Workers:
      return "Workers";
    case Group::Rendezvous:
      return "Rendezvous";
    case Group::Program:
      return "Program";
    case Group::Limits:
      return "Restarts, time limits and signals";
    case Group::Logs:
      return "Logs";
    case Group::Observation:
      return "Observation";
    case Group::Placement:
      return "Placement";
    case Group::Other:
      return "Other";
  }
  return {};
}

std::span<const OptionRow> option_table() { return kTable; }

const OptionRow* find_row(std::string_view name) {
  const auto* found = std::ranges::find(kTable, name, &OptionRow::name);
  return found == std::end(kTable) ? nullptr : found;
}

std::string variable_of(const OptionRow& row) {
  std::string name = "PET_";
  for (const char letter : row.name) {
    name += letter == '-' ? '_' : static_cast<char>(letter - ('a' - 'A'));
  }
  return name;
}

}  // namespace muster::launch
