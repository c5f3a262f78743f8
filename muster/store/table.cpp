#include "muster/store/table.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

namespace muster::store {
namespace {

// Above this, a string that became much smaller gives its memory back; `bytes()` would not be
// honest otherwise.
constexpr std::size_t kSlackBytesMax = 1024;

void assign_tightly(std::string& target, std::string_view value) {
  if (target.capacity() > kSlackBytesMax && target.capacity() / 2 > value.size()) {
    std::string(value).swap(target);  // an assignment would keep the memory of `target`
  } else {
    target.assign(value);
  }
}

std::int64_t add_wrapping(std::int64_t left, std::int64_t right) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(left) +
                                   static_cast<std::uint64_t>(right));
}

tl::unexpected<Error> not_a_number(std::string_view key) {
  return fail(ErrorKind::Invalid,
              fmt::format("the value of key {} is not a number of 64 bits", log::quote(key)));
}

}  // namespace

void Table::set(std::string_view key, std::string_view value, Outcome& outcome) {
  put(entries_.find(key), key, value, outcome);
  release_all(key, outcome);
}

const std::string* Table::find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second;
}

Result<std::int64_t> Table::add(std::string_view key, std::int64_t delta, Outcome& outcome) {
  const auto found = entries_.find(key);
  std::int64_t sum = delta;
  if (found != entries_.end()) {
    const std::optional<std::int64_t> number = parse_counter(found->second);
    if (!number) return not_a_number(key);
    sum = add_wrapping(*number, delta);
  }
  put_number(found, key, sum, outcome);
  release_all(key, outcome);
  return sum;
}

CompareSet Table::compare_set(std::string_view key, std::string_view expected,
                              std::string_view desired, Outcome& outcome) {
  const auto found = entries_.find(key);
  const bool matches = found == entries_.end() ? expected.empty() : found->second == expected;
  CompareSet result;
  result.stored = matches;
  if (!matches) {
    result.value = found == entries_.end() ? expected : std::string_view(found->second);
    return result;
  }
  result.value = desired;
  put(found, key, desired, outcome);
  release_all(key, outcome);
  return result;
}

bool Table::erase(std::string_view key, Outcome& outcome) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  if (anyone_told(key)) tell(Change::Kind::Deleted, key, found->second, {}, outcome);
  bytes_ -= found->first.size() + found->second.size() + kEntryOverheadBytes;
  entries_.erase(found);
  return true;
}

void Table::append(std::string_view key, std::string_view data, Outcome& outcome) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    put(found, key, data, outcome);
  } else {
    const std::size_t old_size = found->second.size();
    found->second.append(data);
    bytes_ += found->second.size() - old_size;
    if (anyone_told(key)) {
      const std::string_view value = found->second;
      tell(Change::Kind::Updated, key, value.substr(0, old_size), value, outcome);
    }
  }
  release_all(key, outcome);
}

std::vector<std::string> Table::keys(std::string_view prefix) const {
  std::vector<std::string> found;
  if (prefix.empty()) found.reserve(entries_.size());
  for (const auto& [key, value] : entries_) {
    if (key.starts_with(prefix)) found.push_back(key);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void Table::push(std::string_view queue, std::string_view item, Outcome& outcome) {
  auto found = queues_.find(queue);
  if (found == queues_.end()) {
    found = queues_.try_emplace(std::string(queue)).first;
    bytes_ += queue.size() + kEntryOverheadBytes;
  }
  found->second.items.emplace_back(item);
  bytes_ += item.size() + kEntryOverheadBytes;
  release_one(queue, outcome);
}

std::optional<std::string> Table::pop(std::string_view queue, WaiterId waiter) {
  const auto found = queues_.find(queue);
  if (found == queues_.end()) return std::nullopt;
  Queue& content = found->second;
  std::optional<std::string> item(std::move(content.items.front()));
  content.items.pop_front();
  bytes_ -= item->size() + kEntryOverheadBytes;

  const auto end_claim = [&](WaiterId id) {
    const auto claimant = waiters_.find(id);
    claimant->second.claims.erase(found->first);
    drop_if_idle(claimant->second);
  };
  if (content.claims.erase(waiter) > 0) end_claim(waiter);
  if (content.items.empty()) {
    for (const WaiterId id : content.claims) end_claim(id);
    bytes_ -= found->first.size() + kEntryOverheadBytes;
    queues_.erase(found);
  }
  return item;
}

std::size_t Table::queue_length(std::string_view queue) const {
  const auto found = queues_.find(queue);
  return found == queues_.end() ? 0 : found->second.items.size();
}

bool Table::present(std::string_view key) const { return is_there(key, Need::Any); }

bool Table::wait(WaiterId waiter, std::span<const std::string_view> keys, Need need) {
  const auto is_missing = [&](std::string_view key) { return !is_there(key, need); };
  auto next = std::find_if(keys.begin(), keys.end(), is_missing);
  if (next == keys.end()) return true;
  Waiter& record = enrol(waiter, need, static_cast<std::size_t>(keys.end() - next));
  for (; next != keys.end(); ++next) {
    if (is_missing(*next)) stand_in_line(record, *next);
  }
  return false;
}

Result<bool> Table::barrier(WaiterId waiter, std::string_view key, std::int64_t member_count,
                            Outcome& outcome) {
  const auto found = entries_.find(key);
  std::int64_t count = 1;
  if (found != entries_.end()) {
    const std::optional<std::int64_t> number = parse_counter(found->second);
    if (!number) return not_a_number(key);
    count = add_wrapping(*number, 1);
  }
  put_number(found, key, count, outcome);
  if (count >= member_count) {
    release_all(key, outcome);
    return true;
  }
  stand_in_line(enrol(waiter, Need::Key, 1), key);
  return false;
}

void Table::forget(WaiterId waiter, Outcome& outcome) {
  const auto found = waiters_.find(waiter);
  if (found == waiters_.end()) return;
  Waiter& record = found->second;
  for (Place& place : record.places) {
    if (place.line != nullptr) leave_line(place);
  }
  if (record.missing_count > 0) --waiting_count_;
  const std::set<std::string, std::less<>> claims = std::move(record.claims);
  waiters_.erase(found);

  for (const std::string& name : claims) {
    Queue& queue = queues_.find(name)->second;
    queue.claims.erase(waiter);
    if (queue.claims.size() < queue.items.size()) release_one(name, outcome);
  }
}

void Table::watch_key(WatcherId watcher, std::string_view key) {
  if (!watchers_[watcher].keys.emplace(key).second) return;
  key_watchers_[std::string(key)].insert(watcher);
}

void Table::watch_prefix(WatcherId watcher, std::string_view prefix) {
  if (!watchers_[watcher].prefixes.emplace(prefix).second) return;
  std::set<WatcherId>& same = prefix_watchers_[std::string(prefix)];
  if (same.empty()) ++prefix_lengths_[prefix.size()];
  same.insert(watcher);
}

void Table::unwatch(WatcherId watcher) {
  const auto found = watchers_.find(watcher);
  if (found == watchers_.end()) return;
  for (const std::string& key : found->second.keys) {
    const auto same = key_watchers_.find(key);
    same->second.erase(watcher);
    if (same->second.empty()) key_watchers_.erase(same);
  }
  for (const std::string& prefix : found->second.prefixes) {
    const auto same = prefix_watchers_.find(prefix);
    same->second.erase(watcher);
    if (!same->second.empty()) continue;
    prefix_watchers_.erase(same);
    const auto length = prefix_lengths_.find(prefix.size());
    if (--length->second == 0) prefix_lengths_.erase(length);
  }
  watchers_.erase(found);
}

void Table::put(Entries::iterator found, std::string_view key, std::string_view value,
                Outcome& outcome) {
  const bool told = anyone_told(key);
  if (found == entries_.end()) {
    entries_.try_emplace(std::string(key), value);
    bytes_ += key.size() + value.size() + kEntryOverheadBytes;
    if (told) tell(Change::Kind::Created, key, {}, value, outcome);
    return;
  }
  if (told) tell(Change::Kind::Updated, key, found->second, value, outcome);
  bytes_ += value.size();
  bytes_ -= found->second.size();
  assign_tightly(found->second, value);
}

void Table::put_number(Entries::iterator found, std::string_view key, std::int64_t number,
                       Outcome& outcome) {
  char text[std::numeric_limits<std::int64_t>::digits10 + 2];  // one more digit, and the sign
  const std::to_chars_result end = std::to_chars(std::begin(text), std::end(text), number);
  put(found, key, std::string_view(text, static_cast<std::size_t>(end.ptr - text)), outcome);
}

bool Table::is_there(std::string_view key, Need need) const {
  return (need != Need::Queue && entries_.contains(key)) ||
         (need != Need::Key && queues_.contains(key));
}

Table::Waiter& Table::enrol(WaiterId waiter, Need need, std::size_t places_max) {
  MUSTER_ASSERT(waiter != 0);
  Waiter& record = waiters_[waiter];
  MUSTER_ASSERT(record.missing_count == 0);
  record.id = waiter;
  record.need = need;
  record.arrival = ++arrivals_;
  record.places.clear();
  record.places.reserve(places_max);
  ++waiting_count_;
  return record;
}

void Table::stand_in_line(Waiter& waiter, std::string_view key) {
  Lines& all = lines(waiter.need);
  auto found = all.find(key);
  if (found == all.end()) {
    found = all.try_emplace(std::string(key)).first;
    found->second.name = &found->first;
  }
  Line& line = found->second;
  // A key listed twice: nobody else can have come in between, so its first place is the line's
  // last.
  if (line.last != nullptr && line.last->waiter == &waiter) return;
  MUSTER_ASSERT(waiter.places.size() < waiter.places.capacity());
  Place& place = waiter.places.emplace_back();
  place.waiter = &waiter;
  place.line = &line;
  place.previous = line.last;
  (line.last != nullptr ? line.last->next : line.first) = &place;
  line.last = &place;
  ++waiter.missing_count;
}

void Table::leave_line(Place& place) {
  Line& line = *place.line;
  (place.previous != nullptr ? place.previous->next : line.first) = place.next;
  (place.next != nullptr ? place.next->previous : line.last) = place.previous;
  place.line = nullptr;
  if (line.first != nullptr) return;
  Lines& all = lines(place.waiter->need);
  all.erase(all.find(*line.name));
}

Table::Place* Table::first_in_line(Need need, std::string_view key) {
  const Lines& all = lines(need);
  if (all.empty()) return nullptr;
  const auto found = all.find(key);
  return found == all.end() ? nullptr : found->second.first;
}

Table::Place* Table::take_line(Need need, std::string_view key) {
  Lines& all = lines(need);
  if (all.empty()) return nullptr;
  const auto found = all.find(key);
  if (found == all.end()) return nullptr;
  Place* const first = found->second.first;
  all.erase(found);
  return first;
}

bool Table::earlier(const Place* left, const Place* right) {
  return right == nullptr || (left != nullptr && left->waiter->arrival < right->waiter->arrival);
}

void Table::release_all(std::string_view key, Outcome& outcome) {
  Place* any = take_line(Need::Any, key);
  Place* only_key = take_line(Need::Key, key);
  while (any != nullptr || only_key != nullptr) {
    Place*& next = earlier(any, only_key) ? any : only_key;
    Place& place = *next;
    next = place.next;  // read now: the place goes when its waiter does
    place.line = nullptr;
    strike(*place.waiter, outcome);
  }
}

void Table::release_one(std::string_view queue, Outcome& outcome) {
  Place* const any = first_in_line(Need::Any, queue);
  Place* const only_queue = first_in_line(Need::Queue, queue);
  if (any == nullptr && only_queue == nullptr) return;
  Place& place = earlier(any, only_queue) ? *any : *only_queue;
  Waiter& waiter = *place.waiter;
  waiter.claims.emplace(queue);
  queues_.find(queue)->second.claims.insert(waiter.id);
  leave_line(place);
  strike(waiter, outcome);
}

void Table::strike(Waiter& waiter, Outcome& outcome) {
  if (--waiter.missing_count > 0) return;
  --waiting_count_;
  outcome.released.push_back(waiter.id);
  drop_if_idle(waiter);
}

void Table::drop_if_idle(Waiter& waiter) {
  if (waiter.missing_count == 0 && waiter.claims.empty()) waiters_.erase(waiters_.find(waiter.id));
}

bool Table::anyone_told(std::string_view key) {
  told_.clear();
  if (watchers_.empty()) return false;
  const auto watchers = key_watchers_.find(key);
  if (watchers != key_watchers_.end())
    told_.assign(watchers->second.begin(), watchers->second.end());
  for (const auto& [length, count] : prefix_lengths_) {
    if (length > key.size()) break;
    const auto same = prefix_watchers_.find(key.substr(0, length));
    if (same != prefix_watchers_.end())
      told_.insert(told_.end(), same->second.begin(), same->second.end());
  }
  std::sort(told_.begin(), told_.end());
  told_.erase(std::unique(told_.begin(), told_.end()), told_.end());
  return !told_.empty();
}

void Table::tell(Change::Kind kind, std::string_view key, std::string_view old_value,
                 std::string_view new_value, Outcome& outcome) const {
  for (const WatcherId watcher : told_) {
    outcome.notices.push_back(
        {watcher, kind, std::string(key), std::string(old_value), std::string(new_value)});
  }
}

std::optional<std::int64_t> parse_counter(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t\n\v\f\r");
  if (start == std::string_view::npos) return std::nullopt;
  text.remove_prefix(start);
  if (text.front() == '+') {
    text.remove_prefix(1);
    // from_chars would take a minus here, and one sign is enough.
    if (text.starts_with('-')) return std::nullopt;
  }
  std::int64_t number = 0;
  const std::from_chars_result end =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (end.ec != std::errc()) return std::nullopt;
  return number;
}

}  // namespace muster::store
