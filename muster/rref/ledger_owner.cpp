// The owner's side of the Ledger.
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

constexpr std::uint8_t kBegun = 1;         // the creation has come, or none is to come
constexpr std::uint8_t kExists = 2;        // the owner's reference is there
constexpr std::uint8_t kCreatorFork = 4;   // its creator has it
constexpr std::uint8_t kSelfFork = 8;      // the stand-in of a remote call to this worker
constexpr std::uint8_t kAwaited = 16;      // a fetch waits for it
constexpr std::uint8_t kHanded = 32;       // a local program has it, though it does not exist yet
constexpr std::uint8_t kCreatorGone = 64;  // its creator has let go before the creation came

bool has(std::uint8_t flags, std::uint8_t flag) { return (flags & flag) != 0; }

bool is_running(std::uint8_t flags) { return has(flags, kBegun) && !has(flags, kExists); }

}  // namespace

// ---- entries ------------------------------------------------------------------------------------

void Ledger::count_owner(const Owner& owner, bool is_in) {
  const auto add = [&](std::size_t& count) { is_in ? ++count : --count; };
  if (has(owner.flags, kExists | kHanded)) add(owner_count_);
  if (has(owner.flags, kExists) && has(owner.flags, kCreatorFork | kSelfFork)) {
    add(creator_fork_count_);
  }
}

void Ledger::change_owner(Owner& owner, const FlagChange& change) {
  count_owner(owner, false);
  owner.flags = static_cast<std::uint8_t>((owner.flags & ~change.clear) | change.set);
  count_owner(owner, true);
}

Ledger::Owner& Ledger::owner_entry(GlobalId rref, std::uint8_t flags_if_new) {
  const auto [place, is_new] = owners_.try_emplace(rref);
  if (is_new) change_owner(place->second, {.set = flags_if_new});
  return place->second;
}

void Ledger::erase_owner(GlobalId rref) {
  const auto found = owners_.find(rref);
  count_owner(found->second, false);
  owners_.erase(found);
}

bool Ledger::is_creators(GlobalId rref, GlobalId fork) const {
  return rref.created_on() != self_ && fork == creation_fork(rref);
}

bool Ledger::remove_fork(GlobalId rref, GlobalId fork) {
  const auto owner = owners_.find(rref);
  if (owner == owners_.end()) return false;
  if (is_creators(rref, fork)) {
    if (!has(owner->second.flags, kCreatorFork)) return false;
    change_owner(owner->second, {.clear = kCreatorFork});
  } else {
    const auto found = forks_.find(fork);
    if (found == forks_.end() || found->second.rref != rref) return false;
    forks_.erase(found);
  }
  --owner->second.fork_count;
  return true;
}

void Ledger::settle_owner(GlobalId rref, Effects& out) {
  const auto found = owners_.find(rref);
  if (found == owners_.end() || found->second.fork_count > 0) return;
  const std::uint8_t flags = found->second.flags;
  if (is_running(flags)) return;
  if (has(flags, kExists)) {
    erase_owner(rref);
    // What was made here need not be remembered; see why_never.
    if (rref.created_on() != self_) ended_.remember(rref, EndedIds::How::Over);
    out.released.push_back(rref);
  } else if (has(flags, kCreatorGone)) {
    // It is not remembered as ended: the creation may still come, and is then run for nobody.
    fail_owner(rref, given_up_error(rref), out);
  } else if (!has(flags, kAwaited | kHanded)) {
    erase_owner(rref);
  }
}

void Ledger::fail_owner(GlobalId rref, const CallError& error, Effects& out) {
  if (owners_.find(rref)->second.fork_count > 0) {
    for (auto place = forks_.begin(); place != forks_.end();) {
      const auto fork = place++;
      if (fork->second.rref == rref) forks_.erase(fork);
    }
  }
  erase_owner(rref);
  out.failed.push_back({rref, error});
}

std::optional<CallError> Ledger::why_never(GlobalId rref) const {
  // Those that are made here are in the tables from their first fork on.
  if (rref.created_on() == self_ || ended_.contains(rref)) return ended_error(rref);
  const WorkerId creator = rref.created_on();
  if (is_lost(creator)) return lost_creator_error(rref, lost_error(creator));
  if (is_other_process(creator, series_of(rref))) {
    return lost_creator_error(rref, replaced_worker_error(creator));
  }
  return std::nullopt;
}

bool Ledger::is_given_up(GlobalId rref) const { return ended_.contains(creation_fork(rref)); }

// ---- what the program on this worker does -------------------------------------------------------

GlobalId Ledger::create_local() { return draw(); }

GlobalId Ledger::create_self() {
  const GlobalId rref = draw();
  owner_entry(rref, kExists | kSelfFork).fork_count = 1;
  return rref;
}

void Ledger::self_finished(GlobalId rref, Effects& out) {
  const auto found = owners_.find(rref);
  if (found == owners_.end() || !has(found->second.flags, kSelfFork)) return;
  change_owner(found->second, {.clear = kSelfFork});
  --found->second.fork_count;
  settle_owner(rref, out);
}

CallResult<ForkData> Ledger::fork_owned(GlobalId rref, WorkerId to, rpc::ConnectionNumber by) {
  if (is_lost(to)) return rpc::call_failed(lost_error(to));
  const GlobalId fork = draw();
  Owner& owner = owner_entry(rref, kExists | kBegun);
  ended_.forget(rref);
  forks_.emplace(fork, Fork{rref, to, by});
  ++owner.fork_count;
  return ForkData{self_, rref, fork, self_, series_of(fork), {}};
}

Ledger::Received Ledger::received_own(const ForkData& data, Effects& out) {
  const GlobalId rref = data.rref;
  const GlobalId fork = data.fork;
  const auto how = ended_.find(fork);
  if (how == EndedIds::How::Cancelled) return {Arrival::Failed, cancelled_error(rref, fork)};
  if (data.parent == self_) {
    if (!remove_fork(rref, fork)) return {Arrival::Failed, ended_error(rref)};
    ended_.remember(fork, EndedIds::How::Over);
    settle_owner(rref, out);
    return {Arrival::Owner, std::nullopt};
  }
  if (!how) {
    ended_.remember(fork, EndedIds::How::Over);
    send(data.parent, {MessageType::RrefChildAccept, {}, fork}, out);
  }
  if (!owners_.contains(rref)) {
    if (auto error = why_never(rref)) return {Arrival::Failed, std::move(error)};
    if (is_given_up(rref)) return {Arrival::Failed, given_up_error(rref)};
  }
  Owner& owner = owner_entry(rref, 0);
  if (!has(owner.flags, kExists)) change_owner(owner, {.set = kHanded});
  return {Arrival::Owner, std::nullopt};
}

// ---- what other workers ask for -----------------------------------------------------------------

Ledger::Begin Ledger::begin_creation(GlobalId rref, GlobalId fork, WorkerId from) {
  const auto refuse = [&](std::string_view why) {
    return Begin{Creation::Refuse, refused_creation_error(rref, why)};
  };
  const bool is_self = rref == fork;
  if (is_self ? from != self_ || rref.created_on() != self_
              : rref.created_on() != from || !is_creators(rref, fork)) {
    return refuse("its ids are not those of its creator");
  }
  if (is_lost(from)) return {Creation::Refuse, lost_error(from)};
  const auto found = owners_.find(rref);
  if (found != owners_.end()) {
    Owner& owner = found->second;
    // A call to this worker itself may have timed out, and its value been shared once more.
    const bool is_late = is_self && !has(owner.flags, kSelfFork);
    if (has(owner.flags, kBegun) && !is_late) return refuse("the call came twice");
    // Somebody has it, even if its creator has let go.
    const bool counts = !is_self && !has(owner.flags, kCreatorGone) && !ended_.contains(fork);
    change_owner(owner,
                 {.set = static_cast<std::uint8_t>(counts ? kBegun | kCreatorFork : kBegun)});
    if (counts) ++owner.fork_count;
    return {Creation::Run, std::nullopt};
  }
  // A call to this worker itself whose caller has given up comes once all the same.
  if (is_self) return {Creation::RunAndDiscard, std::nullopt};
  if (ended_.contains(rref)) return refuse("the call came twice");
  if (ended_.contains(fork)) {
    ended_.remember(rref, EndedIds::How::Over);
    return {Creation::RunAndDiscard, std::nullopt};
  }
  owner_entry(rref, kBegun | kCreatorFork).fork_count = 1;
  return {Creation::Run, std::nullopt};
}

void Ledger::created(GlobalId rref, Effects& out) {
  const auto found = owners_.find(rref);
  if (found == owners_.end()) return;
  change_owner(found->second, {.set = kExists, .clear = kAwaited | kHanded});
  out.ready.push_back(rref);
  settle_owner(rref, out);
}

Ledger::Fetch Ledger::fetch(const FetchCall& call, WorkerId from) {
  if (is_lost(from)) return {FetchAnswer::Refused, lost_error(from)};
  const auto found = owners_.find(call.rref);
  if (found == owners_.end()) {
    if (auto error = why_never(call.rref)) return {FetchAnswer::Refused, std::move(error)};
    if (ended_.contains(call.fork)) return {FetchAnswer::Refused, ended_error(call.rref)};
    if (is_given_up(call.rref)) return {FetchAnswer::Refused, given_up_error(call.rref)};
    owner_entry(call.rref, kAwaited);
    return {FetchAnswer::Wait, std::nullopt};
  }
  if (has(found->second.flags, kExists)) return {FetchAnswer::Ready, std::nullopt};
  change_owner(found->second, {.set = kAwaited});
  return {FetchAnswer::Wait, std::nullopt};
}

Ack Ledger::on_fork_request(WorkerId from, const Control& control) {
  const GlobalId rref = control.rref;
  const GlobalId fork = control.fork;
  if (const auto known = forks_.find(fork); known != forks_.end()) {
    return known->second.rref == rref ? Ack::Done : Ack::Ended;
  }
  // The creator's own fork needs no request, so this one comes from nobody who could have it.
  if (is_creators(rref, fork) || ended_.contains(fork)) return Ack::Ended;
  if (!owners_.contains(rref) && why_never(rref)) {
    // The child gives it up now; a copy of the request must find the same, even if the owner shares
    // its value again meanwhile.
    ended_.remember(fork, EndedIds::How::Over);
    return Ack::Ended;
  }
  ++owner_entry(rref, is_given_up(rref) ? kCreatorGone : 0).fork_count;
  forks_.emplace(fork, Fork{rref, from, rpc::kNoConnection});
  return Ack::Done;
}

void Ledger::on_user_delete(const Control& control, Effects& out) {
  const GlobalId rref = control.rref;
  const GlobalId fork = control.fork;
  if (!remove_fork(rref, fork)) out.unknown.push_back({rref, fork});
  const auto found = owners_.find(rref);
  if (found == owners_.end()) {
    // It may have overtaken the creation, or the request of this fork.
    if (!why_never(rref)) ended_.remember(fork, EndedIds::How::Over);
    return;
  }
  if (!is_creators(rref, fork)) {
    ended_.remember(fork, EndedIds::How::Over);
  } else if (!has(found->second.flags, kBegun)) {
    change_owner(found->second, {.set = kCreatorGone});
    ended_.remember(fork, EndedIds::How::Over);
  }
  settle_owner(rref, out);
}

// ---- the loss of a worker, and the end ----------------------------------------------------------

void Ledger::owners_lose(WorkerId worker, Effects& out) {
  std::vector<HeldFork> held;
  for (const auto& [fork, entry] : forks_) {
    if (entry.holder == worker) held.push_back({entry.rref, fork, worker});
  }
  std::vector<GlobalId> created;
  for (const auto& [rref, owner] : owners_) {
    if (rref.created_on() == worker) created.push_back(rref);
  }
  std::sort(held.begin(), held.end());
  std::sort(created.begin(), created.end());
  for (const HeldFork& one : held) {
    remove_fork(one.rref, one.fork);
    ended_.remember(one.fork, EndedIds::How::Over);
    settle_owner(one.rref, out);
  }
  for (const GlobalId rref : created) {
    const auto found = owners_.find(rref);
    if (found == owners_.end()) continue;
    if (has(found->second.flags, kBegun)) {
      remove_fork(rref, creation_fork(rref));
      settle_owner(rref, out);
    } else {
      fail_owner(rref, lost_creator_error(rref, lost_error(worker)), out);
      ended_.remember(rref, EndedIds::How::Over);
    }
  }
}

void Ledger::end_unforked_owners(Effects& out) {
  std::vector<GlobalId> unforked;
  for (const auto& [rref, owner] : owners_) {
    if (owner.fork_count == 0 && !is_running(owner.flags)) unforked.push_back(rref);
  }
  std::sort(unforked.begin(), unforked.end());
  for (const GlobalId rref : unforked) fail_owner(rref, given_up_error(rref), out);
}

std::vector<Ledger::HeldFork> Ledger::held_forks() const {
  std::vector<HeldFork> held;
  for (const auto& [rref, owner] : owners_) {
    if (!has(owner.flags, kExists)) continue;
    if (has(owner.flags, kCreatorFork)) {
      held.push_back({rref, creation_fork(rref), rref.created_on()});
    }
    if (has(owner.flags, kSelfFork)) held.push_back({rref, rref, self_});
  }
  for (const auto& [fork, entry] : forks_) held.push_back({entry.rref, fork, entry.holder});
  std::sort(held.begin(), held.end());
  return held;
}

bool Ledger::has_fork(GlobalId rref, GlobalId fork) const {
  if (is_creators(rref, fork)) {
    const auto owner = owners_.find(rref);
    return owner != owners_.end() && has(owner->second.flags, kCreatorFork);
  }
  const auto found = forks_.find(fork);
  return found != forks_.end() && found->second.rref == rref;
}

std::string Ledger::leak_report() const {
  std::string report;
  for (const HeldFork& one : held_forks()) {
    report += fmt::format("Leaking RRef {} with fork Id {}\n", one.rref.text(), one.fork.text());
  }
  return report;
}

}  // namespace muster::rref
