#include "muster/rref/ledger.h"

#include "muster/base/assert.h"
#include "muster/rref/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::rref {

using rpc::CallError;
using rpc::CallResult;
using rpc::MessageType;

bool Effects::empty() const {
  return sends.empty() && settled.empty() && ready.empty() && failed.empty() && released.empty() &&
         abandoned.empty() && unknown.empty();
}

Ledger::Ledger(const LedgerOptions& options, IdSource& ids)
    : self_(options.self), ids_(ids), ended_(options.ended_ids_max) {}

GlobalId Ledger::draw(std::int64_t count) { return {self_, ids_.draw(count)}; }

// ---- forking, by whoever has it -----------------------------------------------------------------

void Ledger::undo_fork(GlobalId fork, Effects& out) {
  if (children_.contains(fork)) return release_child(fork, out);
  const auto found = forks_.find(fork);
  if (found == forks_.end()) return;
  const GlobalId rref = found->second.rref;
  remove_fork(rref, fork);
  ended_.remember(fork, EndedIds::How::Over);
  settle_owner(rref, out);
}

void Ledger::fork_uncertain(GlobalId fork, Effects& out) {
  const Control cancel{MessageType::RrefForkCancel, {}, fork};
  if (const auto child = children_.find(fork); child != children_.end()) {
    send(child->second.to, cancel, out);
  } else if (const auto held = forks_.find(fork); held != forks_.end()) {
    send(held->second.holder, cancel, out);
  }
}

void Ledger::connection_lost(rpc::ConnectionNumber connection, Effects& out) {
  std::vector<GlobalId> uncertain;
  for (const auto& [fork, entry] : forks_) {
    if (entry.by == connection) uncertain.push_back(fork);
  }
  for (const auto& [fork, child] : children_) {
    if (child.by == connection) uncertain.push_back(fork);
  }
  std::sort(uncertain.begin(), uncertain.end());
  for (const GlobalId fork : uncertain) fork_uncertain(fork, out);
}

Ledger::Received Ledger::received(const ForkData& data, Effects& out) {
  return data.owner == self_ ? received_own(data, out) : received_foreign(data, out);
}

// ---- control messages ---------------------------------------------------------------------------

void Ledger::send(WorkerId to, const Control& control, Effects& out, WorkerId parent) {
  if (is_stopped_ || is_lost(to)) return;
  const Ticket ticket = next_ticket_++;
  pending_.emplace(ticket, Pending{control, to, parent, false});
  out.sends.push_back({ticket, to, control.type, encode(control)});
}

CallResult<std::string> Ledger::on_control(WorkerId from, MessageType type,
                                           std::string_view payload, Effects& out) {
  if (is_lost(from)) return rpc::call_failed(lost_error(from));
  const Result<Control> control = decode_control(type, payload);
  if (!control) {
    return rpc::call_failed({rpc::CallErrorKind::Rejected, control.error().message, {}, false});
  }
  worker_heard(from, out);
  switch (type) {
    case MessageType::RrefForkRequest:
      return encode(on_fork_request(from, *control));
    case MessageType::RrefUserDelete:
      on_user_delete(*control, out);
      return encode(Ack::Done);
    case MessageType::RrefChildAccept:
      release_child(control->fork, out);
      return encode(Ack::Done);
    default:
      return encode(on_fork_cancel(*control));
  }
}

Ack Ledger::on_fork_cancel(const Control& control) {
  if (users_.contains(control.fork)) return Ack::Kept;
  const auto how = ended_.find(control.fork);
  if (how == EndedIds::How::Over) return Ack::Kept;
  ended_.remember(control.fork, EndedIds::How::Cancelled);
  return Ack::Cancelled;
}

std::optional<Ledger::Pending> Ledger::take_pending(Ticket ticket) {
  const auto found = pending_.find(ticket);
  if (found == pending_.end()) return std::nullopt;
  const Pending pending = found->second;
  pending_.erase(found);
  if (pending.is_abandoned) --abandoned_count_;
  return pending;
}

void Ledger::acked(Ticket ticket, std::string_view payload, Effects& out) {
  const Result<Ack> ack = decode_ack(payload);
  if (!ack) return failed(ticket, {rpc::CallErrorKind::Remote, ack.error().message, {}, true}, out);
  const std::optional<Pending> known = take_pending(ticket);
  if (!known) return;
  const Pending& pending = *known;
  const MessageType type = pending.control.type;
  if (pending.is_abandoned) {
    // It was for a process that is gone, and reached the next one, which must not keep the fork.
    if (type == MessageType::RrefForkRequest && ack == Ack::Done) {
      send(pending.to, {MessageType::RrefUserDelete, pending.control.rref, pending.control.fork},
           out);
    }
    return;
  }
  if (type == MessageType::RrefForkRequest) {
    std::optional<CallError> error;
    if (ack != Ack::Done) error = ended_error(pending.control.rref);
    fork_request_ended(pending, error, out);
  } else if (type == MessageType::RrefForkCancel && ack == Ack::Cancelled) {
    undo_fork(pending.control.fork, out);
  }
}

void Ledger::failed(Ticket ticket, const CallError& error, Effects& out) {
  const std::optional<Pending> known = take_pending(ticket);
  if (!known) return;
  const Pending& pending = *known;
  if (pending.control.type == MessageType::RrefForkRequest) {
    const GlobalId rref = pending.control.rref;
    const GlobalId fork = pending.control.fork;
    if (!pending.is_abandoned) {
      fork_request_ended(pending, unconfirmed_error(rref, fork, error), out);
    }
    // Perhaps only the answer was lost. The owner remembers the delete should the request still
    // come.
    send(pending.to, {MessageType::RrefUserDelete, rref, fork}, out);
  } else if (!pending.is_abandoned && !is_stopped_) {
    parked_[pending.to].push_back(pending.control);
  }
}

void Ledger::worker_heard(WorkerId worker, Effects& out) {
  const auto found = parked_.find(worker);
  if (found == parked_.end()) return;
  const std::vector<Control> again = std::move(found->second);
  parked_.erase(found);
  for (const Control& control : again) {
    // What was not known is settled by now: nobody need be asked any more.
    const bool is_settled = control.type == MessageType::RrefForkCancel &&
                            !children_.contains(control.fork) && !forks_.contains(control.fork);
    if (!is_settled) send(worker, control, out);
  }
}

// ---- workers ------------------------------------------------------------------------------------

CallError Ledger::lost_error(WorkerId worker) const {
  const auto found = lost_.find(worker);
  MUSTER_ASSERT(found != lost_.end());
  return lost_worker_error(worker, found->second);
}

std::int64_t Ledger::series_of_worker(WorkerId worker) const {
  const auto found = series_.find(worker);
  return found == series_.end() ? kSeriesUnknown : found->second;
}

bool Ledger::is_other_process(WorkerId worker, std::int64_t series) const {
  const std::int64_t known = series_of_worker(worker);
  return known != kSeriesUnknown && series != kSeriesUnknown && series != known;
}

void Ledger::worker_lost(WorkerId worker, std::string_view reason, Effects& out) {
  MUSTER_ASSERT(worker != self_);
  if (!lost_.try_emplace(worker, reason).second) return;
  parked_.erase(worker);
  users_lose(worker, out);
  owners_lose(worker, out);
}

void Ledger::worker_joined(WorkerId worker, std::optional<std::int64_t> first_id) {
  const bool was_lost = lost_.erase(worker) > 0;
  series_.erase(worker);
  // Without a series of its own it draws the ids that its former self drew.
  if (was_lost && !first_id) ended_.forget_all_of(worker);
  if (first_id) series_.emplace(worker, series_of(*first_id));
}

// ---- figures ------------------------------------------------------------------------------------

Ledger::Counters Ledger::counters() const {
  return {owner_count_, pending_.size() - abandoned_count_, pending_user_count_,
          forks_.size() + creator_fork_count_, children_.size()};
}

std::map<std::string, std::string> Ledger::debug_info() const {
  const Counters now = counters();
  return {{"num_owner_rrefs", fmt::to_string(now.owner_rrefs)},
          {"num_pending_futures", fmt::to_string(now.pending_futures)},
          {"num_pending_users", fmt::to_string(now.pending_users)},
          {"num_forks", fmt::to_string(now.forks)},
          {"num_pending_children", fmt::to_string(now.pending_children)}};
}

std::size_t Ledger::parked_count() const {
  std::size_t count = 0;
  for (const auto& [worker, controls] : parked_) count += controls.size();
  return count;
}

bool Ledger::is_empty() const {
  return owners_.empty() && forks_.empty() && users_.empty() && failures_.empty() &&
         children_.empty() && pending_.empty() && parked_.empty();
}

}  // namespace muster::rref
