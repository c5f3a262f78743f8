#include "muster/worker/worker.h"

#include "muster/base/log.h"
#include "muster/rpc/call.h"
#include "muster/rpc/call_table.h"
#include "muster/rpc/gather.h"
#include "muster/rpc/network_agent.h"
#include "muster/rpc/open_store.h"
#include "muster/rpc/own_address.h"
#include "muster/rpc/texts.h"
#include "muster/rref/keeper.h"
#include "muster/worker/testing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

namespace muster::rpc {
namespace {

// What outlives `init` and `shutdown`.
struct Process {
  Gather gather{functions()};
  std::mutex mutex;  // guards what follows
  bool is_starting = false;
  bool is_stopping = false;
  std::shared_ptr<NetworkAgent> agent;
  std::unique_ptr<FunctionServer> server;
  std::shared_ptr<rref::Keeper> keeper;
  Duration exit_patience = std::chrono::seconds(10);

  // Whether this thread runs for RPC, so that to wait for the end of RPC would be for ever.
  // Requires: the lock, and an agent.
  bool is_run_by_rpc() const {
    return caller() != nullptr || agent->is_current() || (server && server->is_current());
  }
};

// The ids of references are never used again, whatever agents come and go.
rref::IdSource& reference_ids() {
  static auto* const kIds = new rref::IdSource;
  return *kIds;
}

Process& process() {
  // Never destroyed: threads that are still in a call at the end of the program may use it.
  static auto* const kProcess = new Process;
  return *kProcess;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

Result<std::int64_t> number_from(const char* name) {
  const std::string text = environment(name);
  if (text.empty()) {
    return fail(ErrorKind::Invalid,
                fmt::format("environment variable {} expected, but not set; start the program with "
                            "`muster run`, or give the option",
                            name));
  }
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return fail(ErrorKind::Invalid, fmt::format("environment variable {} must be a number, not {}",
                                                name, log::quote(text)));
  }
  return number;
}

// How long references may take to be settled when all calls have ended.
constexpr Duration kCleanUpMax = std::chrono::seconds(100);
// Likewise, of a worker that leaves a dynamic group: until then the others wait for it wherever all
// gather, and what it holds is released when it has left.
constexpr Duration kLeaveCleanUpMax = std::chrono::seconds(5);

// What tells a round of the job from others, as far as the launcher says so; the same for all
// workers of the round.
std::string round_of_job() {
  if (const std::string round = environment("MUSTER_ROUND"); !round.empty()) return round;
  const std::string restart_count = environment("TORCHELASTIC_RESTART_COUNT");
  if (restart_count.empty() || environment("GROUP_WORLD_SIZE") == "1") return restart_count;
  // Each agent of torchrun counts only the failures of its own workers. What all nodes are told
  // alike is where rank 0 is, which most versions choose anew for each round, and how many come.
  return fmt::format("{}/{}", environment("MASTER_PORT"), environment("WORLD_SIZE"));
}

// What `init` makes of its options and the environment.
struct Plan {
  explicit Plan(const WorkerInfo& self) : agent(self) {}

  AgentOptions agent;
  net::Endpoint store;
  std::string file;   // instead of `store`
  std::string group;  // the same on all its workers, and different for each round
  Duration patience = Duration::zero();
  std::size_t thread_count = 0;
};

double seconds_of(Duration length) { return std::chrono::duration<double>(length).count(); }

// Whether the launcher says that the job has workers on other machines.
bool spans_machines() {
  const std::string nodes = environment("GROUP_WORLD_SIZE");
  if (!nodes.empty()) return nodes != "1";
  const std::string here = environment("LOCAL_WORLD_SIZE");
  return !here.empty() && here != environment("WORLD_SIZE");
}

// Nothing in `store`: it is not known where the others are.
Result<std::string> own_address(const InitOptions& options,
                                const std::optional<net::Endpoint>& store) {
  if (!options.address.empty()) return options.address;
  for (const char* const variable : {"MUSTER_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}) {
    if (const std::string name = environment(variable); !name.empty()) {
      return address_of_interface(name);
    }
  }
  return address_for_others(store, spans_machines());
}

Result<Plan> plan(const InitOptions& options) {
  if (options.thread_count == 0) return fail(ErrorKind::Invalid, bad_thread_count_text(0));
  const auto timeout = default_timeout(seconds_of(options.timeout));
  if (!timeout) return fail(timeout.error());
  const auto rank = options.rank ? Result<std::int64_t>(*options.rank) : number_from("RANK");
  if (!rank) return fail(rank.error());
  std::optional<std::int64_t> world_size = options.world_size;
  if (!options.dynamic && !world_size) {
    const auto number = number_from("WORLD_SIZE");
    if (!number) return fail(number.error());
    world_size = *number;
  }
  if (options.dynamic) world_size.reset();
  const std::string name = options.name.empty() ? fmt::format("worker{}", *rank) : options.name;
  auto info = WorkerInfo::create_member(name, *rank);
  if (!info) return fail(info.error());
  if (world_size && (*world_size <= 0 || *rank >= *world_size)) {
    return fail(ErrorKind::Invalid,
                fmt::format("rank {} does not belong to a world of size {}", *rank, *world_size));
  }
  std::string where = options.store;
  if (where.empty()) {
    const auto port = number_from("MASTER_PORT");
    if (!port) return fail(port.error());
    if (environment("MASTER_ADDR").empty()) {
      return fail(ErrorKind::Invalid,
                  "environment variable MASTER_ADDR expected, but not set; "
                  "start the program with `muster run`, or give the option");
    }
    where = net::describe({environment("MASTER_ADDR"), static_cast<int>(*port)});
  }
  Plan made(*info);
  constexpr std::string_view kFile = "file://";
  std::optional<net::Endpoint> server;
  if (where.starts_with(kFile)) {
    made.file = where.substr(kFile.size());
  } else {
    auto endpoint = net::parse_endpoint(where, 29500);
    if (!endpoint) return fail(endpoint.error());
    server = *endpoint;
    made.store = *endpoint;
  }
  auto address = own_address(options, server);
  if (!address) return fail(address.error());
  made.agent.world_size = world_size;
  made.agent.host = *address;
  made.agent.timeout = *timeout;
  made.agent.uses_shared_memory = options.shared_memory;
  made.agent.spins = options.spins;
  made.agent.faults = options.faults;
  if (const std::string text = environment("MUSTER_FAULTS"); !options.faults && !text.empty()) {
    auto faults = parse_faults(text);
    if (!faults) {
      return fail(ErrorKind::Invalid,
                  fmt::format("environment variable MUSTER_FAULTS: {}", faults.error().message));
    }
    log::warn("rpc", "messages go wrong on purpose: MUSTER_FAULTS={}", log::quote(text));
    made.agent.faults = std::move(*faults);
  }
  made.thread_count = options.thread_count;
  made.agent.devices = options.devices;
  made.agent.device_support = options.device_support;
  if (options.device_support && !options.devices.given_device_count()) {
    const auto counted =
        made.agent.devices.set_device_count(options.device_support->device_count());
    if (!counted) return fail(counted.error());
  }
  made.group = !options.group.empty()
                   ? options.group
                   : fmt::format("rpc/{}/{}", environment("TORCHELASTIC_RUN_ID"), round_of_job());
  const Duration for_ever = std::chrono::hours(24 * 365);
  const Duration by_default = options.timeout > Duration::zero() ? options.timeout : for_ever;
  made.patience = options.start_timeout.value_or(by_default);
  return made;
}

// The names of all workers.
std::vector<std::string> names_of(const Agent& agent) {
  std::vector<std::string> names;
  for (const WorkerInfo& info : agent.workers()) names.push_back(info.name());
  return names;
}

CallResult<> wait_for_all(Process& state, NetworkAgent& agent, Duration timeout) {
  std::optional<double> seconds;
  if (timeout > Duration::zero()) seconds = seconds_of(timeout);
  if (!agent.is_static()) {
    const SystemClock clock;
    const TimePoint deadline = seconds ? after(clock.now(), timeout) : kNever;
    if (agent.calls().wait_until_idle([&] { return clock.now() < deadline; })) return {};
    return call_failed({CallErrorKind::Timeout,
                        fmt::format("{} calls of this worker are still under way after {:.2f} "
                                    "seconds",
                                    agent.calls().active_count(), *seconds),
                        "", true});
  }
  return state.gather.quiesce(agent, names_of(agent), seconds);
}

// At the end of the program, before what was there when RPC was started is destroyed: functions and
// callbacks that run on would use it.
void stop_at_exit() {
  Process& state = process();
  Duration patience = Duration::zero();
  bool would_wait_for_itself = false;
  {
    const std::lock_guard lock(state.mutex);
    if (!state.agent || state.is_starting || state.is_stopping) return;
    would_wait_for_itself = state.is_run_by_rpc();
    patience = state.exit_patience;
  }
  log::warn("rpc",
            "the program ends without rpc::shutdown(); calls of other workers to this one fail");
  if (would_wait_for_itself) return;
  // On another thread, as a function that does not end must not keep the program from it.
  const auto stopped = std::make_shared<std::promise<void>>();
  auto is_stopped = stopped->get_future();
  try {
    std::thread([stopped] {
      (void)shutdown({.graceful = false});
      stopped->set_value();
    }).detach();
  } catch (const std::system_error& thrown) {
    return log::warn("rpc", "RPC was not stopped: {}", thrown.code().message());
  }
  if (is_stopped.wait_for(patience) == std::future_status::ready) return;
  log::warn("rpc", "functions that others have called do not end; they are left behind");
}

// Once in a process, at its first `init`.
void arrange_stop_at_exit() {
  static const pid_t kProcess = ::getpid();
  // A child that was forked has none of the threads.
  [[maybe_unused]] static const int kArranged = std::atexit([] {
    if (::getpid() == kProcess) stop_at_exit();
  });
}

// RPC is being started as long as there is one; also what a program brings may throw meanwhile.
class Starting {
 public:
  explicit Starting(Process& state) : state_(state) {}
  ~Starting() {
    const std::lock_guard lock(state_.mutex);
    state_.is_starting = false;
  }
  Starting(const Starting&) = delete;
  Starting& operator=(const Starting&) = delete;

 private:
  Process& state_;
};

}  // namespace

void testing::set_exit_patience(Duration patience) {
  Process& state = process();
  const std::lock_guard lock(state.mutex);
  state.exit_patience = patience;
}

Result<> init(InitOptions options) {
  Process& state = process();
  {
    const std::lock_guard lock(state.mutex);
    if (state.is_starting || state.agent) {
      return fail(ErrorKind::Conflict, already_initialized_text());
    }
    state.is_starting = true;
  }
  const Starting starting(state);  // only when it is done may another thread end it
  auto made = plan(options);
  Result<std::shared_ptr<NetworkAgent>> agent = fail(ErrorKind::Invalid, "");
  std::unique_ptr<FunctionServer> server;
  std::shared_ptr<rref::Keeper> keeper;
  if (!made) {
    agent = fail(made.error());
  } else {
    state.gather.begin(made->group);
    testing::add_functions();
    keeper = std::make_shared<rref::Keeper>(made->agent.self.id(), reference_ids());
    server = std::make_unique<FunctionServer>(functions(), made->thread_count,
                                              made->agent.self.id(), keeper);
    // Others may call before all of what follows is done.
    server->close();
    agent = NetworkAgent::start(
        made->agent,
        [made = *made](net::EpollLoop& loop) {
          if (!made.file.empty()) return open_file_store(loop, made.file, made.group);
          return open_store(loop, made.store, made.group, made.patience);
        },
        *server, made->patience);
  }
  if (agent) {
    (*agent)->set_references(keeper);
    keeper->attach(*agent);
    if (auto set = set_current_agent(*agent); !set) {
      keeper->stop();  // it has the agent
      agent = fail(set.error());
    }
  }
  FunctionServer* serving = nullptr;
  {
    const std::lock_guard lock(state.mutex);
    if (!agent) return fail(agent.error());
    state.agent = std::move(*agent);
    state.server = std::move(server);
    state.keeper = std::move(keeper);
    serving = state.server.get();
  }
  serving->open();
  arrange_stop_at_exit();
  return {};
}

CallResult<> shutdown(ShutdownOptions options) {
  Process& state = process();
  std::shared_ptr<NetworkAgent> agent;
  std::shared_ptr<rref::Keeper> keeper;
  FunctionServer* serving = nullptr;  // only this thread ends it
  {
    const std::lock_guard lock(state.mutex);
    agent = state.agent;
    keeper = state.keeper;
    serving = state.server.get();
    if (!agent || state.is_starting) return call_failed(internal::not_initialized());
    if (state.is_run_by_rpc()) {
      return call_failed({CallErrorKind::Rejected,
                          "rpc::shutdown was called by a function or a callback that RPC runs, "
                          "and would wait for its end; call it from a thread of your own",
                          "", false});
    }
    if (std::exchange(state.is_stopping, true)) {
      return call_failed(
          {CallErrorKind::Rejected, "another thread shuts RPC down already", "", false});
    }
  }
  CallResult<> outcome;
  bool leads = false;
  if (options.graceful) {
    const auto names = names_of(*agent);
    outcome = wait_for_all(state, *agent, options.timeout);
    if (outcome && !agent->is_static()) {
      keeper->end_users(kLeaveCleanUpMax);
    } else if (outcome && options.end_references) {
      options.end_references();
    } else if (outcome) {
      keeper->clean_up(kCleanUpMax);
    }
    leads = agent->is_static() && !names.empty() &&
            *std::min_element(names.begin(), names.end()) == agent->self().name();
  }
  // Nobody hears any more what would be begun now, and it could take for ever.
  if (!options.graceful || !outcome) serving->drop_what_waits();
  if (options.graceful && outcome) agent->end_group();
  if (leads && outcome) agent->wait_for_peers_to_leave();
  const std::string leaks = keeper->stop();
  if (!leaks.empty()) {
    log::warn("rref", "other workers still refer to values of this one: {}", log::quote(leaks));
    if (outcome && !options.ignores_leaks) {
      outcome = call_failed({CallErrorKind::Rejected, leaks, "", false});
    }
  }
  // Just before it leaves, for nobody leads the others between the two.
  if (options.graceful && !agent->is_static()) state.gather.part(*agent);
  agent->shutdown();
  (void)clear_current_agent();  // the program may have done it itself
  std::unique_ptr<FunctionServer> server;
  {
    const std::lock_guard lock(state.mutex);
    server = std::move(state.server);
    state.keeper.reset();
  }
  server->stop();
  {
    const std::lock_guard lock(state.mutex);
    state.agent.reset();
    state.is_stopping = false;
  }
  return outcome;
}

bool is_running() { return current_agent() != nullptr; }

WorkerInfo self() {
  const auto agent = current_agent();
  if (!agent) throw CallException(internal::not_initialized());
  return agent->self();
}

std::vector<WorkerInfo> workers() {
  const auto agent = current_agent();
  if (!agent) throw CallException(internal::not_initialized());
  return agent->workers();
}

std::vector<Device> devices() {
  const auto agent = current_agent();
  if (!agent) throw CallException(internal::not_initialized());
  return agent->devices();
}

Duration timeout() {
  const auto agent = current_agent();
  if (!agent) throw CallException(internal::not_initialized());
  return agent->timeout();
}

CallResult<> set_timeout(Duration timeout) {
  const auto agent = current_agent();
  if (!agent) return call_failed(internal::not_initialized());
  const auto whole = default_timeout(seconds_of(timeout));
  if (!whole) return call_failed({CallErrorKind::Rejected, whole.error().message, "", false});
  agent->set_timeout(*whole);
  return {};
}

CallResult<> barrier() {
  auto outcome = gather({}, "", std::nullopt);
  if (!outcome) return call_failed(std::move(outcome.error()));
  return {};
}

CallResult<std::map<std::string, std::string>> gather(std::vector<std::string> names,
                                                      std::string value,
                                                      std::optional<Duration> timeout) {
  Process& state = process();
  std::shared_ptr<NetworkAgent> agent;
  {
    const std::lock_guard lock(state.mutex);
    agent = state.agent;
  }
  if (!agent || !current_agent()) return call_failed(internal::not_initialized());
  std::optional<double> seconds;
  if (timeout) seconds = seconds_of(*timeout);
  if (names.empty() && !agent->is_static()) {
    return state.gather.everyone(*agent, std::move(value), seconds);
  }
  if (names.empty()) names = names_of(*agent);
  return state.gather.all(*agent, std::move(names), std::move(value), seconds);
}

void end_references(Duration patience) {
  const auto agent = current_agent();
  const auto keeper = agent ? rref::Keeper::of(*agent) : nullptr;
  if (keeper) keeper->clean_up(patience);
}

std::map<std::string, std::string> metrics() {
  const auto agent = current_agent();
  if (!agent) return {};
  auto figures = agent->metrics();
  Process& state = process();
  const std::lock_guard lock(state.mutex);
  if (state.server) {
    figures["agent.thread_pool_size"] = fmt::to_string(state.server->thread_count());
    figures["agent.num_idle_threads"] = fmt::to_string(state.server->idle_count());
    figures["agent.server_active_async_calls"] = fmt::to_string(state.server->asynchronous_count());
  }
  return figures;
}

std::map<std::string, std::string> debug_info() {
  auto figures = metrics();
  Process& state = process();
  const std::lock_guard lock(state.mutex);
  if (state.keeper) figures.merge(state.keeper->debug_info());
  return figures;
}

}  // namespace muster::rpc
