// The user's side of the Ledger.
#include "muster/base/assert.h"
#include "muster/rref/errors.h"
#include "muster/rref/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::rref {
namespace {

using rpc::CallError;
using rpc::CallResult;
using rpc::MessageType;

constexpr std::uint8_t kDropped = 1;   // no local handle is left
constexpr std::uint8_t kNoDelete = 2;  // the owner need not be told of the end
constexpr std::uint8_t kReceived = 4;  // came from another worker, and may come again

}  // namespace

bool Ledger::is_pending(const User& user) {
  return user.state == UserState::Creating || user.state == UserState::Requesting;
}

// ---- handles ------------------------------------------------------------------------------------

CallResult<Ledger::NewReference> Ledger::create(WorkerId owner) {
  MUSTER_ASSERT(owner != self_);
  if (is_lost(owner)) return rpc::call_failed(creation_error(lost_error(owner)));
  const GlobalId rref = draw(2);
  const GlobalId fork = creation_fork(rref);
  users_.emplace(fork, User{rref, 0, owner, UserState::Creating, 0});
  ++pending_user_count_;
  return NewReference{rref, fork};
}

void Ledger::creation_finished(GlobalId fork, const std::optional<CallError>& error, Effects& out) {
  const auto found = users_.find(fork);
  if (found == users_.end() || found->second.state != UserState::Creating) return;
  if (!error) {
    confirm_user(fork, out);
  } else {
    // Rejected: the program never had the handle, and the owner cannot be reached at all.
    if (error->kind == rpc::CallErrorKind::Rejected) found->second.flags |= kNoDelete;
    fail_user(fork, creation_error(*error), out);
  }
  end_user_if_possible(fork, out);
}

void Ledger::dropped(GlobalId fork, Effects& out) {
  const auto found = users_.find(fork);
  if (found == users_.end()) return;
  found->second.flags |= kDropped;
  end_user_if_possible(fork, out);
}

void Ledger::confirm_user(GlobalId fork, Effects& out) {
  --pending_user_count_;
  users_.find(fork)->second.state = UserState::Confirmed;
  out.settled.push_back({fork, std::nullopt});
}

void Ledger::fail_user(GlobalId fork, CallError error, Effects& out) {
  User& user = users_.find(fork)->second;
  if (is_pending(user)) --pending_user_count_;
  user.state = UserState::Failed;
  out.settled.push_back({fork, error});
  failures_.insert_or_assign(fork, std::move(error));
}

void Ledger::end_user_if_possible(GlobalId fork, Effects& out) {
  const auto found = users_.find(fork);
  if (found == users_.end()) return;
  const User user = found->second;
  if ((user.flags & kDropped) == 0 || is_pending(user) || user.child_count > 0) return;
  users_.erase(found);
  failures_.erase(fork);
  if ((user.flags & kReceived) != 0) ended_.remember(fork, EndedIds::How::Over);
  if ((user.flags & kNoDelete) == 0) {
    send(user.owner, {MessageType::RrefUserDelete, user.rref, fork}, out);
  }
}

Ledger::State Ledger::state_of(GlobalId fork) const {
  const auto found = users_.find(fork);
  if (found == users_.end() || (found->second.flags & kDropped) != 0) return State::Deleted;
  if (is_pending(found->second)) return State::Pending;
  return found->second.state == UserState::Failed ? State::Failed : State::Confirmed;
}

std::optional<CallError> Ledger::use_error(const Use& use) const {
  switch (state_of(use.fork)) {
    case State::Pending:
    case State::Confirmed:
      return std::nullopt;
    case State::Failed:
      return failures_.find(use.fork)->second;
    case State::Deleted:
      break;
  }
  return deleted_error(use.rref, use.fork, use.operation);
}

// ---- forks --------------------------------------------------------------------------------------

CallResult<ForkData> Ledger::fork_user(GlobalId rref, GlobalId fork, WorkerId to,
                                       rpc::ConnectionNumber by) {
  if (auto error = use_error({rref, fork, "call fork an UserRRef"})) {
    return rpc::call_failed(std::move(*error));
  }
  if (is_lost(to)) return rpc::call_failed(lost_error(to));
  const GlobalId child = draw();
  children_.emplace(child, Child{fork, to, by});
  User& user = users_.find(fork)->second;
  ++user.child_count;
  return ForkData{user.owner, user.rref, child, self_, series_of_worker(user.owner), {}};
}

void Ledger::release_child(GlobalId fork, Effects& out) {
  const auto found = children_.find(fork);
  if (found == children_.end()) return;
  const GlobalId parent = found->second.parent;
  children_.erase(found);
  --users_.find(parent)->second.child_count;
  end_user_if_possible(parent, out);
}

Ledger::Received Ledger::received_foreign(const ForkData& data, Effects& out) {
  if (const auto known = users_.find(data.fork); known != users_.end()) {
    // The same message once more; there is a local handle again.
    known->second.flags &= static_cast<std::uint8_t>(~kDropped);
    if (is_pending(known->second)) return {Arrival::Pending, std::nullopt};
    if (known->second.state == UserState::Confirmed) return {Arrival::Confirmed, std::nullopt};
    return {Arrival::Failed, failures_.find(data.fork)->second};
  }
  if (const auto how = ended_.find(data.fork)) {
    const bool is_cancelled = how == EndedIds::How::Cancelled;
    return {Arrival::Failed,
            is_cancelled ? cancelled_error(data.rref, data.fork) : ended_error(data.rref)};
  }
  const bool is_from_owner = data.parent == data.owner;
  const bool is_owner_lost = is_lost(data.owner);
  if (is_owner_lost || is_other_process(data.owner, data.owner_series)) {
    ended_.remember(data.fork, EndedIds::How::Over);
    if (!is_from_owner) send(data.parent, {MessageType::RrefChildAccept, {}, data.fork}, out);
    const CallError why =
        is_owner_lost ? lost_error(data.owner) : replaced_worker_error(data.owner);
    return {Arrival::Failed, lost_owner_error(data.rref, data.fork, why)};
  }
  User user{data.rref, 0, data.owner, UserState::Confirmed, kReceived};
  if (is_from_owner) {
    users_.emplace(data.fork, user);
    return {Arrival::Confirmed, std::nullopt};
  }
  user.state = UserState::Requesting;
  users_.emplace(data.fork, user);
  ++pending_user_count_;
  send(data.owner, {MessageType::RrefForkRequest, data.rref, data.fork}, out, data.parent);
  return {Arrival::Pending, std::nullopt};
}

void Ledger::fork_request_ended(const Pending& request, const std::optional<CallError>& error,
                                Effects& out) {
  const GlobalId fork = request.control.fork;
  const auto found = users_.find(fork);
  if (found == users_.end() || found->second.state != UserState::Requesting) return;
  if (error) {
    found->second.flags |= kNoDelete;
    fail_user(fork, *error, out);
  } else {
    confirm_user(fork, out);
  }
  send(request.parent, {MessageType::RrefChildAccept, {}, fork}, out);
  end_user_if_possible(fork, out);
}

// ---- the loss of a worker, and the end ----------------------------------------------------------

void Ledger::users_lose(WorkerId worker, Effects& out) {
  std::vector<Pending> requests;
  for (auto& [ticket, pending] : pending_) {
    if (pending.to != worker || pending.is_abandoned) continue;
    pending.is_abandoned = true;
    ++abandoned_count_;
    out.abandoned.push_back(ticket);
    if (pending.control.type == MessageType::RrefForkRequest) requests.push_back(pending);
  }
  std::sort(out.abandoned.begin(), out.abandoned.end());
  std::vector<GlobalId> children;
  for (const auto& [fork, child] : children_) {
    if (child.to == worker) children.push_back(fork);
  }
  std::sort(children.begin(), children.end());
  for (const GlobalId fork : children) release_child(fork, out);

  std::vector<GlobalId> owned;
  for (const auto& [fork, user] : users_) {
    if (user.owner == worker) owned.push_back(fork);
  }
  std::sort(owned.begin(), owned.end());
  for (const GlobalId fork : owned) {
    const auto found = users_.find(fork);
    if (found == users_.end()) continue;
    found->second.flags |= kNoDelete;
    const CallError lost = lost_error(worker);
    if (found->second.state == UserState::Creating) {
      fail_user(fork, creation_error(lost), out);
    } else if (found->second.state != UserState::Failed) {
      fail_user(fork, lost_owner_error(found->second.rref, fork, lost), out);
    }
    end_user_if_possible(fork, out);
  }
  // The parents need not wait for them any more.
  std::sort(requests.begin(), requests.end(), [](const Pending& left, const Pending& right) {
    return left.control.fork < right.control.fork;
  });
  for (const Pending& request : requests) {
    send(request.parent, {MessageType::RrefChildAccept, {}, request.control.fork}, out);
  }
}

void Ledger::end_users(Effects& out) {
  for (const GlobalId fork : user_forks()) dropped(fork, out);
}

std::string Ledger::unsettled_report() const {
  std::string report;
  for (const GlobalId fork : user_forks()) {
    const User& user = users_.find(fork)->second;
    if (!is_pending(user)) continue;
    report += fmt::format("{} waits for its owner, worker {}\n", user_error_text(user.rref, fork),
                          user.owner);
  }
  std::vector<GlobalId> forks;
  for (const auto& [fork, child] : children_) forks.push_back(fork);
  std::sort(forks.begin(), forks.end());
  for (const GlobalId fork : forks) {
    const Child& child = children_.find(fork)->second;
    const GlobalId rref = users_.find(child.parent)->second.rref;
    report += fmt::format("{} waits to be accepted by worker {}\n", user_error_text(rref, fork),
                          child.to);
  }
  return report;
}

std::vector<GlobalId> Ledger::user_forks() const {
  std::vector<GlobalId> forks;
  forks.reserve(users_.size());
  for (const auto& [fork, user] : users_) forks.push_back(fork);
  std::sort(forks.begin(), forks.end());
  return forks;
}

}  // namespace muster::rref
