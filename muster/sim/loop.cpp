#include "muster/sim/loop.h"

#include "muster/base/assert.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace muster::sim {
namespace {

constexpr std::int64_t kMillion = 1'000'000;
constexpr Duration kFarAway =
    Duration::max() / 2;  // a deadline beyond this cannot be converted and never comes

// value * numerator / denominator, rounded down, without overflow on the way. Requires: value >= 0.
std::int64_t scale(std::int64_t value, std::int64_t numerator, std::int64_t denominator) {
  return value / denominator * numerator + value % denominator * numerator / denominator;
}

}  // namespace

namespace internal {

void PostQueue::push(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
}

void PostQueue::run() {
  std::vector<std::function<void()>> batch;
  {
    const std::lock_guard lock(mutex_);
    batch.swap(work_);
  }
  for (std::function<void()>& work : batch) {
    work();
    work = nullptr;  // what it owns goes before the next piece of work runs
  }
}

bool PostQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return work_.empty();
}

}  // namespace internal

bool Loop::busy() {
  if (!posted_.empty() || has_ready()) return true;
  if (const auto timer = next_timer(); timer && *timer <= now_) return true;
  return std::any_of(locals_.begin(), locals_.end(),
                     [](LocalLoop* local) { return local->busy(); });
}

void Loop::turn() {
  running_ = true;
  posted_.run();
  run_timers(now_);
  run_ready();
  // By index: a turn may make new hosts.
  for (std::size_t index = 0; index < locals_.size(); ++index) locals_[index]->turn();
  running_ = false;
}

std::optional<TimePoint> Loop::next_event() {
  std::optional<TimePoint> next = busy() ? now_ : next_timer();
  for (LocalLoop* local : locals_) {
    const std::optional<TimePoint> event = local->next_event();
    if (event && (!next || *event < *next)) next = event;
  }
  return next;
}

void Loop::run_until_idle() {
  MUSTER_ASSERT(!running_);  // a loop cannot be run from inside one of its own callbacks
  for (std::uint64_t turns = 0; busy(); ++turns) {
    if (turns == turns_max_) fail_endless();
    turn();
  }
}

void Loop::run_until(TimePoint when) {
  MUSTER_ASSERT(when >= now_ && when != kNever);
  run_until([] { return false; }, when);
}

bool Loop::run_until(const std::function<bool()>& reached, TimePoint limit) {
  MUSTER_ASSERT(!running_);
  for (std::uint64_t turns = 0;; ++turns) {
    if (reached()) return true;
    if (turns == turns_max_) fail_endless();
    if (!busy()) {
      const std::optional<TimePoint> next = next_event();
      if (!next || *next > limit) break;
      now_ = *next;
    }
    turn();
  }
  if (limit != kNever) now_ = std::max(now_, limit);
  return false;
}

void Loop::fail_endless() const {
  std::fprintf(stderr, "sim::Loop: not done after %llu turns, virtual time %s\n",
               static_cast<unsigned long long>(turns_max_),
               describe(now_.time_since_epoch()).c_str());
  std::fflush(stderr);
  std::abort();
}

void Loop::fail_blocked() const {
  std::fprintf(stderr,
               "sim::Loop: the task waits for something that will never come, virtual time %s\n",
               describe(now_.time_since_epoch()).c_str());
  std::fflush(stderr);
  std::abort();
}

LocalLoop::LocalLoop(sim::Loop& world)
    : world_(world), drift_since_world_(world.now()), drift_since_local_(world.now()) {
  world_.locals_.push_back(this);
}

LocalLoop::~LocalLoop() { std::erase(world_.locals_, this); }

void LocalLoop::set_drift(std::int64_t parts_per_million) {
  MUSTER_ASSERT(parts_per_million > -kMillion);
  drift_since_local_ = now();
  drift_since_world_ = world_.now();
  drift_ = parts_per_million;
}

TimePoint LocalLoop::to_local(TimePoint world_time) const {
  const Duration passed = world_time - drift_since_world_;
  return drift_since_local_ + Duration(scale(passed.count(), kMillion + drift_, kMillion));
}

TimePoint LocalLoop::to_world(TimePoint local_time) const {
  const Duration ahead = local_time - drift_since_local_;
  if (ahead <= Duration::zero()) return drift_since_world_;
  if (ahead > kFarAway) return kNever;
  if (drift_ < 0 && ahead > kFarAway / kMillion * (kMillion + drift_)) return kNever;
  TimePoint when = drift_since_world_ + Duration(scale(ahead.count(), kMillion, kMillion + drift_));
  while (to_local(when) < local_time)
    when += Duration(1);  // rounding took at most a few nanoseconds
  return when;
}

bool LocalLoop::busy() {
  if (stopped_) return false;
  if (!posted_.empty() || has_ready()) return true;
  const std::optional<TimePoint> timer = next_timer();
  return timer && *timer <= now();
}

void LocalLoop::turn() {
  if (stopped_) return;
  posted_.run();
  run_timers(now());
  run_ready();
}

std::optional<TimePoint> LocalLoop::next_event() {
  if (stopped_) return std::nullopt;
  if (busy()) return world_.now();
  const std::optional<TimePoint> timer = next_timer();
  if (!timer) return std::nullopt;
  const TimePoint when = to_world(*timer);
  if (when == kNever) return std::nullopt;
  return std::max(when, world_.now());
}

}  // namespace muster::sim
