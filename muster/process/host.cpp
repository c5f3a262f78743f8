#include "muster/process/host.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/base/signal_name.h"
#include "muster/process/guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unordered_set>
#include <utility>

namespace muster::process {

using namespace std::chrono_literals;

namespace {

// How often a stop looks again while only processes are left whose end the kernel does not tell us,
// since another process is their parent.
constexpr Duration kLookAgainAfter = 20ms;
// How long the destructor waits for what it has killed.
constexpr Duration kLastWait = 1s;
constexpr int kAncestorCountMax = 1024;
// A token that we run below counts only up to this length, so that hosts within hosts within hosts
// cannot grow it without end.
constexpr std::size_t kOuterTokenBytesMax = 1024;

std::string make_id() {
  Random random = Random::from_system();
  const char* outer = std::getenv(std::string(kTokenVariable).c_str());
  const std::string_view above = outer == nullptr ? std::string_view() : std::string_view(outer);
  if (above.empty() || above.size() > kOuterTokenBytesMax) return random_id(random);
  return fmt::format("{}/{}", above, random_id(random));
}

std::int64_t wall_nanoseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::vector<std::string> with_token(const std::vector<std::string>& environment,
                                    const std::string& token) {
  const std::string prefix = fmt::format("{}=", kTokenVariable);
  std::vector<std::string> result;
  result.reserve(environment.size() + 1);
  result.push_back(prefix + token);
  for (const std::string& variable : environment) {
    if (!variable.starts_with(prefix)) result.push_back(variable);
  }
  return result;
}

}  // namespace

namespace internal {
struct Record {
  pid_t pid = 0;
  std::uint64_t serial = 0;
  std::string token;
  Fd pidfd;
  std::function<void(Exit)> exited;
  std::optional<Exit> exit;
  std::unique_ptr<net::FdWatch> watch;  // after pidfd: goes first
};
}  // namespace internal

// Wakes one coroutine when a child of ours has changed, or at a time.
struct Host::Pulse {
  explicit Pulse(Host& owner)
      : host(owner), fired(owner.loop_), timer(owner.loop_, [this] { fired.set(true); }) {
    host.pulses_.push_back(this);
  }
  ~Pulse() { std::erase(host.pulses_, this); }
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  Host& host;
  Oneshot<bool> fired;
  Timer timer;
};

Process::Process(Host& host, std::unique_ptr<internal::Record> record)
    : host_(host), record_(std::move(record)) {}

Process::~Process() {
  if (is_running()) host_.abandon(std::move(record_));
}

pid_t Process::pid() const { return record_->pid; }
const std::string& Process::token() const { return record_->token; }
const std::optional<Exit>& Process::exit() const { return record_->exit; }

bool Process::signal(int number) { return is_running() && ::kill(-record_->pid, number) == 0; }

std::string describe(const Exit& exit) {
  if (exit.code >= 0) return fmt::format("exited with status {}", exit.code);
  return fmt::format("was ended by {} ({}){}", signal_name(-exit.code), -exit.code,
                     exit.core_dumped ? ", core dumped" : "");
}

Host::Host(net::EpollLoop& loop, Guard* guard)
    : loop_(loop), id_(make_id()), child_signal_(loop, {SIGCHLD}, [this](int, pid_t) {
        reap_strays();
        changed();
      }) {
  // Whoever started us may have had this signal ignored, and then the kernel throws away how
  // children ended.
  struct sigaction as_default {};
  as_default.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &as_default, nullptr);
  ::prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_, 0, 0, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  if (guard != nullptr) guard->watch_token(id_);
}

Host::~Host() {
  end_everything();
  ::prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_, 0, 0, 0);
}

Result<std::unique_ptr<Process>> Host::start(const Command& command,
                                             std::function<void(Exit)> exited) {
  const std::uint64_t serial = ++serial_;
  const std::string token = fmt::format("{}.{}", id_, serial);
  auto spawned = spawner_.spawn(command, with_token(command.environment, token));
  if (!spawned) return fail(spawned.error());
  auto record = std::make_unique<internal::Record>();
  record->pid = spawned->pid;
  record->serial = serial;
  record->token = token;
  record->pidfd = std::move(spawned->pidfd);
  record->exited = std::move(exited);
  internal::Record* place = record.get();
  record->watch = std::make_unique<net::FdWatch>(loop_, record->pidfd.get(),
                                                 [this, place](std::uint32_t) { on_exit(*place); });
  record->watch->want(EPOLLIN);
  ended_.erase(record->pid);  // the number was free, so nothing is left of that group
  running_[record->pid] = place;
  return std::unique_ptr<Process>(new Process(*this, std::move(record)));
}

void Host::on_exit(internal::Record& record) {
  siginfo_t info{};
  const int done =
      ::waitid(P_PIDFD, static_cast<id_t>(record.pidfd.get()), &info, WEXITED | WNOHANG);
  if (done == 0 && info.si_pid == 0) return;
  Exit exit;
  if (done != 0) {
    // Only if somebody else waits for our children, against the rules.
    log::error("process", "lost how a process ended pid={} reason={}", record.pid,
               log::quote(describe_errno(errno)));
    exit.code = -SIGKILL;
  } else {
    exit.code = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
    exit.core_dumped = info.si_code == CLD_DUMPED;
  }
  // epoll hands out descriptors in the order in which they became ready, which is the order in
  // which the kernel ended the processes.
  exit.order = ++order_;
  exit.when = loop_.now();
  exit.wall_nanoseconds = wall_nanoseconds();
  record.exit = exit;
  record.watch.reset();
  record.pidfd.reset();
  running_.erase(record.pid);
  ended_[record.pid] = record.token;
  reap_strays();
  changed();
  const auto abandoned = std::find_if(abandoned_.begin(), abandoned_.end(),
                                      [&](const auto& entry) { return entry.get() == &record; });
  if (abandoned != abandoned_.end()) {
    abandoned_.erase(abandoned);
    return;
  }
  // The last act: it may destroy the process and the record with it.
  const std::function<void(Exit)> exited = std::move(record.exited);
  if (exited) exited(exit);
}

void Host::abandon(std::unique_ptr<internal::Record> record) {
  ::kill(-record->pid, SIGKILL);
  record->exited = nullptr;
  abandoned_.push_back(std::move(record));
}

void Host::reap_strays() {
  for (;;) {
    siginfo_t info{};
    const int looked = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
    if (looked != 0 || info.si_pid == 0) return;
    // A worker: its own watch is about to reap it, in the right order, and comes back here.
    if (running_.contains(info.si_pid)) return;
    const pid_t pid = info.si_pid;
    if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG) != 0) return;
  }
}

void Host::changed() {
  for (Pulse* pulse : pulses_) pulse->fired.set(true);
}

bool Host::is_running(const Target& target) const {
  const auto found = running_.find(target.group);
  return found != running_.end() && found->second->serial == target.serial;
}

std::vector<Member> Host::strays() const {
  std::unordered_set<pid_t> except;
  for (const auto& [pid, record] : running_) except.insert(pid);
  return descendants(except);
}

std::vector<Member> Host::remains_of(const std::vector<Target>& targets) const {
  std::vector<Member> found = strays();
  if (found.empty()) return found;
  // When no other worker runs, all of them are remains, also those that hide their origin.
  std::unordered_set<pid_t> groups;
  std::size_t running_target_count = 0;
  for (const Target& target : targets) {
    const bool running = is_running(target);
    if (running) ++running_target_count;
    // The number of an ended worker may meanwhile be that of another one.
    if (running || !running_.contains(target.group)) groups.insert(target.group);
  }
  const bool all = running_target_count == running_.size();
  std::erase_if(found, [&](Member& member) {
    const bool ours = all || groups.contains(member.stat.group) ||
                      std::any_of(targets.begin(), targets.end(), [&](const Target& target) {
                        return is_within(member.token, target.token);
                      });
    // Those that may turn out to be ours stay, too, and marked: neither to be killed nor forgotten.
    if (ours) member.token_unknown = false;
    return !ours && !member.token_unknown;
  });
  return found;
}

Task<std::vector<Stuck>> Host::stop(std::vector<Process*> processes, StopOptions options) {
  std::vector<Target> targets;
  targets.reserve(processes.size());
  for (const Process* process : processes) {
    const internal::Record& record = *process->record_;
    targets.push_back({record.pid, record.serial, record.token});
  }
  // Whoever is given no time is not asked: it would only get half through its answer.
  if (options.grace != Duration::zero()) ask(targets, options.signal);
  const StopPlan plan(options, loop_.now());
  auto stuck = co_await carry_out(std::move(targets), plan);
  co_return stuck;
}

Task<std::vector<Stuck>> Host::sweep(std::vector<std::string> tokens, SweepOptions options) {
  std::vector<Target> targets;
  const std::unordered_set<std::string> wanted(tokens.begin(), tokens.end());
  std::unordered_set<std::string> running;
  for (const auto& [pid, record] : running_) running.insert(record->token);
  for (const auto& [group, token] : ended_) {
    if (wanted.contains(token)) targets.push_back({group, 0, token});
  }
  for (const std::string& token : wanted) {
    const bool known = std::any_of(targets.begin(), targets.end(),
                                   [&](const Target& target) { return target.token == token; });
    if (!known && !running.contains(token)) targets.push_back({0, 0, token});
  }
  const StopPlan plan(options, loop_.now());
  auto stuck = co_await carry_out(std::move(targets), plan);
  co_return stuck;
}

Task<std::vector<Stuck>> Host::carry_out(std::vector<Target> targets, StopPlan plan) {
  struct Enrolment {
    Enrolment(std::vector<StopPlan*>& list, StopPlan& entry) : plans(list), plan(entry) {
      plans.push_back(&plan);
    }
    ~Enrolment() { std::erase(plans, &plan); }
    Enrolment(const Enrolment&) = delete;
    Enrolment& operator=(const Enrolment&) = delete;
    std::vector<StopPlan*>& plans;
    StopPlan& plan;
  };
  const Enrolment enrolment(plans_, plan);
  for (;;) {
    reap_strays();
    std::vector<Member> remains = remains_of(targets);
    // Not seen by one look: who was forked while it was under way, by somebody who then ended.
    if (remains.empty()) remains = remains_of(targets);
    const Left left = count(targets, remains);
    const StopPlan::Phase phase = plan.update(loop_.now(), left);
    if (phase == StopPlan::Phase::Done) {
      reap_strays();  // what ended while we looked
      forget(targets);
      co_return stuck_of(targets, remains);
    }
    if (phase == StopPlan::Phase::Killing) kill_all(targets, remains);
    Pulse pulse(*this);
    const TimePoint look_again = remains.empty() ? kNever : loop_.now() + kLookAgainAfter;
    pulse.timer.set(std::min(plan.next_deadline(), look_again));
    co_await pulse.fired;
  }
}

Left Host::count(const std::vector<Target>& targets, const std::vector<Member>& remains) const {
  Left left;
  std::unordered_set<pid_t> groups;
  for (const Target& target : targets) {
    groups.insert(target.group);
    if (is_running(target)) ++left.group_count;
  }
  for (const Member& member : remains) {
    ++(groups.contains(member.stat.group) ? left.group_count : left.other_count);
  }
  return left;
}

void Host::ask(const std::vector<Target>& targets, int number) const {
  std::unordered_set<pid_t> ended_groups;
  for (const Target& target : targets) {
    if (!is_running(target)) {
      if (!running_.contains(target.group)) ended_groups.insert(target.group);
      continue;
    }
    ::kill(-target.group, number);
    // A stopped process hears no signal but this one (and SIGKILL).
    ::kill(-target.group, SIGCONT);
  }
  if (ended_groups.empty()) return;
  for (const Member& member : strays()) {
    if (!ended_groups.contains(member.stat.group)) continue;
    signal_exactly(member.stat, number);
    signal_exactly(member.stat, SIGCONT);
  }
}

void Host::kill_all(const std::vector<Target>& targets, const std::vector<Member>& remains) const {
  for (const Target& target : targets) {
    if (is_running(target)) ::kill(-target.group, SIGKILL);
  }
  for (const Member& member : remains) {
    if (!member.token_unknown) signal_exactly(member.stat, SIGKILL);
  }
}

void Host::forget(const std::vector<Target>& targets) {
  for (const Target& target : targets) {
    const auto found = ended_.find(target.group);
    if (found != ended_.end() && found->second == target.token) ended_.erase(found);
  }
}

std::vector<Stuck> Host::stuck_of(const std::vector<Target>& targets,
                                  const std::vector<Member>& remains) const {
  std::vector<Stuck> found;
  const auto look = [&](pid_t pid) {
    auto stuck = look_at_stuck(pid);
    // What has ended and merely was not told yet is not stuck.
    if (stuck && stuck->state != 'Z' && stuck->state != 'X') found.push_back(std::move(*stuck));
  };
  for (const Target& target : targets) {
    if (is_running(target)) look(target.group);
  }
  for (const Member& member : remains) {
    if (!member.token_unknown) look(member.stat.pid);
  }
  return found;
}

void Host::escalate() {
  for (StopPlan* plan : plans_) plan->escalate(loop_.now());
  changed();
}

bool Host::owns(pid_t pid) const {
  pid_t current = pid;
  const pid_t self = ::getpid();
  for (int step = 0; step < kAncestorCountMax && current > 1; ++step) {
    if (running_.contains(current)) return true;
    const auto stat = read_stat(current);
    if (!stat || stat->parent == self) break;
    current = stat->parent;
  }
  return is_within(token_of(pid).value_or(std::string()), id_);
}

void Host::end_everything() {
  for (const auto& [pid, record] : running_) ::kill(-pid, SIGKILL);
  const SystemClock clock;
  const TimePoint deadline = clock.now() + kLastWait;
  sigset_t child_signal;
  ::sigemptyset(&child_signal);
  ::sigaddset(&child_signal, SIGCHLD);
  for (;;) {
    siginfo_t info{};
    int looked = 0;
    while ((looked = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG)) == 0 && info.si_pid != 0) {
      running_.erase(info.si_pid);
      info = {};
    }
    // Only the kernel knows that nobody is left: /proc does not show who ended since the loop
    // above, and may pass over one who is made an orphan while it is read. Whoever descends from us
    // descends from a child of ours, for orphans come to us.
    if (looked != 0 && errno == ECHILD) return;
    for (const Member& member : strays()) signal_exactly(member.stat, SIGKILL);
    if (clock.now() >= deadline) return;
    // Blocked by `child_signal_`, so it can be waited for; the time is for ends that nobody tells.
    const timespec patience{0, std::chrono::nanoseconds(kLookAgainAfter).count()};
    ::sigtimedwait(&child_signal, nullptr, &patience);
  }
}

}  // namespace muster::process
