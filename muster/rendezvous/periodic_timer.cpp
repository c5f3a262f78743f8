#include "muster/rendezvous/periodic_timer.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

namespace muster::rendezvous {

PeriodicTimer::PeriodicTimer(Loop& loop, Duration interval, std::function<Task<Result<>>()> task)
    : loop_(loop), interval_(interval), task_(std::move(task)) {}

Result<> PeriodicTimer::start() {
  if (started_)
    return fail(ErrorKind::Invalid, fmt::format("the timer {} was started before", name_));
  started_ = true;
  scope_.start(run());
  return {};
}

void PeriodicTimer::cancel() {
  cancelled_ = started_;
  // A tick ends by itself; it may even be the one that calls this.
  if (!in_tick_) scope_.cancel_all();
}

Task<void> PeriodicTimer::stop() {
  cancel();
  if (!in_tick_) co_return;
  Oneshot<bool> ended(loop_);
  stopping_.push_back(&ended);
  // The caller may be cancelled while it waits.
  struct Leave {
    std::vector<Oneshot<bool>*>& list;
    Oneshot<bool>* own;
    ~Leave() { std::erase(list, own); }
  } leave{stopping_, &ended};
  co_await ended;
}

Result<> PeriodicTimer::set_name(std::string name) {
  if (started_) {
    return fail(ErrorKind::Invalid,
                fmt::format("the timer {} was started before and keeps its name", name_));
  }
  name_ = std::move(name);
  return {};
}

Task<void> PeriodicTimer::run() {
  while (!cancelled_) {
    co_await sleep_until(loop_, after(loop_.now(), interval_));
    in_tick_ = true;
    const auto done = co_await task_();
    in_tick_ = false;
    if (!done) {
      log::warn("rendezvous", "{} failed, {} reason={}", name_,
                cancelled_ ? "stopping" : "trying again in " + describe(interval_),
                log::quote(done.error().message));
    }
  }
  for (Oneshot<bool>* waiter : stopping_) waiter->set(true);
}

Task<void> delay(Loop& loop, Duration length) {
  if (length >= kDelayMin) co_await sleep_until(loop, after(loop.now(), length));
}

Task<void> delay(Loop& loop, Random& random, Duration low, Duration high) {
  MUSTER_ASSERT(low <= high);
  const auto spread = static_cast<std::uint64_t>((high - low).count());
  const Duration length = low + Duration(static_cast<Duration::rep>(random.below(spread + 1)));
  return delay(loop, length);
}

}  // namespace muster::rendezvous
