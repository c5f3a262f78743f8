#include "muster/launch/resolve.h"

#include "muster/base/signal_name.h"
#include "muster/base/suggest.h"
#include "muster/launch/numbers.h"
#include "muster/launch/resolve_parts.h"
#include "muster/rendezvous/endpoint.h"
#include "muster/rendezvous/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string_view>
#include <utility>

namespace muster::launch {
namespace {

// Whether a process can have it delivered to a handler of its own and go on.
bool can_be_handled(int number) {
  switch (number) {
    // The kernel gives these to nobody.
    case SIGKILL:
    case SIGSTOP:
    // These say that the process itself did something wrong; going on is not possible.
    case SIGILL:
    case SIGTRAP:
    case SIGBUS:
    case SIGFPE:
    case SIGSEGV:
    case SIGSYS:
    // The supervision of the workers needs it.
    case SIGCHLD:
      return false;
    default:
      return true;
  }
}

using rendezvous::trim;

constexpr Duration kRestartDelayMax = std::chrono::minutes(1);
// So many seconds fit into a Duration with room to add them up.
constexpr std::int64_t kSecondsMax = 1'000'000'000;

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorKind::Invalid, std::move(message));
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> items;
  while (true) {
    const std::size_t comma = text.find(',');
    items.push_back(trim(text.substr(0, comma)));
    if (comma == std::string_view::npos) return items;
    text.remove_prefix(comma + 1);
  }
}

class Resolver {
 public:
  Resolver(const Options& options, const Facts& facts) : options_(options), facts_(facts) {}

  Result<LaunchConfig> run() {
    for (const auto part : {&resolve_rendezvous, &resolve_logs}) {
      if (auto done = part(options_, facts_, config_); !done) return fail(std::move(done.error()));
    }
    for (const auto step :
         {&Resolver::resolve_workers, &Resolver::resolve_command, &Resolver::resolve_restarts,
          &Resolver::resolve_limits, &Resolver::resolve_signals, &Resolver::resolve_http,
          &Resolver::resolve_devices, &Resolver::resolve_numa}) {
      if (auto done = (this->*step)(); !done) return fail(std::move(done.error()));
    }
    resolve_threads();
    resolve_switches();
    config_.event_log_handler = options_.event_log_handler;
    config_.propagate_exit_code = options_.propagate_exit_code;
    config_.dry_run = options_.dry_run;
    return std::move(config_);
  }

 private:
  void warn(std::string message) { config_.warnings.push_back(std::move(message)); }

  std::optional<std::string> variable(std::string_view name) const {
    return find_variable(facts_.variables, name);
  }

  // -- workers -----------------------------------------------------------------------------------

  Result<> resolve_workers() {
    config_.role = options_.role;
    const auto count = count_workers();
    if (!count) return fail(count.error());
    if (*count < 1) {
      return refuse(fmt::format("--nproc-per-node is {}, but a node has at least 1 worker",
                                log::quote(options_.nproc_per_node)));
    }
    if (*count > kWorkersMax) {
      return refuse(fmt::format("--nproc-per-node is {}, but a node has at most {} workers",
                                log::quote(options_.nproc_per_node), kWorkersMax));
    }
    config_.workers_per_node = static_cast<int>(*count);
    return {};
  }

  Result<std::int64_t> count_workers() const {
    const std::string& text = options_.nproc_per_node;
    if (const auto number = parse_integer(text)) return *number;
    if (text == "cpu") return usable_cpu_count(facts_);
    if (text == "gpu") {
      const auto count = static_cast<std::int64_t>(facts_.visible_gpus().size());
      if (count > 0) return count;
      const auto visible = variable("CUDA_VISIBLE_DEVICES");
      return refuse(
          fmt::format("--nproc-per-node is gpu, but no CUDA device can be used{}; use cpu "
                      "or a number",
                      visible ? fmt::format(" (CUDA_VISIBLE_DEVICES is {})", log::quote(*visible))
                              : std::string()));
    }
    if (text == "xpu") {
      if (const int count = facts_.xpu_count(); count > 0) return count;
      return refuse("--nproc-per-node is xpu, but no XPU device can be used; use cpu or a number");
    }
    if (text == "auto") {
      if (const auto gpus = facts_.visible_gpus(); !gpus.empty())
        return static_cast<std::int64_t>(gpus.size());
      if (const int count = facts_.xpu_count(); count > 0) return count;
      return usable_cpu_count(facts_);
    }
    const std::string suggestion = nearest(text, {"auto", "cpu", "gpu", "xpu"});
    return refuse(fmt::format(
        "--nproc-per-node is {}, which is neither a number nor auto, cpu, gpu "
        "or xpu{}",
        log::quote(text),
        suggestion.empty() ? std::string() : fmt::format("; did you mean {}?", suggestion)));
  }

  // As torchrun: programs with a pool of threads would otherwise start one for each CPU in every
  // worker.
  void resolve_threads() {
    if (config_.workers_per_node == 1 || variable("OMP_NUM_THREADS")) return;
    config_.environment.emplace_back("OMP_NUM_THREADS", "1");
    const std::string frame(60, '*');
    config_.banner = fmt::format(
        "{0}\n"
        "OMP_NUM_THREADS is not set. Each of the {1} workers gets\n"
        "OMP_NUM_THREADS=1, so that they do not crowd the CPUs.\n"
        "Set it yourself if another number is faster.\n"
        "{0}\n",
        frame, config_.workers_per_node);
  }

  Result<> resolve_devices() {
    config_.virtual_local_rank = options_.virtual_local_rank;
    if (!options_.virtual_local_rank) return {};
    const auto list = variable("CUDA_VISIBLE_DEVICES");
    const auto count = static_cast<std::size_t>(config_.workers_per_node);
    // No device at all is a choice, too, and stays one.
    if (list && trim(*list).empty()) {
      config_.visible_devices.assign(count, "");
      return {};
    }
    const auto items = list ? split(*list) : std::vector<std::string_view>();
    if (list && items.size() < count) {
      return refuse(
          fmt::format("--virtual-local-rank gives each of the {} workers one device, but "
                      "CUDA_VISIBLE_DEVICES={} names only {}; lower --nproc-per-node or "
                      "name more",
                      count, *list, items.size()));
    }
    for (std::size_t rank = 0; rank < count; ++rank)
      config_.visible_devices.push_back(list ? std::string(items[rank]) : fmt::to_string(rank));
    return {};
  }

  Result<> resolve_command() {
    auto command = make_command(options_, facts_);
    if (!command) return fail(std::move(command.error()));
    config_.command = std::move(*command);
    const std::string& method = options_.start_method;
    if (options_.run_path) {
      constexpr std::array<std::string_view, 3> kMethods = {"spawn", "fork", "forkserver"};
      if (std::ranges::find(kMethods, method) == kMethods.end()) {
        return refuse(fmt::format("PET_START_METHOD is {}; it must be spawn, fork or forkserver",
                                  log::quote(method)));
      }
      if (options_.module) warn("--module has no effect with --run-path");
      if (method != "spawn")
        warn(fmt::format("--start-method {} has no effect: every worker starts fresh", method));
    }
    return {};
  }

  // -- restarts and limits -----------------------------------------------------------------------

  static Result<Duration> not_negative(std::string_view name, std::optional<Duration> given,
                                       Duration otherwise) {
    const Duration length = given.value_or(otherwise);
    if (length < Duration::zero())
      return refuse(fmt::format("--{} must not be negative; 0 turns it off", name));
    return length;
  }

  // Nothing for what lasts for ever.
  static Result<std::optional<Duration>> positive(std::string_view name,
                                                  std::optional<Duration> given) {
    if (!given || *given < Duration::zero()) return std::nullopt;
    if (*given == Duration::zero())
      return refuse(fmt::format("--{} must be above 0; leave it out for no limit", name));
    return given;
  }

  Result<> resolve_restarts() {
    if (options_.max_restarts < 0) {
      return refuse(
          fmt::format("--max-restarts is {}, but must be 0 or above", options_.max_restarts));
    }
    config_.max_restarts = options_.max_restarts;
    if (options_.max_departures < -1) {
      return refuse(fmt::format("--max-departures is {}, but must be -1 (any number) or above",
                                options_.max_departures));
    }
    config_.max_departures = options_.max_departures;
    if (options_.restart_scope != "job" && options_.restart_scope != "worker") {
      return refuse(fmt::format("--restart-scope is {}, but must be job or worker",
                                log::quote(options_.restart_scope)));
    }
    config_.restart_alone = options_.restart_scope == "worker";
    const auto window = not_negative("restart-window", options_.restart_window, {});
    if (!window) return fail(window.error());
    const auto delay = not_negative("restart-delay", options_.restart_delay, {});
    if (!delay) return fail(delay.error());
    const auto delay_max = not_negative("restart-delay-max", options_.restart_delay_max,
                                        std::max(kRestartDelayMax, *delay));
    if (!delay_max) return fail(delay_max.error());
    if (*delay_max < *delay) {
      return refuse(fmt::format("--restart-delay {} is above --restart-delay-max {}",
                                describe(*delay), describe(*delay_max)));
    }
    config_.restart_window = *window;
    config_.restart_delay = *delay;
    config_.restart_delay_max = *delay_max;
    return {};
  }

  Result<> resolve_limits() {
    if (!(options_.monitor_interval > 0) ||
        options_.monitor_interval > static_cast<double>(kSecondsMax)) {
      return refuse(fmt::format("--monitor-interval is {}, but must be a time above 0 seconds",
                                options_.monitor_interval));
    }
    config_.monitor_interval =
        std::max(Duration(1), std::chrono::duration_cast<Duration>(
                                  std::chrono::duration<double>(options_.monitor_interval)));
    if (auto done = resolve_shutdown(); !done) return done;
    if (auto done = resolve_barrier(); !done) return done;
    const auto start = positive("start-timeout", options_.start_timeout);
    if (!start) return fail(start.error());
    const auto hang = positive("hang-timeout", options_.hang_timeout);
    if (!hang) return fail(hang.error());
    config_.start_timeout = *start;
    config_.hang_timeout = *hang;
    return {};
  }

  Result<> resolve_shutdown() {
    constexpr std::string_view kVariable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    auto seconds = options_.shutdown_timeout;
    std::string source = "--shutdown-timeout";
    if (const auto text = variable(kVariable); text && !seconds) {
      source = kVariable;
      seconds = parse_integer(*text);
      if (!seconds) {
        return refuse(fmt::format("{} is {}, but must be a whole number of seconds", source,
                                  log::quote(*text)));
      }
    }
    if (!seconds) return {};
    if (*seconds < 0 || *seconds > kSecondsMax) {
      return refuse(fmt::format("{} is {}, but must be 0 (kill at once) to {} seconds", source,
                                *seconds, kSecondsMax));
    }
    config_.shutdown_timeout = std::chrono::seconds(*seconds);
    return {};
  }

  Result<> resolve_barrier() {
    constexpr std::string_view kVariable = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT";
    // Whoever notices that a node is lost can wait for the others as long as they run.
    const bool notices_loss = config_.rendezvous.backend != "static";
    config_.exit_barrier_timeout = notices_loss ? Duration(-1) : std::chrono::seconds(300);
    if (options_.exit_barrier_timeout) {
      config_.exit_barrier_timeout = *options_.exit_barrier_timeout;
    } else if (const auto text = variable(kVariable)) {
      if (!parse_duration(trim(*text), config_.exit_barrier_timeout)) {
        return refuse(fmt::format("{} is {}, but must be a time such as 300 or 5m", kVariable,
                                  log::quote(*text)));
      }
    }
    return {};
  }

  // -- signals -----------------------------------------------------------------------------------

  Result<> resolve_signals() {
    if (auto done = resolve_forwarded(); !done) return done;
    for (const std::string_view name : split(options_.signals_to_handle)) {
      const auto number = signal_named(name);
      if (!number || !can_be_handled(*number)) {
        warn(fmt::format("--signals-to-handle: {} {}; it is skipped", log::quote(name),
                         number ? "cannot be handled" : "is no signal"));
        continue;
      }
      auto& handled = config_.signals_to_handle;
      const bool forwarded = std::ranges::find(config_.signals_to_forward, *number) !=
                             config_.signals_to_forward.end();
      if (forwarded && options_.was_given("signals-to-handle")) {
        return refuse(
            fmt::format("{} cannot both end the job (--signals-to-handle) and be passed "
                        "on (--signals-to-forward)",
                        name));
      }
      if (!forwarded && std::ranges::find(handled, *number) == handled.end())
        handled.push_back(*number);
    }
    config_.environment.emplace_back("TORCHELASTIC_SIGNALS_TO_HANDLE", options_.signals_to_handle);
    return {};
  }

  Result<> resolve_forwarded() {
    if (trim(options_.signals_to_forward).empty()) return {};
    for (const std::string_view name : split(options_.signals_to_forward)) {
      const auto number = signal_named(name);
      if (!number) {
        const std::string suggestion = nearest(name, signal_names());
        return refuse(fmt::format(
            "--signals-to-forward: there is no signal {}{}", log::quote(name),
            suggestion.empty() ? std::string() : fmt::format("; did you mean {}?", suggestion)));
      }
      if (!can_be_handled(*number))
        return refuse(fmt::format("--signals-to-forward: {} cannot be passed on", name));
      auto& forwarded = config_.signals_to_forward;
      if (std::ranges::find(forwarded, *number) == forwarded.end()) forwarded.push_back(*number);
    }
    return {};
  }

  // -- observation -------------------------------------------------------------------------------

  Result<> resolve_http() {
    if (options_.http) {
      const std::string text(trim(*options_.http));
      if (!is_http_address(text)) {
        return refuse(fmt::format("--http is {}; write off, PORT, HOST:PORT or :PORT",
                                  log::quote(*options_.http)));
      }
      config_.http = text;
      return {};
    }
    const auto port = variable("TORCHELASTIC_HEALTH_CHECK_PORT");
    if (!port) return {};
    if (is_port(trim(*port))) {
      config_.http = std::string(trim(*port));
    } else {
      warn(fmt::format("TORCHELASTIC_HEALTH_CHECK_PORT is {}, which is no port; it is ignored",
                       log::quote(*port)));
    }
    return {};
  }

  static bool is_port(std::string_view text) {
    constexpr std::size_t kDigitsMax = 5;
    const bool digits = !text.empty() && text.size() <= kDigitsMax &&
                        text.find_first_not_of("0123456789") == std::string_view::npos;
    return digits && *parse_integer(text) <= 65535;
  }

  // A port without a host is one at every address.
  static bool is_http_address(std::string_view text) {
    if (text == "off" || is_port(text)) return true;
    if (text.starts_with(':')) return is_port(text.substr(1));
    return rendezvous::has_port(text) && rendezvous::parse_endpoint(text, 0).has_value();
  }

  void resolve_switches() {
    AgentSwitches& switches = config_.switches;
    switches.file_timer = variable("TORCHELASTIC_ENABLE_FILE_TIMER") == "1";
    switches.timer_file = variable("TORCHELASTIC_TIMER_FILE").value_or("");
    switches.error_file = variable("TORCHELASTIC_ERROR_FILE").value_or("");
    switches.worker_identical = variable("TORCH_ELASTIC_WORKER_IDENTICAL") == "1";
    switches.share_store = variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1";
    constexpr std::string_view kStuck = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT";
    if (const auto text = variable(kStuck)) {
      const bool read = parse_duration(trim(*text), switches.uninterruptible_timeout);
      if (!read)
        warn(fmt::format("{} is {}, which is no time; it is ignored", kStuck, log::quote(*text)));
      switches.uninterruptible_timeout = std::max(switches.uninterruptible_timeout, Duration());
    }
    resolve_log_level();
  }

  // The names and numbers of Python's logging.
  void resolve_log_level() {
    const auto text = variable("LOGLEVEL");
    if (!text || trim(*text).empty()) return;
    const std::string name = rendezvous::lower_case(trim(*text));
    if (const auto number = parse_integer(name)) {
      config_.log_level = *number <= 10   ? log::Level::Debug
                          : *number <= 20 ? log::Level::Info
                          : *number <= 30 ? log::Level::Warn
                                          : log::Level::Error;
    } else if (name == "warning") {
      config_.log_level = log::Level::Warn;
    } else if (name == "critical" || name == "fatal") {
      config_.log_level = log::Level::Error;
    } else if (name == "notset") {
      config_.log_level = log::Level::Debug;
    } else if (!log::parse_level(name, config_.log_level)) {
      warn(fmt::format("LOGLEVEL is {}; it may be DEBUG, INFO, WARNING or ERROR",
                       log::quote(*text)));
    }
  }

  // -- placement ---------------------------------------------------------------------------------

  Result<> resolve_numa() {
    const auto memory = parse_numa_memory(options_.numa_memory);
    if (!memory) {
      return refuse(fmt::format("PET_NUMA_MEMORY is {}; it must be default, bind or prefer",
                                log::quote(options_.numa_memory)));
    }
    config_.numa_memory = *memory;
    if (!options_.numa_binding) {
      if (*memory == NumaMemory::Default) return {};
      return refuse("--numa-memory needs --numa-binding, which says where the memory is to be");
    }
    config_.numa_mode = parse_numa_mode(*options_.numa_binding);
    if (!config_.numa_mode) {
      return refuse(
          fmt::format("--numa-binding is {}; it must be node, socket, exclusive or "
                      "core-complex",
                      log::quote(*options_.numa_binding)));
    }
    NumaRequest request;
    request.mode = *config_.numa_mode;
    request.worker_count = config_.workers_per_node;
    request.allowed_cpus = facts_.cpus;
    for (const Gpu& gpu : facts_.visible_gpus()) {
      if (gpu.pci_address.empty()) {
        return refuse(
            "--numa-binding: the PCI address of a GPU is not known, so its NUMA node is "
            "not either; run without --numa-binding");
      }
      const auto node = facts_.device_node(gpu.pci_address);
      if (!node) return fail(node.error());
      request.gpu_nodes.push_back(*node);
    }
    const auto topology = facts_.topology();
    if (!topology) return fail(topology.error());
    auto bindings = bind_workers(request, *topology);
    if (!bindings) return fail(std::move(bindings.error()));
    config_.bindings = std::move(*bindings);
    return {};
  }

  const Options& options_;
  const Facts& facts_;
  LaunchConfig config_;
};

}  // namespace

Result<LaunchConfig> resolve(const Options& options, const Facts& facts) {
  return Resolver(options, facts).run();
}

}  // namespace muster::launch
