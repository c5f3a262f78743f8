#include "muster/rendezvous/group.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::rendezvous {

struct Group::Seat {
  Node node;
  Settings settings;
  std::uint64_t number = 0;
  store::Conversation* line = nullptr;  // nothing while its connection is broken
  bool joining = false;
  RoundId after;             // the round that the pending join leaves behind
  bool to_decide = false;    // is in `to_decide_`
  TimePoint heard;           // its last sign of life
  TimePoint lost_at;         // when its line was lost; only without one
  TimePoint entry = kNever;  // its entry in `expiries_`
  Status told;
  bool told_spare = false;
};

Group::Group(std::string run_id, std::uint64_t birth) : run_id_(std::move(run_id)), birth_(birth) {}
Group::~Group() = default;

// -- what nodes do
// ---------------------------------------------------------------------------------

Result<Group::Seated> Group::sit(store::Conversation& line, const Hello& hello, TimePoint now) {
  if (auto limits = check_limits(state_, hello.settings); !limits) {
    return fail(std::move(limits.error()));
  }
  std::unique_ptr<Seat>& place = seats_[hello.node];
  if (!place) {
    place = std::make_unique<Seat>();
    place->node = hello.node;
    place->number = ++last_seat_number_;
    seat_numbers_[place->number] = place.get();
  }
  Seat& seat = *place;
  Seated seated{&seat, seat.line};
  seat.settings = hello.settings;
  seat.line = &line;
  seat.told_spare = false;  // whatever was said on another line may not have come through
  seat.heard = now;
  if (hello.place || hello.knows_closed) adopt(hello, now);
  watch_over(seat);
  if (hello.closes) close(now);
  if (hello.joins) {
    join(seat, hello.place ? hello.place->id : RoundId(), now);
  } else {
    seat.joining = false;
    // A join that it has given up leaves nothing behind; only what it says it is in, it stays in.
    const bool is_member = hello.place && hello.place->id == current() && state_.complete &&
                           state_.participants.contains(seat.node);
    if (!is_member) remove(seat, now);
    settle(now);
    tell_status(seat);
  }
  return seated;
}

Result<> Group::hear(Seat& seat, const Said& said, TimePoint now) {
  seat.heard = now;
  watch_over(seat);
  switch (said.kind) {
    case Said::Kind::Alive:
      seat.line->say(encode_plain(Told::Kind::Alive));
      [[fallthrough]];
    case Said::Kind::Beat:
      // One that had been given up for silence.
      if (seat.joining && !is_known(seat.node)) {
        enqueue(seat);
        settle(now);
      }
      break;
    case Said::Kind::Join:
      if (auto limits = check_limits(state_, seat.settings); !limits) {
        return fail(std::move(limits.error()));
      }
      join(seat, said.after, now);
      break;
    case Said::Kind::Leave:
      leave(seat, now);
      break;
    case Said::Kind::Close:
      close(now);
      break;
    case Said::Kind::Show:
      seat.line->say(encode_snapshot(snapshot(now)));
      break;
  }
  return {};
}

void Group::lose(Seat& seat, TimePoint now) {
  seat.line = nullptr;
  seat.lost_at = now;
  if (is_known(seat.node)) {
    watch_over(seat);
  } else {
    seat_numbers_.erase(seat.number);
    std::erase(to_decide_, &seat);
    seats_.erase(Node(seat.node));
  }
}

void Group::join(Seat& seat, RoundId after, TimePoint now) {
  if (state_.birth == 0) state_.birth = birth_;
  seat.joining = true;
  seat.after = after;
  watch_over(seat);
  enqueue(seat);
  settle(now);
}

void Group::leave(Seat& seat, TimePoint now) {
  seat.joining = false;
  remove(seat, now);
  settle(now);
  seat.told_spare = false;
  seat.line->say(encode_plain(Told::Kind::Left));
}

void Group::close(TimePoint now) {
  if (state_.closed) return;
  if (state_.birth == 0) state_.birth = birth_;
  const Mark before = mark();
  state_.closed = true;
  react(before);
  settle(now);
}

// This server knows nothing of a run that its nodes say they are in: it was restarted. It takes
// over what they know. Only the round they are in keeps its name: the next may have been before, in
// the memory of nodes that have not come back yet, and with other members.
void Group::adopt(const Hello& hello, TimePoint now) {
  const bool is_new = state_.birth == 0;
  if (is_new) state_.birth = birth_;
  if (is_new && hello.place) begin_from(hello, now);
  const bool is_of_this_run = is_new || (hello.place && hello.place->id.birth == former_birth_) ||
                              (hello.place && hello.place->id.birth == state_.birth);
  if (hello.knows_closed && is_of_this_run) close(now);
  // One that joins has already given its round up.
  if (!hello.place || hello.joins) return;
  const Place& place = *hello.place;
  const bool fits = state_.complete && adoption_ends_ && current() == place.id &&
                    state_.world_size == place.world_size && !is_known(hello.node);
  if (!fits || !claimed_ranks_.insert(place.rank).second) return;
  const Mark before = mark();
  state_.participants[hello.node] = place.rank;
  state_.last_heartbeats[hello.node] = now;
  if (static_cast<std::int64_t>(state_.participants.size()) == state_.max_nodes) {
    // All are back: for those who came meanwhile there is no room after all.
    state_.redundancy_list.merge(state_.wait_list);
    state_.wait_list.clear();
    enqueue_all(state_.redundancy_list);
  }
  react(before);
}

void Group::begin_from(const Hello& hello, TimePoint now) {
  const Place& place = *hello.place;
  former_birth_ = place.id.birth;
  state_.min_nodes = hello.settings.min_nodes;
  state_.max_nodes = hello.settings.max_nodes;
  state_.round = place.id.round + 1;
  if (hello.joins) return;
  state_.birth = place.id.birth;
  state_.round = place.id.round;
  state_.complete = true;
  state_.world_size = place.world_size;
  adoption_ends_ = after(now, hello.settings.window());
}

// -- decisions
// -------------------------------------------------------------------------------------

Group::Mark Group::mark() const {
  return {state_.complete, state_.closed, state_.participants.size()};
}

void Group::act(Action action, const Seat& seat, TimePoint now) {
  const Mark before = mark();
  apply(action, seat.node, seat.settings, now, state_);
  react(before);
}

void Group::remove(const Seat& seat, TimePoint) {
  const Mark before = mark();
  if (drop(seat.node, seat.settings, state_)) react(before);
}

void Group::react(const Mark& before) {
  ++change_count_;
  flush_at_ = TimePoint::min();
  if (!before.complete && state_.complete) enqueue_all(state_.participants);
  if (before.complete && !state_.complete) {
    claimed_ranks_.clear();
    adoption_ends_.reset();
    regroup_began_.reset();
    state_.birth = birth_;  // it may have been taken over with the round that is over now
    enqueue_all(state_.wait_list);
    enqueue_all(state_.redundancy_list);
  } else if (state_.participants.size() < before.size) {
    enqueue_all(state_.redundancy_list);
  }
  if (before.closed != state_.closed) {
    for (const auto& [node, seat] : seats_) {
      if (seat->joining) enqueue(*seat);
    }
  }
}

void Group::enqueue(Seat& seat) {
  if (seat.to_decide) return;
  seat.to_decide = true;
  to_decide_.push_back(&seat);
}

template <typename Nodes>
void Group::enqueue_all(const Nodes& nodes) {
  for (const auto& entry : nodes) {
    const Node* node = nullptr;
    if constexpr (std::is_same_v<Nodes, std::set<Node>>) {
      node = &entry;
    } else {
      node = &entry.first;
    }
    Seat* seat = find(*node);
    if (seat != nullptr && seat->joining) enqueue(*seat);
  }
}

void Group::settle(TimePoint now) {
  while (!to_decide_.empty()) {
    Seat& seat = *to_decide_.front();
    to_decide_.pop_front();
    seat.to_decide = false;
    advance(seat, now);
  }
}

void Group::advance(Seat& seat, TimePoint now) {
  while (seat.joining) {
    const auto member = state_.participants.find(seat.node);
    if (state_.complete && !state_.closed && member != state_.participants.end()) {
      if (seat.after != current()) {
        // Whoever is not there to hear it is told when it comes back.
        if (seat.line != nullptr) deliver(seat);
        return;
      }
      if (!regroup_began_) regroup_began_ = now;
      regrouped_at_ = now;
      act(Action::RemoveFromParticipants, seat, now);
      continue;
    }
    // The deadline of a join is the node's own affair: it says Leave when it has passed.
    const Action action = decide_join({state_, seat.settings, seat.node, now, kNever});
    switch (action) {
      case Action::ErrorClosed:
        refuse_join(seat, ErrorKind::Closed, fmt::format("run '{}' is closed", run_id_), now);
        return;
      case Action::ErrorGracefulExit:
        refuse_join(
            seat, ErrorKind::Finished,
            fmt::format("run '{}' is closed; this node was a spare and is not needed", run_id_),
            now);
        return;
      case Action::KeepAlive:
      case Action::Sync:
        watch_over(seat);
        if (state_.redundancy_list.contains(seat.node) != seat.told_spare) tell_status(seat);
        return;
      default:
        MUSTER_ASSERT(changes_state(action));
        act(action, seat, now);
        break;
    }
  }
}

void Group::deliver(Seat& seat) {
  seat.joining = false;
  seat.told = Status{state_.round, 0, false, false, true};
  seat.told_spare = false;
  const Place place{current(), state_.participants.at(seat.node), state_.world_size};
  seat.line->say(encode_joined(place));
  // What has happened since, if it was away when the round completed.
  if (status_for(seat) != seat.told) tell_status(seat);
}

void Group::refuse_join(Seat& seat, ErrorKind kind, std::string_view message, TimePoint now) {
  if (seat.line == nullptr) return;  // told when it comes back
  seat.joining = false;
  remove(seat, now);
  seat.line->say(encode_failed(kind, message));
}

// -- news
// ------------------------------------------------------------------------------------------

Group::News Group::news() const {
  return {state_.round, state_.closed, state_.lost, count_waiting(state_)};
}

Status Group::status_for(const Seat& seat) const {
  const bool member = state_.complete && !seat.joining && state_.participants.contains(seat.node);
  return {state_.round, count_waiting(state_), state_.closed, state_.lost, member};
}

void Group::tell_status(Seat& seat) {
  seat.told = status_for(seat);
  seat.told_spare = state_.redundancy_list.contains(seat.node);
  if (seat.line != nullptr) seat.line->say(encode_status(seat.told, seat.told_spare));
}

void Group::flush(TimePoint now) {
  if (now < flush_at_) return;
  flush_at_ = kNever;
  tell_members(now);
  tell_observers(now);
}

bool Group::is_regrouping(TimePoint now) const {
  return regroup_began_ && now < regrouped_at_ + kRegroupPause &&
         now < *regroup_began_ + kRegroupMax;
}

void Group::tell_members(TimePoint now) {
  const News fresh = news();
  if (fresh == told_) return;
  if (is_regrouping(now) && fresh.closed == told_.closed) {
    flush_at_ = std::min({flush_at_, regrouped_at_ + kRegroupPause, *regroup_began_ + kRegroupMax});
    return;
  }
  News counted = told_;
  counted.waiting = fresh.waiting;
  // Only the number differs, and neither is "none".
  const bool can_wait = counted == fresh && told_.waiting > 0 && fresh.waiting > 0;
  if (can_wait && now < told_at_ + kCountPushInterval) {
    flush_at_ = std::min(flush_at_, told_at_ + kCountPushInterval);
    return;
  }
  for (const auto& [node, seat] : seats_) {
    if (seat->line == nullptr || seat->joining) continue;
    if (status_for(*seat) != seat->told) tell_status(*seat);
  }
  told_ = fresh;
  told_at_ = now;
}

void Group::tell_observers(TimePoint now) {
  if (observers_.empty() || observed_count_ == change_count_) return;
  if (now < observed_at_ + kObserverPushInterval) {
    flush_at_ = std::min(flush_at_, observed_at_ + kObserverPushInterval);
    return;
  }
  const News fresh = news();
  const std::string status =
      encode_status({fresh.round, fresh.waiting, fresh.closed, fresh.lost, false}, false);
  for (store::Conversation* observer : observers_) observer->say(status);
  observed_count_ = change_count_;
  observed_at_ = now;
}

void Group::add_observer(store::Conversation& line) { observers_.insert(&line); }
void Group::remove_observer(store::Conversation& line) { observers_.erase(&line); }

Snapshot Group::snapshot(TimePoint now) const {
  Snapshot snapshot = snapshot_of(state_, now);
  for (auto* entries : {&snapshot.members, &snapshot.waiting, &snapshot.spare}) {
    for (Snapshot::Entry& entry : *entries) {
      const auto seat = seats_.find(entry.node);
      if (seat == seats_.end()) continue;
      entry.last_heard = now - seat->second->heard;
      entry.connected = seat->second->line != nullptr;
    }
  }
  return snapshot;
}

// -- time
// ------------------------------------------------------------------------------------------

bool Group::is_known(const Node& node) const {
  return state_.participants.contains(node) || state_.wait_list.contains(node) ||
         state_.redundancy_list.contains(node);
}

Group::Seat* Group::find(const Node& node) {
  const auto found = seats_.find(node);
  return found == seats_.end() ? nullptr : found->second.get();
}

TimePoint Group::expiry_of(const Seat& seat) const {
  // Exactly at the window's end a node is still alive.
  const TimePoint silent = after(after(seat.heard, seat.settings.window()), Duration(1));
  if (seat.line != nullptr) return silent;
  return std::min(silent, after(seat.lost_at, seat.settings.grace));
}

void Group::watch_over(Seat& seat) {
  const TimePoint when = expiry_of(seat);
  if (when >= seat.entry) return;
  seat.entry = when;
  expiries_.push({when, seat.number});
}

void Group::expire(TimePoint now) {
  if (now < excused_until_ || expiries_.empty() || expiries_.top().when > now) return;
  // Almost all have spoken since their entry was made, so those that come up soon are looked at in
  // the same go: a large group would wake the server for each of its nodes otherwise.
  std::vector<Expiry> due_soon;
  while (!expiries_.empty() && expiries_.top().when <= now + kLookAhead) {
    const Expiry entry = expiries_.top();
    expiries_.pop();
    const auto found = seat_numbers_.find(entry.seat_number);
    if (found == seat_numbers_.end() || found->second->entry != entry.when) continue;
    Seat& seat = *found->second;
    const TimePoint expiry = expiry_of(seat);
    if (expiry > now && expiry <= entry.when) {
      due_soon.push_back(entry);
      continue;
    }
    seat.entry = kNever;
    if (expiry > now) {
      watch_over(seat);
      continue;
    }
    remove(seat, now);
    settle(now);
    // A node that is only silent keeps its seat: it may speak again, and must be told then.
    if (seat.line == nullptr) {
      seat_numbers_.erase(seat.number);
      seats_.erase(Node(seat.node));
    } else if (!seat.joining && status_for(seat) != seat.told) {
      tell_status(seat);
    }
  }
  for (const Expiry& entry : due_soon) expiries_.push(entry);
}

void Group::tick(TimePoint now) {
  expire(now);
  if (state_.deadline && *state_.deadline < now) {
    Seat* seat = find(state_.participants.begin()->first);
    MUSTER_ASSERT(seat != nullptr);
    act(Action::MarkComplete, *seat, now);
    settle(now);
  }
  if (adoption_ends_ && *adoption_ends_ <= now && excused_until_ <= now) {
    adoption_ends_.reset();
    const Mark before = mark();
    if (static_cast<std::int64_t>(claimed_ranks_.size()) < state_.world_size) state_.lost = true;
    react(before);
  }
  flush(now);
}

TimePoint Group::next_deadline() const {
  TimePoint next = flush_at_;
  if (state_.deadline) next = std::min(next, after(*state_.deadline, Duration(1)));
  if (!expiries_.empty()) next = std::min(next, std::max(expiries_.top().when, excused_until_));
  if (adoption_ends_) next = std::min(next, std::max(*adoption_ends_, excused_until_));
  return next;
}

}  // namespace muster::rendezvous
