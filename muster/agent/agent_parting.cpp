// How the agent ends, and what it does when the store goes with the node that hosts it; see
// agent.h.
#include "muster/agent/agent.h"
#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace muster::agent {
namespace {

// How long the end waits for other nodes: for their failures, and until they know how it ended.
constexpr Duration kPartingTime = std::chrono::seconds(5);
// The same while the store is out of reach. It may be about to come back, and no more than that.
constexpr Duration kHopefulTime = std::chrono::seconds(1);
// How long the agent that hosts the store may take to come back, started anew.
constexpr Duration kStoreHostTime = std::chrono::seconds(5);

}  // namespace

// -- the store on another node -------------------------------------------------------------------

Task<void> Agent::mind_store() {
  // One that is served by itself is waited for as long as the options of the rendezvous say.
  if (handler_->store_on_node().empty()) co_return;
  rendezvous::Status status = handler_->status();
  for (;;) {
    auto changed = co_await handler_->wait_status(status, kNever);
    if (!changed) co_return;
    const bool was_away = std::exchange(status, *changed).away;
    if (status.away == was_away) continue;
    store_timer_.set(status.away ? after(now(), kStoreHostTime) : kNever);
    if (!status.away) store_gone_ = false;
  }
}

void Agent::lose_store() {
  store_gone_ = true;
  ending_.message = fmt::format(
      "the store of run {} at {} is gone: the agent of that node hosted it and has been out of "
      "reach for {}. Start the job again on all nodes; to survive the loss of any node, put the "
      "store on none of them (`muster store serve` elsewhere, or etcd)",
      log::quote(config().rendezvous.run_id), handler_->store_on_node(),
      muster::describe(kStoreHostTime));
  const bool runs = supervisor_.phase() == Phase::Running;
  log::error("agent", "{}{}", ending_.message,
             runs ? "; the workers of this node go on, but cannot be restarted" : "");
  happened([this] { return supervisor_.store_lost(); });
}

// -- the end -------------------------------------------------------------------------------------

Duration Agent::parting_time() const {
  return handler_->status().away ? kHopefulTime : kPartingTime;
}

Task<void> Agent::gather_failures(TimePoint deadline) {
  // The one line that says why is enough; the others were only stopped for it.
  if (start_failure_ && is_alone()) co_return;
  std::vector<std::string> mine;
  if (start_failure_) {
    ending_.failures.push_back(*start_failure_);
    mine.push_back(failures::to_json(*start_failure_));
  }
  if (crew_) {
    for (const failures::Failure& failure : crew_->failures()) {
      ending_.failures.push_back(failure);
      mine.push_back(failures::to_json(failure));
    }
  }
  std::vector<std::string> theirs = std::move(heard_failures_);
  if (!is_alone() && !store_gone_) {
    auto adding = round_->board.add_failures(std::move(mine));
    std::string what = "the store does not answer";
    auto added = co_await with_deadline(loop_, deadline, std::move(adding), std::move(what));
    if (added && !handler_->status().lost) (void)co_await round_->board.meet("reported", deadline);
    auto reading = round_->board.failures();
    what = "the store does not answer";
    auto all = co_await with_deadline(loop_, deadline, std::move(reading), std::move(what));
    if (all) theirs.insert(theirs.end(), all->begin(), all->end());
  }
  for (const std::string& text : theirs) {
    auto failure = failures::failure_from_json(text);
    if (!failure || failure->node_rank == round_->info.rank) continue;
    const bool known = std::any_of(
        ending_.failures.begin(), ending_.failures.end(),
        [&](const failures::Failure& other) { return other.global_rank == failure->global_rank; });
    if (!known) ending_.failures.push_back(std::move(*failure));
  }
}

Task<void> Agent::finish(Outcome outcome, bool close, bool leave) {
  if (crew_) {
    process::StopOptions options;
    options.grace = Duration::zero();
    (void)co_await crew_->stop(options);
  }
  if (round_) {
    if (outcome == Outcome::Succeeded) parts_.records.metrics().round_ended(now() - round_->began);
    const TimePoint deadline = after(now(), parting_time());
    if (outcome == Outcome::Failed) co_await gather_failures(deadline);
  }
  if (handler_ && !store_gone_ && (close || leave)) {
    const TimePoint deadline = after(now(), parting_time());
    std::string what = "the rendezvous does not answer";
    if (close) {
      auto closing = handler_->set_closed();
      auto closed = co_await with_deadline(loop_, deadline, std::move(closing), std::move(what));
      if (!closed) log::debug("agent", "the run was not closed: {}", closed.error().message);
    } else {
      auto leaving = handler_->leave();
      auto left = co_await with_deadline(loop_, deadline, std::move(leaving), std::move(what));
      if (!left) log::debug("agent", "the run was not left: {}", left.error().message);
    }
  }
  const bool together = outcome == Outcome::Succeeded || outcome == Outcome::Failed;
  const bool can_meet = handler_ && !handler_->status().lost && !handler_->status().away;
  if (round_ && together && !is_alone() && can_meet) {
    // Whoever hosts the store is the last to go; the others need not wait for anybody.
    const TimePoint deadline = after(now(), parting_time());
    if (handler_->hosts_store()) {
      (void)co_await round_->board.meet("parted", deadline);
    } else {
      (void)co_await round_->board.pass("parted", deadline);
    }
  }
  over_.set(true);
}

}  // namespace muster::agent
