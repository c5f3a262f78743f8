#include "muster/agent/agent.h"

#include "muster/base/log.h"
#include "muster/base/signal_name.h"
#include "muster/observe/wall_clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace muster::agent {
namespace {

// How long the members of a round have to introduce themselves.
constexpr Duration kIntroductionTime = std::chrono::seconds(30);
// So many rounds in a row may fall apart before anything was started.
constexpr int kBrokenRoundsMax = 20;
// How long it takes at most until the loss of a node whose connection broke is known, with the
// rendezvous' default grace for launched jobs.
constexpr Duration kDepartureTime = std::chrono::milliseconds(400);
// Clocks that differ by more are told of.
constexpr Duration kClockTolerance = std::chrono::seconds(1);
// The exit code, as a shell has it, of a program that could not be executed.
constexpr int kNotStarted = 126;
// How often workers are looked at for uninterruptible sleep, where that is asked for.
constexpr Duration kSleeperInterval = std::chrono::seconds(1);
// After a store that does not answer.
constexpr Duration kWatchPause = std::chrono::seconds(1);

// The first failure that a word tells of, in one line.
std::string summary_of(const Word& word) {
  if (word.failures.empty()) return "it does not say why";
  const auto failure = failures::failure_from_json(word.failures.front());
  return failure ? failures::summary(*failure) : "it cannot be understood why";
}

}  // namespace

Agent::Round::Round(Loop& loop, rendezvous::Info round_info)
    : info(std::move(round_info)),
      board(loop, info.store, info.rank, info.world_size, info.round),
      began(loop.now()) {}

Agent::Agent(AgentParts parts)
    : parts_(std::move(parts)),
      loop_(parts_.crew.loop),
      supervisor_(parts_.crew.config.workers_per_node),
      began_(loop_.now()),
      progress_at_(loop_.now()),
      over_(loop_),
      delay_(loop_, [this] { happened([this] { return supervisor_.delay_over(); }); }),
      confirm_timer_(
          loop_,
          [this] {
            happened([this] {
              log::error(
                  "agent",
                  "the other nodes have not confirmed within {} that their workers ended well",
                  muster::describe(config().exit_barrier_timeout));
              return supervisor_.confirmation_late();
            });
          }),
      sleepers_(loop_, [this] { check_sleepers(); }),
      store_timer_(loop_, [this] { lose_store(); }) {}

Agent::~Agent() = default;

Task<Ending> Agent::run() {
  happened([this] { return supervisor_.begin(); });
  co_await over_;
  ending_.outcome = supervisor_.outcome();
  ending_.signal = supervisor_.signal();
  ending_.log_folder = parts_.crew.log_folder.path();
  record_end();
  co_return std::move(ending_);
}

// -- events and actions ------------------------------------------------------------------------

void Agent::happened(Event event) {
  events_.push_back(std::move(event));
  if (ready_.queued()) return;
  loop_.soon(
      ready_, [](void* self) { static_cast<Agent*>(self)->run_events(); }, this);
}

void Agent::run_events() {
  while (!events_.empty()) {
    const Event event = std::move(events_.front());
    events_.pop_front();
    progress_at_ = now();
    const Actions actions = event();
    for (const Action& action : actions) {
      log::debug("agent", "{}", describe(action));
      perform(action);
    }
    show_state();
  }
}

void Agent::perform(const Action& action) {
  switch (action.kind) {
    case Action::Kind::Join:
      if (crew_) parts_.records.metrics().restarted(name_of(supervisor_.last_cause()));
      join_began_ = now();
      watching_.cancel_all();
      joining_.start(join_round());
      break;
    case Action::Kind::Start:
      starting_.start(start_crew());
      break;
    case Action::Kind::Announce: {
      if (!round_) break;
      Word word{action.news, round_->info.rank, parts_.crew.host_name, {}};
      if (start_failure_) word.failures.push_back(failures::to_json(*start_failure_));
      if (crew_) {
        for (const failures::Failure& failure : crew_->failures()) {
          word.failures.push_back(failures::to_json(failure));
        }
      }
      talking_.start(announce(round_, std::move(word)));
      break;
    }
    case Action::Kind::Replace:
      replacing_.start(replace(action.worker, action.delay));
      break;
    case Action::Kind::Stop: {
      replacing_.cancel_all();
      log::info("agent", "stopping the workers cause=\"{}\"", name_of(action.cause));
      record_own("workers.stop", name_of(action.cause), {});
      if (signs_) signs_->end();
      crew_->expect_exits();
      // The others shall hear that we leave before their workers notice that ours are gone.
      if (action.cause == StopCause::Signal && !is_alone()) talking_.start(leave_early());
      confirm_timer_.cancel();
      stop_began_ = now();
      process::StopOptions options;
      options.signal = action.signal;
      options.grace = config().shutdown_timeout;
      stopping_.start(stop_crew(options));
      break;
    }
    case Action::Kind::Escalate:
      log::warn("agent", "second signal: killing the workers now");
      parts_.crew.host.escalate();
      break;
    case Action::Kind::Confirm:
      if (signs_) signs_->end();
      if (config().exit_barrier_timeout >= Duration::zero()) {
        confirm_timer_.set(after(now(), config().exit_barrier_timeout));
      }
      talking_.start(confirm(round_));
      break;
    case Action::Kind::Delay:
      log::info("agent", "restarting in {}", muster::describe(action.delay));
      delay_.set(after(now(), action.delay));
      break;
    case Action::Kind::Close:
      close_ = true;
      break;
    case Action::Kind::Leave:
      leave_ = true;
      break;
    case Action::Kind::End:
      joining_.cancel_all();
      starting_.cancel_all();
      watching_.cancel_all();
      confirm_timer_.cancel();
      delay_.cancel();
      finishing_.start(finish(action.outcome, close_, leave_));
      break;
  }
}

void Agent::signalled(int signal) {
  log::warn("agent", "received {}", signal_name(signal));
  asked_to_end(signal);
}

void Agent::guard_lost() {
  log::error("agent", "the process that was started as muster run has been killed; ending the job");
  asked_to_end(SIGTERM);
  asked_to_end(SIGTERM);
}

void Agent::asked_to_end(int signal) {
  happened([this, signal]() -> Actions {
    if (supervisor_.phase() == Phase::Done) {
      // No worker is left; what remains is courtesy towards the other nodes.
      finishing_.cancel_all();
      over_.set(true);
      return {};
    }
    return supervisor_.signalled(signal);
  });
}

void Agent::forward(int signal) {
  if (crew_) crew_->forward(signal);
}

// -- rounds ------------------------------------------------------------------------------------

Task<void> Agent::join_round() {
  if (store_gone_) {
    happened([this] { return supervisor_.store_lost(); });
    co_return;
  }
  const TimePoint started = now();
  record_own("rendezvous.begin", "RENDEZVOUS", {});
  auto entered = co_await enter_round();
  parts_.records.metrics().timed(observe::Phase::Rendezvous, now() - started, entered.has_value());
  if (!entered) {
    ending_.message = entered.error().message;
    happened([this, kind = entered.error().kind] { return supervisor_.join_failed(kind); });
    co_return;
  }
  observe::EventDetails details;
  details.duration = now() - started;
  record_agent(observe::EventState::Rendezvous, std::move(details));
  happened([this] { return supervisor_.joined(handler_->status()); });
}

Task<Result<>> Agent::enter_round() {
  if (!handler_) {
    auto making = parts_.make_handler();
    auto made = co_await making;
    if (!made) co_return fail(std::move(made.error()));
    handler_ = std::move(*made);
    minding_.start(mind_store());
  }
  for (int broken = 0; broken < kBrokenRoundsMax; ++broken) {
    auto joining = handler_->next_rendezvous();
    auto info = co_await joining;
    if (!info) co_return fail(std::move(info.error()));
    auto round = std::make_shared<Round>(loop_, std::move(*info));
    const TimePoint started = now();
    auto placing = co_await introduce(*round);
    parts_.records.metrics().timed(observe::Phase::AssignRanks, now() - started,
                                   placing.has_value());
    if (!placing && placing.error().kind == ErrorKind::Corrupt) {
      co_return fail(std::move(placing.error()));
    }
    if (!placing) {
      log::info("agent", "round {} fell apart before its ranks were known, joining the next: {}",
                round->info.round, placing.error().message);
      continue;
    }
    round->placing = std::move(*placing);
    history_.agree(round->placing.failed_rounds, now());
    tell_clock(round->placing);
    round_ = std::move(round);
    // Those of earlier rounds are settled.
    heard_failures_.clear();
    observe::EventDetails details;
    details.duration = now() - started;
    record_agent(observe::EventState::AssignWorkerRanks, std::move(details));
    co_return Result<>();
  }
  co_return fail(ErrorKind::Unavailable,
                 fmt::format("{} rounds in a row fell apart before their ranks were known; look at "
                             "the logs of the other nodes",
                             kBrokenRoundsMax));
}

Task<Result<Placing>> Agent::introduce(Round& round) {
  Oneshot<Result<Placing>> outcome(loop_);
  TaskScope scope;
  scope.start(introduce_into(round, outcome));
  if (round.info.world_size > 1) scope.start(give_up_on_change(outcome));
  co_return co_await outcome;
}

Task<void> Agent::introduce_into(Round& round, Oneshot<Result<Placing>>& outcome) {
  Introduction mine;
  mine.seat = {config().role, config().workers_per_node};
  mine.host = parts_.crew.host_name;
  mine.failed_rounds = history_.known(now());
  if (round_) mine.origin = {round_->placing.round, round_->info.world_size};
  const TimePoint deadline = after(now(), kIntroductionTime);
  std::function<Task<Result<>>()> renew = [this] { return handler_->renew_bootstrap(); };
  auto placing = co_await round.board.introduce(std::move(mine), deadline, std::move(renew));
  outcome.set(std::move(placing));
}

Task<void> Agent::give_up_on_change(Oneshot<Result<Placing>>& outcome) {
  rendezvous::Status status = handler_->status();
  while (status.member && !status.lost && !status.closed) {
    auto changed = co_await handler_->wait_status(status, kNever);
    if (!changed) co_return;
    status = *changed;
  }
  outcome.set(fail(ErrorKind::Closed, "a member is gone"));
}

void Agent::tell_clock(const Placing& placing) {
  const Duration lead = std::chrono::nanoseconds(placing.clock_lead_nanoseconds);
  const bool is_far = lead > kClockTolerance || lead < -kClockTolerance;
  if (is_far && !is_clock_far_) {
    log::warn("agent",
              "the clock of this node is {} {} that of node rank 0; so are the times in logs, "
              "reports and events from here",
              muster::describe(lead < Duration::zero() ? -lead : lead),
              lead < Duration::zero() ? "behind" : "ahead of");
  }
  is_clock_far_ = is_far;
}

RoundFacts Agent::facts_of(const Round& round) const {
  RoundFacts facts;
  facts.run_id = config().rendezvous.run_id;
  facts.role = config().role;
  facts.round = round.placing.round;
  facts.node_rank = round.info.rank;
  facts.node_count = round.info.world_size;
  facts.worker_count = config().workers_per_node;
  facts.ranks = round.placing.ranks;
  facts.master_addr = round.info.bootstrap.master_addr;
  facts.master_port = round.info.bootstrap.master_port;
  facts.use_agent_store = handler_->use_agent_store();
  facts.restart_count = history_.used(policy(), now());
  facts.clock_lead_nanoseconds = round.placing.clock_lead_nanoseconds;
  facts.restarts_max = config().max_restarts;
  facts.virtual_local_rank = config().virtual_local_rank;
  if (signs_) {
    facts.agent_socket = signs_->socket_path();
    facts.timer_file = signs_->timer_path();
  }
  return facts;
}

RestartPolicy Agent::policy() const {
  return {config().max_restarts, config().restart_window, config().restart_delay,
          config().restart_delay_max};
}

std::int64_t Agent::restarts_used() const {
  std::int64_t used = history_.used(policy(), now());
  for (const auto& [local_rank, history] : worker_histories_) {
    used = std::max(used, history.used(policy(), now()));
  }
  return used;
}

std::int64_t Agent::restarts_left() const {
  return std::max<std::int64_t>(0, config().max_restarts - restarts_used());
}

// -- what the members of a round say -------------------------------------------------------------

Task<void> Agent::announce(std::shared_ptr<Round> round, Word word) {
  auto stands = co_await round->board.say(word);
  if (!stands) {
    log::warn("agent", "cannot tell the other nodes that this one says {}: {}", name_of(word.news),
              stands.error().message);
    co_return;
  }
  // Somebody was faster, and their word counts.
  if (*stands != word) heard(round, *stands);
}

Task<void> Agent::watch_word(std::shared_ptr<Round> round) {
  for (;;) {
    auto word = co_await round->board.wait_word(kNever);
    if (word) {
      heard(round, *word);
      co_return;
    }
    log::debug("agent", "cannot hear the other nodes, trying again: {}", word.error().message);
    const TimePoint until = after(now(), kWatchPause);
    co_await sleep_until(loop_, until);
  }
}

void Agent::heard(const std::shared_ptr<Round>& round, const Word& word) {
  happened([this, round, word]() -> Actions {
    if (round != round_) return {};
    if (word.news != News::Done) {
      // Our own failures we know better.
      if (word.node_rank != round->info.rank) {
        for (const std::string& failure : word.failures) heard_failures_.push_back(failure);
        if (supervisor_.phase() == Phase::Running || supervisor_.phase() == Phase::Confirming) {
          log::error("agent", "a worker of node {} ({}) failed, {}: {}", word.node_rank, word.host,
                     word.news == News::Restart ? "the job begins again" : "no restart is left",
                     summary_of(word));
        }
      }
      history_.add(round->placing.round, now());
    }
    return supervisor_.heard(word.news, history_.delay(policy(), now()));
  });
}

Task<void> Agent::watch_membership(std::shared_ptr<Round> round) {
  rendezvous::Status status = handler_->status();
  bool warned = false;
  for (;;) {
    // What the round ended with is worth more than that it ended.
    if (status.closed || !status.member || status.lost || status.waiting > 0) {
      auto word = co_await round->board.look();
      if (word && *word) heard(round, **word);
      happened([this, round, status]() -> Actions {
        if (round != round_) return {};
        const bool lost = status.lost && status.member && !status.closed;
        return supervisor_.membership(status, !lost || count_departure(*round));
      });
    }
    auto changed = co_await handler_->wait_status(status, kNever);
    if (changed && *changed != status) {
      status = *changed;
      warned = false;
      continue;
    }
    // A handler that answers at once, and with nothing new, must not keep us busy.
    if (changed) {
      const TimePoint until = after(now(), kWatchPause);
      co_await sleep_until(loop_, until);
      continue;
    }
    // Workers that run well are left alone: they may not even notice.
    if (!warned) {
      log::warn("agent", "the rendezvous cannot be reached, the workers go on meanwhile: {}",
                changed.error().message);
    }
    warned = true;
    const TimePoint until = after(now(), kWatchPause);
    co_await sleep_until(loop_, until);
  }
}

// Whether the job may go on without the node that is lost.
bool Agent::count_departure(const Round& round) {
  departures_.add(round.placing.round, now());
  if (config().max_departures < 0) return true;
  RestartPolicy limit;
  limit.restarts_max = config().max_departures;
  limit.window = config().restart_window;
  if (departures_.used(limit, now()) <= limit.restarts_max) return true;
  ending_.message = fmt::format(
      "nodes were lost more often than --max-departures {} allows{}", limit.restarts_max,
      limit.window > Duration::zero() ? " in " + muster::describe(limit.window) : std::string());
  return false;
}

Task<void> Agent::confirm(std::shared_ptr<Round> round) {
  // What the workers left behind goes before anybody hears that they ended well.
  process::StopOptions options;
  options.grace = Duration::zero();
  (void)co_await crew_->stop(options);
  if (store_gone_) {
    happened([this] { return supervisor_.store_lost(); });
    co_return;
  }
  auto confirmed = co_await round->board.confirm();
  if (confirmed) co_return;
  log::error("agent", "cannot tell the other nodes that the workers of this one ended well: {}",
             confirmed.error().message);
  happened([this, round]() -> Actions {
    if (round != round_) return {};
    return supervisor_.confirmation_late();
  });
}

// -- workers -----------------------------------------------------------------------------------

Task<void> Agent::start_crew() {
  const TimePoint started = now();
  Result<> outcome;
  if (!signs_) {
    SignsOptions options;
    options.temporary_folder = parts_.temporary_folder;
    options.announce = [this](const std::string& folder) {
      if (parts_.crew.guard != nullptr) parts_.crew.guard->watch_scratch(folder);
    };
    options.file_timer = config().switches.file_timer;
    options.timer_file = config().switches.timer_file;
    options.progress.start_timeout = config().start_timeout.value_or(Duration(-1));
    options.progress.hang_timeout = config().hang_timeout.value_or(Duration(-1));
    options.late = [this](Worker& worker, int signal, std::string_view kind, std::string note) {
      log::error("agent", "worker {} is killed: {}", worker.local_rank, note);
      parts_.records.metrics().watchdog_expired(kind);
      crew_->kill(worker, signal, std::move(note));
    };
    options.record = [this](observe::WatchdogMoment moment,
                            const std::optional<observe::WatchdogTimer>& timer) {
      parts_.records.events().record(
          observe::watchdog_event(parts_.records.job(), agent_facts(), moment, timer));
    };
    auto made = Signs::create(loop_, parts_.random, std::move(options));
    if (made) {
      signs_ = std::move(*made);
    } else {
      outcome = fail(std::move(made.error()));
    }
  }
  if (outcome) {
    crew_ = std::make_unique<Crew>(parts_.crew, facts_of(*round_),
                                   [this](Worker& worker) { worker_exited(worker); });
    outcome = crew_->start();
  }
  parts_.records.metrics().timed(observe::Phase::StartWorkers, now() - started,
                                 outcome.has_value());
  if (!outcome) {
    ending_.message = outcome.error().message;
    // Those before it were started.
    const auto tried = crew_ ? crew_->workers().size() : 0;
    start_failure_ =
        describe_start_failure(tried == 0 ? 0 : static_cast<int>(tried) - 1, outcome.error());
    if (crew_) {
      process::StopOptions options;
      options.signal = SIGKILL;
      options.grace = Duration::zero();
      (void)co_await crew_->stop(options);
    }
    happened([this] { return supervisor_.start_failed(); });
    co_return;
  }
  ending_.workers_started = true;
  signs_->begin(*crew_);
  parts_.records.metrics().round_began(static_cast<std::int64_t>(round_->placing.round));
  log::info("agent", "round {} started node_rank={}/{} world_size={} restarts={} master={}:{}",
            round_->placing.round, round_->info.rank, round_->info.world_size,
            crew_->facts().ranks.world_size, crew_->facts().restart_count,
            crew_->facts().master_addr, crew_->facts().master_port);
  for (const Worker& worker : crew_->workers()) {
    record_worker(worker, observe::EventState::Start, {});
  }
  parts_.records.metrics().timed(observe::Phase::Initialize, now() - join_began_, true);
  if (stop_began_ != TimePoint()) {
    parts_.records.metrics().timed(observe::Phase::Restart, now() - stop_began_, true);
  }
  // At once: whatever happens next must find it running.
  supervisor_.started();
  watching_.start(watch_membership(round_));
  watching_.start(watch_word(round_));
  if (config().switches.uninterruptible_timeout > Duration::zero()) {
    dwell_.emplace(config().switches.uninterruptible_timeout);
    sleepers_.set(after(now(), kSleeperInterval));
  }
}

void Agent::check_sleepers() {
  if (supervisor_.phase() != Phase::Running) return;
  for (const Worker& worker : crew_->workers()) {
    if (!worker.process->is_running()) continue;
    const auto stat = process::read_stat(worker.pid());
    const auto state = stat ? std::optional<char>(stat->state) : std::nullopt;
    if (!dwell_->saw(worker.local_rank, state, now())) continue;
    // A fresh group on this host would collide with the one that is stuck.
    ending_.message = fmt::format(
        "worker {} (pid {}) has been in uninterruptible sleep for more than {}; this node ends, "
        "since new workers would collide with it",
        worker.local_rank, worker.pid(),
        muster::describe(config().switches.uninterruptible_timeout));
    log::error("agent", "{}", ending_.message);
    happened([this] { return supervisor_.broke(); });
    return;
  }
  sleepers_.set(after(now(), kSleeperInterval));
}

failures::Failure Agent::describe_start_failure(int local_rank, const Error& error) const {
  failures::Failure failure;
  failure.local_rank = local_rank;
  failure.global_rank = static_cast<int>(round_->placing.ranks.first_rank) + failure.local_rank;
  failure.node_rank = static_cast<int>(round_->info.rank);
  failure.role = config().role;
  failure.host = parts_.crew.host_name;
  failure.exit_code = kNotStarted;
  failure.exited_nanoseconds = observe::wall_nanoseconds();
  failure.clock_lead_nanoseconds = round_->placing.clock_lead_nanoseconds;
  failure.message = error.message;
  return failure;
}

void Agent::worker_exited(Worker& worker) {
  const int code = worker.process->exit()->code;
  if (signs_) signs_->exited(worker);
  parts_.records.metrics().worker_exited(code);
  if (worker.failure && !worker.failure->collateral) {
    log::error("agent", "worker failed: {}", failures::summary(*worker.failure));
    observe::EventDetails details;
    details.raw_error = failures::raw_error(*worker.failure);
    parts_.records.events().record(observe::muster_event("worker.failed", parts_.records.job(),
                                                         agent_facts(), worker_facts(worker),
                                                         "FAILED", details));
  }
  if (code == 0 && supervisor_.phase() == Phase::Running && crew_->running_count() > 0) {
    sweeping_.start(sweep(worker.process->token()));
  }
  happened([this, code, local_rank = worker.local_rank, round = round_]() -> Actions {
    return supervisor_.worker_exited(judge(local_rank, code, *round));
  });
}

Supervisor::Exit Agent::judge(int local_rank, int code, const Round& round) {
  Supervisor::Exit exit;
  exit.code = code;
  exit.worker = local_rank;
  exit.alone = config().restart_alone;
  if (code == 0 || supervisor_.phase() != Phase::Running) return exit;
  RestartHistory& history = exit.alone ? worker_histories_[local_rank] : history_;
  exit.restart_left = !history.exhausted(policy(), now());
  history.add(exit.alone ? ++replacement_count_ : round.placing.round, now());
  exit.delay = history.delay(policy(), now());
  if (!is_alone()) exit.hold = kDepartureTime;
  return exit;
}

Task<void> Agent::replace(int local_rank, Duration delay) {
  Worker& worker = crew_->workers().at(static_cast<std::size_t>(local_rank));
  std::vector<std::string> tokens(1, worker.process->token());
  process::SweepOptions options;
  const auto stuck = co_await parts_.crew.host.sweep(std::move(tokens), options);
  for (const process::Stuck& one : stuck) log::error("agent", "{}", process::describe(one));
  if (delay > Duration::zero()) {
    log::info("agent", "restarting worker {} in {}", local_rank, muster::describe(delay));
    const TimePoint until = after(now(), delay);
    co_await sleep_until(loop_, until);
  }
  auto started = crew_->restart(worker);
  parts_.records.metrics().restarted("worker failure");
  if (!started) {
    ending_.message = started.error().message;
    log::error("agent", "{}", ending_.message);
    start_failure_ = describe_start_failure(local_rank, started.error());
    happened([this] {
      Supervisor::Exit exit;
      exit.code = kNotStarted;
      return supervisor_.worker_exited(exit);
    });
    co_return;
  }
  signs_->restarted(worker);
  log::info("agent", "worker {} was started again, alone pid={} restarts={}", local_rank,
            static_cast<std::int64_t>(worker.pid()), worker.restart_count);
  record_worker(worker, observe::EventState::Start, {});
}

Task<void> Agent::sweep(std::string token) {
  std::vector<std::string> tokens(1, std::move(token));
  process::SweepOptions options;
  (void)co_await parts_.crew.host.sweep(std::move(tokens), options);
}

Task<void> Agent::leave_early() {
  auto left = co_await handler_->leave();
  if (!left) log::debug("agent", "the run was not left: {}", left.error().message);
}

Task<void> Agent::stop_crew(process::StopOptions options) {
  const auto stuck = co_await crew_->stop(options);
  const Duration length = now() - stop_began_;
  parts_.records.metrics().timed(observe::Phase::StopWorkers, length, stuck.empty());
  parts_.records.metrics().round_ended(now() - round_->began);
  for (const process::Stuck& one : stuck) log::error("agent", "{}", process::describe(one));
  if (!stuck.empty()) {
    ending_.message = "workers are left that cannot be killed; new ones would collide with them";
    happened([this] { return supervisor_.broke(); });
  }
  happened([this] { return supervisor_.stopped(); });
}

}  // namespace muster::agent
