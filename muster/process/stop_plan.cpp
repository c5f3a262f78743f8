#include "muster/process/stop_plan.h"

namespace muster::process {

StopPlan::StopPlan(const StopOptions& options, TimePoint now)
    : linger_(options.linger),
      kill_wait_(options.kill_wait),
      phase_(Phase::Asking),
      deadline_(after(now, options.grace)) {}

StopPlan::StopPlan(const SweepOptions& options, TimePoint now)
    : linger_(options.linger), kill_wait_(options.kill_wait), phase_(Phase::Lingering) {
  enter(Phase::Lingering, now);
}

StopPlan::Phase StopPlan::update(TimePoint now, const Left& left) {
  if (phase_ == Phase::Asking && left.group_count == 0) enter(Phase::Lingering, now);
  if (phase_ == Phase::Lingering && left.nothing()) enter(Phase::Done, now);
  if (phase_ == Phase::Killing && (left.nothing() || now >= deadline_)) enter(Phase::Done, now);
  // A stop that begins to kill has not waited yet, however short the wait is: hence after the line
  // above.
  const bool waits = phase_ == Phase::Asking || phase_ == Phase::Lingering;
  if (waits && now >= deadline_) enter(Phase::Killing, now);
  return phase_;
}

void StopPlan::escalate(TimePoint now) {
  if (phase_ == Phase::Asking || phase_ == Phase::Lingering) enter(Phase::Killing, now);
}

void StopPlan::enter(Phase phase, TimePoint now) {
  phase_ = phase;
  switch (phase) {
    case Phase::Asking:
    case Phase::Done:
      deadline_ = kNever;
      break;
    case Phase::Lingering:
      deadline_ = after(now, linger_);
      break;
    case Phase::Killing:
      deadline_ = after(now, kill_wait_);
      break;
  }
}

}  // namespace muster::process
