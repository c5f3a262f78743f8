#include "muster/agent/supervisor.h"

#include "muster/base/assert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <csignal>
#include <cstddef>

namespace muster::agent {
namespace {

template <std::size_t Count, typename Enum>
std::string_view pick(const std::array<std::string_view, Count>& names, Enum value) {
  return names.at(static_cast<std::size_t>(value));
}

Action action(Action::Kind kind) {
  Action made;
  made.kind = kind;
  return made;
}

Action announce(News news) {
  Action made = action(Action::Kind::Announce);
  made.news = news;
  return made;
}

// Why a group cannot go on as it is; nothing if it can.
std::optional<StopCause> disturbance(const rendezvous::Status& status) {
  if (status.closed) return StopCause::Closed;
  if (!status.member) return StopCause::Expulsion;
  if (status.lost) return StopCause::Departure;
  if (status.waiting > 0) return StopCause::Arrival;
  return std::nullopt;
}

}  // namespace

std::string_view name_of(Phase phase) {
  static constexpr std::array<std::string_view, 6> kNames = {"joining",  "running",    "stopping",
                                                             "delaying", "confirming", "done"};
  return pick(kNames, phase);
}

std::string_view name_of(News news) {
  static constexpr std::array<std::string_view, 3> kNames = {"restart", "failed", "done"};
  return pick(kNames, news);
}

std::string_view name_of(StopCause cause) {
  static constexpr std::array<std::string_view, 7> kNames = {
      "failure", "peer failure", "arrival", "departure", "expulsion", "closed", "signal"};
  return pick(kNames, cause);
}

std::string_view name_of(Outcome outcome) {
  static constexpr std::array<std::string_view, 7> kNames = {
      "succeeded", "failed", "unconfirmed", "signalled", "released", "closed", "error"};
  return pick(kNames, outcome);
}

std::string describe(const Action& action) {
  switch (action.kind) {
    case Action::Kind::Join:
      return "join";
    case Action::Kind::Start:
      return "start";
    case Action::Kind::Announce:
      return fmt::format("announce({})", name_of(action.news));
    case Action::Kind::Replace:
      return fmt::format("replace({}, {})", action.worker, muster::describe(action.delay));
    case Action::Kind::Stop:
      return fmt::format("stop({}, signal {})", name_of(action.cause), action.signal);
    case Action::Kind::Escalate:
      return "escalate";
    case Action::Kind::Confirm:
      return "confirm";
    case Action::Kind::Delay:
      return fmt::format("delay({})", muster::describe(action.delay));
    case Action::Kind::Close:
      return "close";
    case Action::Kind::Leave:
      return "leave";
    case Action::Kind::End:
      return fmt::format("end({})", name_of(action.outcome));
  }
  return "";
}

std::string describe(const Actions& actions) {
  std::vector<std::string> texts;
  for (const Action& one : actions) texts.push_back(describe(one));
  return fmt::format("{}", fmt::join(texts, " "));
}

Actions Supervisor::begin() { return join(); }

Actions Supervisor::join() {
  phase_ = Phase::Joining;
  delay_ = Duration::zero();
  undecided_ = false;
  return {action(Action::Kind::Join)};
}

Actions Supervisor::end(Outcome outcome) {
  phase_ = Phase::Done;
  outcome_ = outcome;
  Actions actions;
  switch (outcome) {
    case Outcome::Succeeded:
    case Outcome::Failed:
    case Outcome::Closed:
      // Over for everybody: whoever still waits to be let in should not.
      actions.push_back(action(Action::Kind::Close));
      break;
    case Outcome::Signalled:
    case Outcome::Unconfirmed:
    case Outcome::Error:
      // Only this node ends; replacements may come.
      actions.push_back(action(Action::Kind::Leave));
      break;
    case Outcome::Released:
      break;
  }
  Action last = action(Action::Kind::End);
  last.outcome = outcome;
  actions.push_back(last);
  return actions;
}

Actions Supervisor::stop(StopCause cause, Next next, Outcome outcome) {
  phase_ = Phase::Stopping;
  cause_ = cause;
  next_ = next;
  outcome_ = outcome;
  Action made = action(Action::Kind::Stop);
  made.cause = cause;
  made.signal = cause == StopCause::Signal ? signal_ : SIGTERM;
  return {made};
}

Actions Supervisor::joined(const rendezvous::Status& status) {
  if (phase_ != Phase::Joining) return {};
  // Somebody came or went while the ranks were agreed on: not worth starting for.
  const auto cause = disturbance(status);
  if (cause == StopCause::Closed) return end(Outcome::Closed);
  if (cause) return join();
  return {action(Action::Kind::Start)};
}

Actions Supervisor::join_failed(ErrorKind kind) {
  if (phase_ != Phase::Joining) return {};
  if (kind == ErrorKind::Finished) return end(Outcome::Released);
  state_ = GroupState::Failed;
  if (kind == ErrorKind::Closed) return end(Outcome::Closed);
  return end(Outcome::Error);
}

void Supervisor::started() {
  MUSTER_ASSERT(phase_ == Phase::Joining);
  phase_ = Phase::Running;
  state_ = GroupState::Healthy;
  running_count_ = worker_count_;
}

Actions Supervisor::start_failed() {
  if (phase_ != Phase::Joining) return {};
  // What cannot be started now cannot be started in the next round either, and the others must not
  // wait for it.
  state_ = GroupState::Failed;
  Actions actions = {announce(News::Failed)};
  for (const Action& last : end(Outcome::Failed)) actions.push_back(last);
  return actions;
}

Actions Supervisor::worker_exited(const Exit& exit) {
  if (phase_ != Phase::Running) return {};
  if (exit.code == 0) {
    if (--running_count_ > 0) return {};
    phase_ = Phase::Confirming;
    state_ = GroupState::Succeeded;
    return {action(Action::Kind::Confirm)};
  }
  if (exit.alone && exit.restart_left) {
    Action replace = action(Action::Kind::Replace);
    replace.worker = exit.worker;
    replace.delay = exit.delay;
    return {replace};
  }
  state_ = GroupState::Failed;
  if (!exit.restart_left && exit.hold > Duration::zero()) {
    undecided_ = true;
    delay_ = exit.hold;
    return stop(StopCause::Failure, Next::End, Outcome::Failed);
  }
  delay_ = exit.delay;
  const News news = exit.restart_left ? News::Restart : News::Failed;
  Actions actions = {announce(news)};
  const Next next = exit.restart_left ? Next::Join : Next::End;
  for (const Action& one : stop(StopCause::Failure, next, Outcome::Failed)) actions.push_back(one);
  return actions;
}

Actions Supervisor::stopped() {
  if (phase_ != Phase::Stopping) return {};
  if (next_ == Next::End && !undecided_) {
    if (outcome_ == Outcome::Signalled || outcome_ == Outcome::Closed) state_ = GroupState::Stopped;
    return end(outcome_);
  }
  if (!undecided_) state_ = GroupState::Stopped;
  if (delay_ == Duration::zero()) return join();
  phase_ = Phase::Delaying;
  Action wait = action(Action::Kind::Delay);
  wait.delay = delay_;
  return {wait};
}

Actions Supervisor::delay_over() {
  if (phase_ != Phase::Delaying) return {};
  if (!undecided_) return join();
  Actions actions = {announce(News::Failed)};
  for (const Action& last : end(Outcome::Failed)) actions.push_back(last);
  return actions;
}

Actions Supervisor::heard(News news, Duration delay) {
  switch (phase_) {
    case Phase::Running:
      // The others cannot have ended well without us.
      if (news == News::Done) return {};
      delay_ = delay;
      if (news == News::Restart) {
        return stop(StopCause::PeerFailure, Next::Join, Outcome::Failed);
      }
      state_ = GroupState::Failed;
      return stop(StopCause::PeerFailure, Next::End, Outcome::Failed);
    case Phase::Stopping:
      // What the others gave up we do not try again; a signal stays the reason we end for.
      if (news == News::Failed && signal_ == 0) {
        undecided_ = false;
        state_ = GroupState::Failed;
        next_ = Next::End;
        outcome_ = Outcome::Failed;
      }
      return {};
    case Phase::Delaying:
      if (news != News::Failed) return {};
      state_ = GroupState::Failed;
      return end(Outcome::Failed);
    case Phase::Confirming:
      if (news == News::Done) return end(Outcome::Succeeded);
      if (news == News::Failed) {
        state_ = GroupState::Failed;
        return end(Outcome::Failed);
      }
      // All begin again, those who were ready with their part, too. What is left of the workers'
      // descendants has to go first.
      delay_ = delay;
      return stop(StopCause::PeerFailure, Next::Join, Outcome::Failed);
    case Phase::Joining:
    case Phase::Done:
      return {};
  }
  return {};
}

Actions Supervisor::membership(const rendezvous::Status& status, bool departures_left) {
  const auto cause = disturbance(status);
  const bool runs = phase_ == Phase::Running || phase_ == Phase::Confirming;
  if (cause == StopCause::Departure && !departures_left && runs) {
    state_ = GroupState::Failed;
    Actions actions = {announce(News::Failed)};
    for (const Action& one : stop(*cause, Next::End, Outcome::Failed)) actions.push_back(one);
    return actions;
  }
  const bool explains = cause == StopCause::Departure || cause == StopCause::Expulsion;
  if (undecided_ && explains && departures_left && signal_ == 0) {
    // It was not the worker's fault.
    if (phase_ == Phase::Delaying) return join();
    undecided_ = false;
    delay_ = Duration::zero();
    next_ = Next::Join;
    return {};
  }
  if (!cause || !runs) return {};
  if (*cause != StopCause::Closed) return stop(*cause, Next::Join, Outcome::Failed);
  return stop(*cause, Next::End, Outcome::Closed);
}

Actions Supervisor::confirmation_late() {
  if (phase_ != Phase::Confirming) return {};
  return end(Outcome::Unconfirmed);
}

Actions Supervisor::store_lost() {
  switch (phase_) {
    case Phase::Joining:
      state_ = GroupState::Failed;
      return end(Outcome::Error);
    case Phase::Confirming:
      return end(Outcome::Unconfirmed);
    case Phase::Running:
    case Phase::Stopping:
    case Phase::Delaying:
    case Phase::Done:
      return {};
  }
  return {};
}

Actions Supervisor::signalled(int signal) {
  const bool is_first = signal_ == 0;
  if (is_first) signal_ = signal;
  switch (phase_) {
    case Phase::Joining:
    case Phase::Delaying:
    case Phase::Confirming:
      return end(Outcome::Signalled);
    case Phase::Running:
      return stop(StopCause::Signal, Next::End, Outcome::Signalled);
    case Phase::Stopping:
      // A stop for another reason is half way already: it only leads elsewhere now.
      if (is_first) {
        if (next_ == Next::Join) outcome_ = Outcome::Signalled;
        undecided_ = false;
        next_ = Next::End;
        return {};
      }
      // A hang-up is told by the shell and, once that has ended, again by the kernel.
      if (signal == SIGHUP && signal_ == SIGHUP) return {};
      return {action(Action::Kind::Escalate)};
    case Phase::Done:
      return {};
  }
  return {};
}

Actions Supervisor::broke() {
  switch (phase_) {
    case Phase::Running:
    case Phase::Confirming:
      state_ = GroupState::Failed;
      return stop(StopCause::Closed, Next::End, Outcome::Error);
    case Phase::Stopping:
      if (next_ == Next::Join) outcome_ = Outcome::Error;
      undecided_ = false;
      next_ = Next::End;
      return {};
    case Phase::Joining:
    case Phase::Delaying:
      return end(Outcome::Error);
    case Phase::Done:
      return {};
  }
  return {};
}

}  // namespace muster::agent
