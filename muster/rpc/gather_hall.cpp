#include "muster/rpc/gather_hall.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>

namespace muster::rpc {
namespace {

CallError refusal(std::string text) { return {CallErrorKind::Remote, std::move(text), "", true}; }

CallError gave_up(const std::string& name) {
  return refusal(fmt::format("worker {} has given up on this gather", name));
}

GatherAnswer elsewhere(const GatherEra& era) { return {GatherVerdict::Elsewhere, era, nullptr}; }
GatherAnswer again(const GatherEra& era) { return {GatherVerdict::Again, era, nullptr}; }

// Makes room for one more, if need be: the one that was not used for the longest time goes, of
// those that may. False if there is none.
template <typename Entries, typename MayGo>
bool make_room(Entries& entries, std::size_t max, MayGo may_go) {
  if (entries.size() < max) return true;
  auto oldest = entries.end();
  for (auto one = entries.begin(); one != entries.end(); ++one) {
    if (!may_go(one->second)) continue;
    if (oldest == entries.end() || one->second.used < oldest->second.used) oldest = one;
  }
  if (oldest == entries.end()) return false;
  entries.erase(oldest);
  return true;
}

}  // namespace

// ---- the leader's side --------------------------------------------------------------------------

GatherHall::Set* GatherHall::enter(const std::string& name) {
  auto found = sets_.find(name);
  if (found == sets_.end()) {
    const auto is_empty = [](const Set& set) {
      return set.meetings.empty() && set.strangers.empty();
    };
    if (!make_room(sets_, kSetsMax, is_empty)) return nullptr;
    found = sets_.emplace(name, Set()).first;
    // Perhaps it was known before. Then what it came to is not known any more.
    found->second.forgotten = {last_era_, std::numeric_limits<std::uint64_t>::max()};
  }
  found->second.used = ++last_use_;
  return &found->second;
}

GatherHall::Arrived GatherHall::arrive(GatherArrival arrival, Ticket ticket) {
  Arrived out;
  Set* const set = waiting_count_ < kWaitingMax ? enter(arrival.set) : nullptr;
  if (set == nullptr) {
    out.replies.push_back(
        {ticket, call_failed(refusal("too many workers wait for others at once, or in too many "
                                     "different sets"))});
    return out;
  }
  note_settled(*set, arrival);
  drop_strangers(*set, arrival, out);
  Waiting waiting{std::move(arrival), ticket};
  ++waiting_count_;
  if (!judge(*set, waiting, out)) {
    const auto [place, is_first] = set->strangers.try_emplace(key_of(waiting.arrival));
    if (is_first) {
      place->second = std::move(waiting);
    } else {
      take_over(*set, place->second, std::move(waiting), out);
    }
    out.needs_look = true;
  }
  return out;
}

void GatherHall::note_settled(Set& set, const GatherArrival& arrival) {
  const GatherEra& era = arrival.place.era;
  const bool is_ours = era.leader != 0 && era.leader == set.era.leader;
  const Point awaits{arrival.awaits_era, arrival.awaits_count};
  for (Over& one : set.over) {
    const auto who = one.unsettled.find(arrival.name);
    if (who == one.unsettled.end()) continue;
    const auto line = one.lines.find(arrival.name);
    const bool is_other_line = line != one.lines.end() && line->second.number < arrival.place.line;
    const bool has_heard = is_ours && one.point < awaits;
    if (has_heard || is_other_line || who->second != arrival.process) one.unsettled.erase(who);
  }
  if (is_ours) set.awaits[arrival.name] = std::max(set.awaits[arrival.name], awaits);
  forget_settled(set);
}

GatherHall::StrangerKey GatherHall::key_of(const GatherArrival& arrival) {
  return {arrival.name, arrival.process, arrival.place};
}

// The oldest of those that the same worker has given up on since: nobody waits for their answers.
void GatherHall::drop_strangers(Set& set, const GatherArrival& arrival, Arrived& out) {
  const GatherEra& era = arrival.place.era;
  const auto key_at = [&](const Point& point) {
    const GatherPlace place{arrival.place.line, {era.leader, point.era}, point.count};
    return StrangerKey{arrival.name, arrival.process, place};
  };
  const auto begin = set.strangers.lower_bound(key_at({}));
  const auto end = set.strangers.lower_bound(key_at({arrival.awaits_era, arrival.awaits_count}));
  if (static_cast<std::size_t>(std::distance(begin, end)) <= kGivenUpMax) return;
  reply(begin->second, elsewhere(set.era), out);
  set.strangers.erase(begin);
}

void GatherHall::take_over(Set& set, Waiting& place, Waiting waiting, Arrived& out) {
  if (waiting.arrival.attempt >= place.arrival.attempt) std::swap(place, waiting);
  reply(waiting, elsewhere(set.era), out);
}

void GatherHall::forget_settled(Set& set) {
  std::erase_if(set.over, [](const Over& one) { return one.unsettled.empty(); });
}

const GatherHall::Over* GatherHall::find_over(const Set& set, const GatherArrival& arrival) {
  const GatherPlace& place = arrival.place;
  const bool has_era = place.era.leader != 0;
  if (has_era && place.era.leader != set.era.leader) return nullptr;
  for (const Over& one : set.over) {
    if (one.point.count != place.count) continue;
    if (has_era && one.point.era != place.era.number) continue;
    const auto line = one.lines.find(arrival.name);
    if (line == one.lines.end()) {
      if (has_era) return &one;
      continue;
    }
    // Another process, or one that has lost count since, means another gather.
    const LineHere& came = line->second;
    const bool is_same = came.process == arrival.process && came.number == place.line;
    if (is_same && (has_era || !came.was_told)) return &one;
  }
  return nullptr;
}

void GatherHall::reply(const Waiting& waiting, CallResult<GatherAnswer> answer, Arrived& out) {
  out.replies.push_back({waiting.ticket, std::move(answer)});
  --waiting_count_;
}

bool GatherHall::judge(Set& set, Waiting& waiting, Arrived& out) {
  GatherArrival& arrival = waiting.arrival;
  if (const Over* const over = find_over(set, arrival)) {
    reply(waiting, over->answer, out);
    return true;
  }
  if (set.era.number == 0) return false;
  const auto member = set.members.find(arrival.name);
  if (member == set.members.end() || member->second != arrival.process) return false;
  if (!check_line(set, waiting, out)) return true;
  end_given_up(set, arrival.name, out);
  const GatherPlace& place = arrival.place;
  const Point point{place.era.number, place.count};
  const bool is_ours = place.era.leader == set.era.leader;
  const auto awaits = set.awaits.find(arrival.name);
  if (const Over* const over = find_over(set, arrival)) {
    reply(waiting, over->answer, out);
  } else if (is_ours && point <= set.forgotten && (arrival.is_repeat || place.era == set.era)) {
    reply(waiting,
          call_failed(refusal("this gather is over, and how it ended was forgotten since")), out);
  } else if (is_ours && awaits != set.awaits.end() && point < awaits->second) {
    reply(waiting, elsewhere(set.era), out);  // it was sent twice, and nobody waits for the answer
  } else if (place.era != set.era) {
    reply(waiting, again(set.era), out);
  } else {
    take_place(set, std::move(waiting), out);
  }
  return true;
}

bool GatherHall::check_line(Set& set, Waiting& waiting, Arrived& out) {
  GatherPlace& place = waiting.arrival.place;
  const auto here = set.lines.find(waiting.arrival.name);
  const bool is_known = here != set.lines.end();
  const bool is_new = place.era.leader == 0;
  const bool is_next = is_known && place.line > here->second.number;
  const bool is_old = is_known && place.line < here->second.number;
  if (is_old || (is_new && is_known && !is_next && here->second.was_told)) {
    reply(waiting, elsewhere(set.era), out);
    return false;
  }
  if (is_next) {
    std::vector<Waiting> rest;
    begin_era(set, set.era.leader, rest);
    for (const Waiting& one : rest) reply(one, again(set.era), out);
  }
  if (!is_new) return true;
  if (waiting.arrival.leader != 0 && waiting.arrival.leader != set.era.leader) {
    reply(waiting, elsewhere(set.era), out);
    return false;
  }
  if (!set.is_first) {
    reply(waiting, again(set.era), out);
    return false;
  }
  place.era = set.era;
  waiting.arrival.awaits_era = set.era.number;
  set.lines[waiting.arrival.name] = {waiting.arrival.process, place.line, false};
  note_settled(set, waiting.arrival);
  return true;
}

void GatherHall::end_given_up(Set& set, const std::string& name, Arrived& out) {
  const auto awaits = set.awaits.find(name);
  if (awaits == set.awaits.end() || awaits->second.era != set.era.number) return;
  std::vector<std::uint64_t> given_up;
  std::size_t here_count = 0;
  for (auto one = set.meetings.rbegin(); one != set.meetings.rend(); ++one) {
    if (one->first >= awaits->second.count) continue;
    const bool is_here = one->second.present.contains(name);
    if (!is_here || ++here_count > kGivenUpMax) given_up.push_back(one->first);
  }
  for (const std::uint64_t count : given_up) {
    auto& present = set.meetings.at(count).present;
    if (const auto node = present.extract(name)) reply(node.mapped(), elsewhere(set.era), out);
    if (present.empty()) {
      set.meetings.erase(count);
    } else {
      end(set, count, call_failed(gave_up(name)), out);
    }
  }
}

void GatherHall::take_place(Set& set, Waiting waiting, Arrived& out) {
  const std::string name = waiting.arrival.name;
  const GatherArrival& arrival = waiting.arrival;
  const Point point{set.era.number, arrival.place.count};
  set.lines.try_emplace(name, LineHere{arrival.process, arrival.place.line, true});
  const auto [meeting, is_new] = set.meetings.try_emplace(point.count);
  auto& present = meeting->second.present;
  const auto [entry, is_first] = present.try_emplace(name);
  if (is_first) {
    entry->second = std::move(waiting);
  } else {
    take_over(set, entry->second, std::move(waiting), out);
  }
  // Who is in the set may have changed since the leader looked last.
  if (present.size() == set.members.size()) out.needs_look = true;
  if (!is_new) return;
  for (const auto& [other, awaits] : set.awaits) {
    if (awaits <= point) continue;
    end(set, point.count, call_failed(gave_up(other)), out);
    return;
  }
}

// Those who have come to the era that ends here are `again`.
void GatherHall::begin_era(Set& set, std::uint64_t leader_process, std::vector<Waiting>& again) {
  for (auto& [count, meeting] : set.meetings) {
    for (auto& [name, waiting] : meeting.present) again.push_back(std::move(waiting));
  }
  set.meetings.clear();
  set.lines.clear();
  set.awaits.clear();
  set.is_first = set.era.leader == 0;
  set.era = {leader_process, ++last_era_};
}

std::vector<GatherHall::Reply> GatherHall::look(const std::string& set_name,
                                                const std::string& self,
                                                const GatherMembers& members) {
  const auto found = sets_.find(set_name);
  if (found == sets_.end() || members.empty()) return {};
  Set& set = found->second;
  Arrived out;
  const auto& [leader, process] = *members.begin();
  if (leader != self) {
    const auto own = members.find(self);
    const GatherEra none{own == members.end() ? 0 : own->second, 0};
    for (const Waiting& one : take_all(set)) out.replies.push_back({one.ticket, elsewhere(none)});
    set.era.number = 0;
    return std::move(out.replies);
  }
  std::vector<Waiting> waiting = take_strangers(set);
  if (set.era.number == 0 || set.era.leader != process || set.members != members) {
    if (set.era.leader != process) set.over.clear();
    begin_era(set, process, waiting);
    for (Over& one : set.over) {
      // Whoever went will not ask.
      std::erase_if(one.unsettled, [&](const auto& who) {
        const auto now = members.find(who.first);
        return now == members.end() || now->second != who.second;
      });
    }
    forget_settled(set);
    set.members = members;
    set.leader = self;
  }
  for (Waiting& one : waiting) {
    if (!judge(set, one, out)) reply(one, elsewhere(set.era), out);
  }
  std::vector<std::uint64_t> full;
  for (const auto& [count, meeting] : set.meetings) {
    if (meeting.present.size() == set.members.size()) full.push_back(count);
  }
  for (const std::uint64_t count : full) {
    auto values = std::make_shared<GatherValues>();
    for (auto& [name, one] : set.meetings.at(count).present) {
      values->emplace(name, std::move(one.arrival.value));
    }
    end(set, count, GatherAnswer{GatherVerdict::Complete, set.era, std::move(values)}, out);
  }
  return std::move(out.replies);
}

void GatherHall::end(Set& set, std::uint64_t count, const CallResult<GatherAnswer>& answer,
                     Arrived& out) {
  const auto node = set.meetings.extract(count);
  Over over{{set.era.number, count}, answer, {}, {}};
  for (const auto& [name, waiting] : node.mapped().present) {
    reply(waiting, answer, out);
    over.lines.emplace(name, set.lines.at(name));
  }
  for (const auto& [name, process] : set.members) {
    if (name != set.leader || !over.lines.contains(name)) over.unsettled.emplace(name, process);
  }
  if (over.unsettled.empty()) return;
  set.over.push_back(std::move(over));
  if (set.over.size() <= kOutcomesMax) return;
  set.forgotten = std::max(set.forgotten, set.over.front().point);
  set.over.pop_front();
}

std::vector<std::string> GatherHall::missing(const std::string& set_name, Ticket ticket) const {
  std::vector<std::string> names;
  const auto set = sets_.find(set_name);
  if (set == sets_.end()) return names;
  for (const auto& [count, meeting] : set->second.meetings) {
    const auto self = meeting.present.find(set->second.leader);
    if (self == meeting.present.end() || self->second.ticket != ticket) continue;
    for (const auto& [name, process] : set->second.members) {
      if (!meeting.present.contains(name)) names.push_back(name);
    }
  }
  return names;
}

std::vector<GatherHall::Reply> GatherHall::fail(const std::string& set_name, Ticket ticket,
                                                const CallError& error) {
  Arrived out;
  const auto found = sets_.find(set_name);
  if (found == sets_.end()) return {};
  Set& set = found->second;
  const auto is_at = [&](const auto& meeting) {
    const auto self = meeting.second.present.find(set.leader);
    return self != meeting.second.present.end() && self->second.ticket == ticket;
  };
  const auto at = std::find_if(set.meetings.begin(), set.meetings.end(), is_at);
  if (at != set.meetings.end()) end(set, std::uint64_t{at->first}, call_failed(error), out);
  return std::move(out.replies);
}

std::vector<std::string> GatherHall::waiting_with(const std::string& set_name,
                                                  const std::string& first) const {
  const auto found = sets_.find(set_name);
  if (found == sets_.end()) return {};
  const auto& strangers = found->second.strangers;
  const auto& meetings = found->second.meetings;
  std::set<std::string> names;
  const auto is_first = [&](const std::string& name) { return first <= name; };
  const auto name_of = [](const auto& stranger) { return stranger.second.arrival.name; };
  if (!strangers.empty() && !is_first(name_of(*strangers.begin()))) return {};
  for (const auto& [count, meeting] : meetings) {
    if (!is_first(meeting.present.begin()->first)) return {};
    for (const auto& [name, waiting] : meeting.present) names.insert(name);
  }
  for (const auto& one : strangers) names.insert(name_of(one));
  if (!names.contains(first)) return {};
  return {names.begin(), names.end()};
}

std::vector<GatherHall::Reply> GatherHall::fail_without(const std::string& set_name,
                                                        const std::string& name,
                                                        const CallError& error) {
  const auto found = sets_.find(set_name);
  if (found == sets_.end()) return {};
  Set& set = found->second;
  Arrived out;
  std::vector<std::uint64_t> counts;
  for (const auto& [count, meeting] : set.meetings) {
    if (!meeting.present.contains(name)) counts.push_back(count);
  }
  for (const std::uint64_t count : counts) end(set, count, call_failed(error), out);
  const bool is_here =
      std::any_of(set.strangers.begin(), set.strangers.end(),
                  [&](const auto& one) { return one.second.arrival.name == name; });
  if (is_here) return std::move(out.replies);
  for (const Waiting& one : take_strangers(set)) reply(one, call_failed(error), out);
  return std::move(out.replies);
}

std::vector<GatherHall::Waiting> GatherHall::take_strangers(Set& set) {
  std::vector<Waiting> all;
  for (auto& [key, waiting] : set.strangers) all.push_back(std::move(waiting));
  set.strangers.clear();
  return all;
}

std::vector<GatherHall::Waiting> GatherHall::take_all(Set& set) {
  std::vector<Waiting> all = take_strangers(set);
  for (auto& [count, meeting] : set.meetings) {
    for (auto& [name, waiting] : meeting.present) all.push_back(std::move(waiting));
  }
  set.meetings.clear();
  waiting_count_ -= all.size();
  return all;
}

std::vector<GatherHall::Unsettled> GatherHall::unsettled() const {
  std::vector<Unsettled> all;
  for (const auto& [name, set] : sets_) {
    for (const Over& one : set.over) {
      for (const auto& [worker, process] : one.unsettled) {
        if (worker == set.leader) continue;
        all.push_back({name, worker, {set.era.leader, one.point.era}, one.point.count});
      }
    }
    for (const auto& [count, meeting] : set.meetings) {
      for (const auto& [worker, waiting] : meeting.present) {
        if (worker != set.leader) all.push_back({name, worker, set.era, count});
      }
    }
    for (const auto& [key, one] : set.strangers) {
      all.push_back({name, one.arrival.name, one.arrival.place.era, one.arrival.place.count});
    }
  }
  return all;
}

std::vector<GatherHall::Reply> GatherHall::dismiss(const CallResult<GatherAnswer>& answer) {
  std::vector<Reply> replies;
  for (auto& [name, set] : sets_) {
    for (const Waiting& one : take_all(set)) replies.push_back({one.ticket, answer});
  }
  MUSTER_ASSERT(waiting_count_ == 0);
  return replies;
}

std::vector<GatherHall::Reply> GatherHall::clear(const CallResult<GatherAnswer>& answer) {
  auto replies = dismiss(answer);
  sets_.clear();
  return replies;
}

std::optional<CallResult<GatherAnswer>> GatherHall::outcome_of(const GatherArrival& arrival) const {
  const auto set = sets_.find(arrival.set);
  if (set == sets_.end()) return std::nullopt;
  const Over* const over = find_over(set->second, arrival);
  if (over == nullptr) return std::nullopt;
  return over->answer;
}

std::size_t GatherHall::outcome_count(const std::string& set) const {
  const auto found = sets_.find(set);
  return found == sets_.end() ? 0 : found->second.over.size();
}

// ---- everybody's side ---------------------------------------------------------------------------

CallResult<GatherPlace> GatherLines::take(const std::string& set) {
  auto found = lines_.find(set);
  if (found == lines_.end()) {
    const auto is_free = [](const Line& line) { return line.taken.empty(); };
    if (!make_room(lines_, kLinesMax, is_free)) {
      return call_failed({CallErrorKind::Rejected,
                          fmt::format("this worker waits for others in {} sets already", kLinesMax),
                          "", false});
    }
    found = lines_.emplace(set, Line()).first;
    found->second.number = ++last_number_;
  }
  return take_next(found->second);
}

GatherPlace GatherLines::take_next(Line& line) {
  line.used = ++last_use_;
  const GatherPlace place{line.number, line.era, line.next++};
  line.taken.insert(place);
  return place;
}

// Those who came before the leader had said anything are where the line is, unless it was told to
// begin anew since.
bool GatherLines::is_at(const Line& line, const GatherPlace& place) {
  if (line.number != place.line) return false;
  return line.era == place.era || (place.era.leader == 0 && !line.was_told);
}

GatherPlace GatherLines::go_to(const std::string& set, const GatherPlace& mine,
                               std::uint64_t leader) {
  const auto found = lines_.find(set);
  if (found == lines_.end() || leader == 0) return mine;
  Line& line = found->second;
  if (line.era.leader != 0 || !is_at(line, mine)) return mine;
  if (line.asked == 0) line.asked = leader;
  if (line.asked == leader) return mine;
  line.asked = leader;
  line.number = ++last_number_;
  line.next = 0;
  line.taken.erase(mine);
  return take_next(line);
}

void GatherLines::came_to(const std::string& set, const GatherPlace& mine, const GatherEra& era) {
  const auto found = lines_.find(set);
  if (found == lines_.end() || found->second.era.leader != 0) return;
  if (is_at(found->second, mine)) found->second.era = era;
}

GatherPlace GatherLines::take_again(const std::string& set, const GatherPlace& mine,
                                    const GatherEra& told) {
  const auto found = lines_.find(set);
  if (found == lines_.end()) return mine;  // its group has ended
  Line& line = found->second;
  if (is_at(line, mine)) {
    const bool is_new = line.era.leader == 0;
    const bool is_same_leader = line.era.leader == told.leader;
    if (is_same_leader && told.number <= line.era.number) return mine;
    // This worker may have been in an era of that leader before, and has not counted since.
    if (!is_new && !is_same_leader) line.number = ++last_number_;
    line.era = told;
    line.was_told = true;
    line.next = 0;
  }
  line.taken.erase(mine);
  return take_next(line);
}

GatherPlace GatherLines::keep_or_take(const std::string& set, const GatherPlace& mine) {
  const auto found = lines_.find(set);
  if (found == lines_.end()) return mine;
  Line& line = found->second;
  if (is_at(line, mine)) {
    line.taken.insert(mine);
    return mine;
  }
  line.taken.erase(mine);
  return take_next(line);
}

void GatherLines::leave(const std::string& set, const GatherPlace& mine) {
  const auto found = lines_.find(set);
  if (found != lines_.end()) found->second.taken.erase(mine);
}

void GatherLines::fill_awaits(GatherArrival& arrival) const {
  arrival.awaits_era = arrival.place.era.number;
  arrival.awaits_count = arrival.place.count;
  const auto found = lines_.find(arrival.set);
  if (found == lines_.end()) return;
  const Line& line = found->second;
  for (const GatherPlace& one : line.taken) {
    // As in is_at.
    const bool is_first = one.era.leader == 0 && one.line == line.number && !line.was_told;
    const GatherEra& era = is_first && arrival.place.era == line.era ? line.era : one.era;
    // Without an era it may wait for the outcome of any.
    if (era.leader != arrival.place.era.leader && era.leader != 0) continue;
    const auto before = std::pair(arrival.awaits_era, arrival.awaits_count);
    std::tie(arrival.awaits_era, arrival.awaits_count) =
        std::min(before, std::pair(era.number, one.count));
  }
}

bool GatherLines::waits_at(const std::string& set, const GatherEra& era,
                           std::uint64_t count) const {
  const auto found = lines_.find(set);
  if (found == lines_.end()) return false;
  return std::any_of(found->second.taken.begin(), found->second.taken.end(),
                     [&](const GatherPlace& one) {
                       // Without an era it may be any.
                       const bool is_era = one.era == era || one.era.leader == 0;
                       return is_era && one.count == count;
                     });
}

}  // namespace muster::rpc
