#include "muster/cli/run_command.h"

#include "muster/agent/agent.h"
#include "muster/agent/records.h"
#include "muster/agent/twins.h"
#include "muster/backends/builtin.h"
#include "muster/backends/machine.h"
#include "muster/base/log.h"
#include "muster/base/signal_name.h"
#include "muster/cli/run_plan.h"
#include "muster/failures/error_file.h"
#include "muster/failures/exit_status.h"
#include "muster/failures/report.h"
#include "muster/failures/root_cause.h"
#include "muster/failures/upward.h"
#include "muster/launch/command.h"
#include "muster/launch/facts.h"
#include "muster/launch/resolve.h"
#include "muster/logs/prefix.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/observe/address.h"
#include "muster/observe/sinks.h"
#include "muster/process/guard.h"
#include "muster/process/host.h"
#include "muster/process/signals.h"
#include "muster/rendezvous/plugins.h"
#include "muster/rendezvous/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <variant>

extern char** environ;

namespace muster::cli {
namespace {

using launch::LaunchConfig;

// How long the last records may take on their way out.
constexpr Duration kRecordsTime = std::chrono::seconds(2);

std::string temporary_folder() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

// One line for the user, and the reason for whoever started us.
int refuse(const Error& error) {
  fmt::print(stderr, "muster: {}\n", error.message);
  const char* target = std::getenv(failures::kErrorFileVariable);
  const auto passed = failures::pass_own_error_upward(error, target == nullptr ? "" : target);
  if (!passed) log::warn("agent", "{}", passed.error().message);
  return 1;
}

// The parts of the configuration that other libraries read, read before anything is started.
struct Readings {
  logs::Routing routing;
  logs::OutputOptions output;
  std::optional<net::Endpoint> http;
};

Result<Readings> read_texts(const LaunchConfig& config) {
  Readings made;
  auto redirects = logs::parse_streams(config.logs.redirects);
  if (!redirects) return fail(std::move(redirects.error()));
  made.routing.redirects = *redirects;
  auto tee = logs::parse_streams(config.logs.tee);
  if (!tee) return fail(std::move(tee.error()));
  made.routing.tee = *tee;
  auto ranks = logs::parse_ranks(config.logs.local_ranks);
  if (!ranks) return fail(std::move(ranks.error()));
  made.routing.console_ranks = *ranks;
  made.routing.null_device = config.logs.folder == logs::kNullDevice;
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  if (!logs::wants_colour(true, no_color, term)) made.output.colour = logs::Colour::Never;
  made.output.format = config.logs.json ? logs::Format::Json : logs::Format::Text;
  made.output.prefix_template = config.logs.prefix_template;
  if (config.logs.duplicate_stdout) {
    made.output.out_filters = logs::parse_duplicate_filters(*config.logs.duplicate_stdout);
  }
  if (config.logs.duplicate_stderr) {
    made.output.err_filters = logs::parse_duplicate_filters(*config.logs.duplicate_stderr);
  }
  made.output.files.rotate_bytes = config.logs.rotate_bytes;
  made.output.files.keep = config.logs.keep;
  made.output.files.max_bytes = config.logs.max_bytes;
  auto http = observe::parse_http_address(config.http);
  if (!http) return fail(std::move(http.error()));
  made.http = *http;
  auto sink = observe::check_sink_name(config.event_log_handler);
  if (!sink) return fail(std::move(sink.error()));
  return made;
}

failures::Outcome outcome_of(agent::Outcome outcome) {
  switch (outcome) {
    case agent::Outcome::Succeeded:
      return failures::Outcome::Succeeded;
    case agent::Outcome::Failed:
      return failures::Outcome::Failed;
    case agent::Outcome::Unconfirmed:
      return failures::Outcome::Unconfirmed;
    case agent::Outcome::Signalled:
      return failures::Outcome::Signalled;
    case agent::Outcome::Released:
      return failures::Outcome::Released;
    case agent::Outcome::Closed:
    case agent::Outcome::Error:
      return failures::Outcome::Refused;
  }
  return failures::Outcome::Refused;
}

// Says how it ended and passes the reason upward; returns the exit status.
int report(const LaunchConfig& config, const agent::Ending& ending) {
  failures::Ending final;
  final.outcome = outcome_of(ending.outcome);
  final.signal = ending.signal;
  final.propagate_exit_code = config.propagate_exit_code;
  const auto failures = failures::merge({ending.failures});
  const auto root = failures::root_cause(failures);
  Result<failures::PassedUpward> passed;
  switch (ending.outcome) {
    case agent::Outcome::Failed:
      if (root) final.root = &failures[*root];
      if (!ending.message.empty()) fmt::print(stderr, "muster: {}\n", ending.message);
      if (failures.empty()) {
        const std::string message =
            ending.message.empty() ? "the job failed on another node" : ending.message;
        if (ending.message.empty()) fmt::print(stderr, "muster: {}\n", message);
        Error error{ErrorKind::Closed, message};
        passed = failures::pass_own_error_upward(error, config.switches.error_file);
        break;
      }
      {
        failures::ReportOptions options;
        options.job_name = config.command.display_name;
        // Without output in files, and without error files, it is gone again.
        if (::access(ending.log_folder.c_str(), F_OK) == 0) options.log_folder = ending.log_folder;
        fmt::print(stderr, "{}", failures::report(failures, options));
      }
      if (root) passed = failures::pass_upward(failures[*root], config.switches.error_file);
      break;
    case agent::Outcome::Closed:
    case agent::Outcome::Error: {
      const std::string message =
          ending.message.empty() ? "the run was closed while it was going on" : ending.message;
      fmt::print(stderr, "muster: {}\n", message);
      Error error{ErrorKind::Closed, message};
      passed = failures::pass_own_error_upward(error, config.switches.error_file);
      break;
    }
    case agent::Outcome::Unconfirmed:
      if (!ending.message.empty()) fmt::print(stderr, "muster: {}\n", ending.message);
      fmt::print(stderr,
                 "muster: the workers of this node ended well, but the other nodes did not confirm "
                 "that theirs did; the outcome of the job is not known\n");
      break;
    case agent::Outcome::Signalled:
      fmt::print(stderr, "muster: ended by {}\n", signal_name(ending.signal));
      break;
    case agent::Outcome::Succeeded:
    case agent::Outcome::Released:
      break;
  }
  if (!passed) log::warn("agent", "{}", passed.error().message);
  return failures::exit_status(final);
}

// While it lives, what the agent logs is in order with what the workers print, and a console that
// nobody reads does not stop the agent.
class OwnLines {
 public:
  explicit OwnLines(logs::Output& output) {
    log::set_sink([&output, loop_thread = std::this_thread::get_id()](
                      log::Level level, std::string_view part, std::string_view message) {
      std::string line = log::line_of(level, part, message);
      if (std::this_thread::get_id() == loop_thread) {
        output.say(logs::Stream::Err, line);
        return;
      }
      line += '\n';
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    });
  }
  ~OwnLines() { log::set_sink({}); }
  OwnLines(const OwnLines&) = delete;
  OwnLines& operator=(const OwnLines&) = delete;
};

// Two pipes and two files for each worker, its pidfd, and something for ourselves.
void allow_files(int worker_count) {
  const rlim_t needed = static_cast<rlim_t>(worker_count) * 6 + 256;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::vector<int> all_signals(const LaunchConfig& config) {
  std::vector<int> all = config.signals_to_handle;
  all.insert(all.end(), config.signals_to_forward.begin(), config.signals_to_forward.end());
  return all;
}

// Everything that lives as long as the job does.
class Launch {
 public:
  Launch(const LaunchConfig& config, Readings readings, process::Guard* guard)
      : config_(config),
        readings_(std::move(readings)),
        parameters_(config.rendezvous),
        transport_(loop_),
        machine_(loop_, transport_),
        random_(Random::from_system()),
        guard_(guard),
        host_(loop_, guard) {}

  int run() {
    host_name_ = loop_.block_on(machine_.name());
    readings_.output.hostname = logs::short_host_name(host_name_);
    logs::Output output(loop_, readings_.output);
    const OwnLines own_lines(output);
    logs::LogFolder folder({config_.logs.folder, config_.rendezvous.run_id, temporary_folder()},
                           Random::from_system());
    const auto usable = folder.check();
    if (!usable) return refuse(usable.error());
    // A temporary folder that nobody has written to is removed in the end, whoever ends us.
    if (guard_ != nullptr && config_.logs.folder.empty()) {
      guard_->watch_empty_folders(std::filesystem::path(folder.path()).parent_path().string());
    }
    // Known already: the rendezvous need not find it out again.
    if (parameters_.local_addr.empty()) parameters_.local_addr = host_name_;
    backends::add_builtin_backends(registry_, loop_, machine_);
    rendezvous::discover_plugins(registry_, rendezvous::plugin_folders());

    agent::RecordsOptions records_options;
    records_options.job = {config_.rendezvous.run_id, config_.role, host_name_,
                           config_.rendezvous.backend, launch::entry_point_of(config_.command)};
    records_options.sink = config_.event_log_handler;
    records_options.http = readings_.http;
    records_options.console = [&output](std::string_view line) {
      if (line.ends_with('\n')) line.remove_suffix(1);
      output.say(logs::Stream::Err, line);
    };
    records_options.restarts_max = static_cast<int>(config_.max_restarts);
    auto records = agent::Records::create(loop_, transport_, std::move(records_options));
    if (!records) return refuse(records.error());

    agent::CrewSurroundings crew{loop_,
                                 host_,
                                 output,
                                 folder,
                                 config_,
                                 readings_.routing,
                                 agent::read_environment(environ),
                                 host_name_,
                                 guard_};
    rendezvous::Environment environment{loop_, random_, records->get()};
    agent::AgentParts parts{crew, random_, **records,
                            [&] { return registry_.create(parameters_, environment); },
                            temporary_folder()};
    agent::Agent agent(std::move(parts));
    (*records)->before_metrics([&] { agent.show_state(); });
    auto port =
        (*records)->serve({[&] { return agent.health(); }, [&] { return agent.status_json(); }});
    if (!port) return refuse(port.error());
    if (*port != 0) log::info("agent", "health, status, metrics and events on port {}", *port);

    const process::Signals ending_signals(loop_, config_.signals_to_handle,
                                          [&](int signal, pid_t sender) {
                                            if (is_new(signal, sender)) agent.signalled(signal);
                                          });
    std::optional<process::Signals> forwarded;
    if (!config_.signals_to_forward.empty()) {
      forwarded.emplace(loop_, config_.signals_to_forward, [&](int signal, pid_t sender) {
        if (is_new(signal, sender)) agent.forward(signal);
      });
    }
    std::optional<net::FdWatch> guard_watch;
    if (guard_ != nullptr) {
      guard_watch.emplace(loop_, guard_->pidfd(), [&](std::uint32_t) {
        guard_watch->want(0);
        agent.guard_lost();
      });
      guard_watch->want(EPOLLIN);
    }
    const agent::Ending ending = loop_.block_on(agent.run());
    (void)loop_.block_on(output.drain(after(loop_.now(), kRecordsTime)));
    folder.remove_if_empty();
    const int status = report(config_, ending);
    loop_.block_on((*records)->events().drain(after(loop_.now(), kRecordsTime)));
    ended_by_ =
        ending.outcome == agent::Outcome::Signalled && !ending.workers_started ? ending.signal : 0;
    return status;
  }

  // The signal that ended it before any worker was started; 0: none.
  int ended_by() const { return ended_by_; }

 private:
  bool is_new(int signal, pid_t sender) {
    return twins_.is_new(signal, guard_ != nullptr && sender == guard_->pid(), loop_.now());
  }

  const LaunchConfig& config_;
  Readings readings_;
  rendezvous::Parameters parameters_;
  net::EpollLoop loop_;
  net::TcpTransport transport_;
  backends::SystemMachine machine_;
  Random random_;
  rendezvous::Registry registry_;
  process::Guard* guard_;  // may be missing
  process::Host host_;
  agent::Twins twins_;
  std::string host_name_;
  int ended_by_ = 0;
};

}  // namespace

int run_command(const std::vector<std::string>& words, launch::Style style) {
  // Before anything else: from here on no signal is lost, and none ends us half way.
  process::block_signals({SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  const launch::Variables variables = launch::read_variables(environ);
  launch::Parsed parsed = launch::parse(words, variables, style);
  if (const auto* print = std::get_if<launch::Print>(&parsed)) {
    fmt::print("{}", print->text);
    return 0;
  }
  if (const auto* refusal = std::get_if<launch::Refusal>(&parsed)) {
    fmt::print(stderr, "{}", refusal->text);
    return refusal->status;
  }
  const auto& options = std::get<launch::Options>(parsed);
  launch::Facts facts = launch::read_facts(variables);
  // Only for their names; the job has a registry of its own.
  rendezvous::Registry plugins;
  for (std::string& name : rendezvous::discover_plugins(plugins, rendezvous::plugin_folders())) {
    facts.backends.push_back(std::move(name));
  }
  auto config = launch::resolve(options, facts);
  if (!config) return refuse(config.error());
  // nohup(1) has it ignored, and that shall stay so.
  if (process::is_ignored(SIGHUP)) std::erase(config->signals_to_handle, SIGHUP);
  log::set_level(config->log_level);
  for (const std::string& warning : config->warnings) {
    fmt::print(stderr, "muster: warning: {}\n", warning);
  }
  fmt::print(stderr, "{}", config->banner);
  auto readings = read_texts(*config);
  if (!readings) return refuse(readings.error());
  for (const auto& [name, value] : config->environment) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  if (config->dry_run) {
    fmt::print("{}", describe_plan(*config));
    return 0;
  }
  // From here on there are two of us, and only the agent goes on; see guard.h.
  std::fflush(nullptr);
  auto guard = process::Guard::start();
  if (!guard) log::warn("agent", "the workers have no guard: {}", guard.error().message);
  if (guard) guard->pass_on(all_signals(*config));
  allow_files(config->workers_per_node);
  int ended_by = 0;
  int status = 1;
  {
    Launch launch(*config, std::move(*readings), guard ? &*guard : nullptr);
    status = launch.run();
    ended_by = launch.ended_by();
  }
  if (ended_by != 0) failures::end_by_signal(ended_by);
  return status;
}

}  // namespace muster::cli
