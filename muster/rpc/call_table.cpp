#include "muster/rpc/call_table.h"

#include "muster/base/assert.h"
#include "muster/rpc/texts.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <utility>

namespace muster::rpc {
namespace {

constexpr CallId kEmpty = -1;
constexpr std::size_t kSlotsMin = 16;
// Dead deadlines that are left alone, so that a table with few calls does not sweep all the time.
constexpr std::size_t kDeadDeadlinesMin = 64;

// About 285 years, which fits the nanosecond count. What is longer is for ever.
constexpr double kTimeoutSecondsMax = 9e9;
constexpr double kUnsetTimeoutSeconds = -1;

void sort_by_id(std::vector<EndedCall>& calls) {
  std::sort(calls.begin(), calls.end(),
            [](const EndedCall& left, const EndedCall& right) { return left.id < right.id; });
}

// Requires: not negative. Zero stands for never, so nothing else may become zero.
Duration whole_milliseconds(double seconds) {
  if (seconds == 0 || seconds > kTimeoutSecondsMax) return Duration::zero();
  // By way of whole nanoseconds: 1.001 has no exact binary form and would lose its last
  // millisecond.
  const Duration length(std::llround(seconds * 1e9));
  const auto whole = std::chrono::floor<std::chrono::milliseconds>(length);
  return std::max(whole, std::chrono::milliseconds(1));
}

}  // namespace

CallTable::CallTable(std::size_t calls_max, std::size_t late_calls_max)
    : calls_max_(calls_max), late_calls_max_(late_calls_max) {
  resize(kSlotsMin);
}

Result<CallId> CallTable::add(const NewCall& call) {
  if (live_count_ >= calls_max_) {
    return fail(ErrorKind::Unavailable, too_many_calls_text(calls_max_));
  }
  if ((used_count_ + 1) * 2 > slots_.size()) resize(slots_.size() * 2);

  Slot slot;
  slot.id = next_id_++;
  slot.peer = call.peer;
  slot.token = call.token;
  slot.has_deadline = call.deadline != kNever;
  place(slot);
  ++used_count_;
  ++live_count_;
  if (slot.has_deadline) {
    ++timed_count_;
    deadlines_.push_back({call.deadline, slot.id});
    std::push_heap(deadlines_.begin(), deadlines_.end(), later);
    if (deadlines_.size() > 2 * timed_count_ + kDeadDeadlinesMin) sweep_deadlines();
  }
  return slot.id;
}

CallTable::Response CallTable::responded(CallId id, PeerId peer) {
  const std::size_t index = find(id);
  if (index == slots_.size()) {
    return {id >= 0 && id < forgotten_below_ ? Answer::Late : Answer::Unknown, 0};
  }
  if (slots_[index].peer != peer) return {Answer::Unknown, 0};
  Slot& slot = slots_[index];
  Response response{Answer::Late, 0};
  if (slot.state == State::Live) {
    response = {Answer::Live, slot.token};
    end(slot);
  }
  erase(index);
  return response;
}

std::vector<EndedCall> CallTable::due(TimePoint now) {
  std::vector<EndedCall> ended;
  while (!deadlines_.empty() && deadlines_.front().when <= now) {
    const std::size_t index = find_live(deadlines_.front().id);
    pop_deadline();
    if (index == slots_.size()) continue;
    Slot& slot = slots_[index];
    ended.push_back({slot.id, slot.token});
    end(slot);
  }
  return ended;
}

std::vector<CallId> CallTable::forget_late() {
  std::vector<CallId> forgotten;
  if (late_count() <= late_calls_max_) return forgotten;
  for (const Slot& slot : slots_) {
    if (slot.id != kEmpty && slot.state == State::Late) forgotten.push_back(slot.id);
  }
  std::sort(forgotten.begin(), forgotten.end());
  forgotten.resize(forgotten.size() - late_calls_max_ / 2);
  for (const CallId id : forgotten) erase(find(id));
  forgotten_below_ = std::max(forgotten_below_, forgotten.back() + 1);
  return forgotten;
}

std::vector<EndedCall> CallTable::lost(PeerId peer) {
  std::vector<EndedCall> ended;
  std::vector<CallId> gone;
  for (Slot& slot : slots_) {
    if (slot.id == kEmpty || slot.peer != peer) continue;
    gone.push_back(slot.id);
    if (slot.state == State::Late) continue;
    ended.push_back({slot.id, slot.token});
    end(slot);
  }
  for (const CallId id : gone) erase(find(id));
  // The whole table was looked at anyway: the moment to give back what a burst of calls took.
  std::size_t slot_count = slots_.size();
  while (slot_count > kSlotsMin && used_count_ * 8 < slot_count) slot_count /= 2;
  if (slot_count < slots_.size()) resize(slot_count);
  sort_by_id(ended);
  return ended;
}

std::optional<std::uint64_t> CallTable::withdraw(CallId id) {
  const std::size_t index = find_live(id);
  if (index == slots_.size()) return std::nullopt;
  const std::uint64_t token = slots_[index].token;
  end(slots_[index]);
  erase(index);
  return token;
}

std::optional<std::uint64_t> CallTable::abandon(CallId id) {
  const std::size_t index = find_live(id);
  if (index == slots_.size()) return std::nullopt;
  const std::uint64_t token = slots_[index].token;
  end(slots_[index]);
  return token;
}

void CallTable::forget(CallId id) {
  const std::size_t index = find(id);
  if (index != slots_.size() && slots_[index].state != State::Live) erase(index);
}

std::vector<EndedCall> CallTable::clear() {
  std::vector<EndedCall> ended;
  ended.reserve(live_count_);
  for (const Slot& slot : slots_) {
    if (slot.id != kEmpty && slot.state == State::Live) ended.push_back({slot.id, slot.token});
  }
  used_count_ = live_count_ = timed_count_ = 0;
  slots_.clear();
  resize(kSlotsMin);
  deadlines_.clear();
  sort_by_id(ended);
  return ended;
}

TimePoint CallTable::next_deadline() {
  while (!deadlines_.empty() && find_live(deadlines_.front().id) == slots_.size()) pop_deadline();
  return deadlines_.empty() ? kNever : deadlines_.front().when;
}

bool CallTable::later(const Deadline& left, const Deadline& right) {
  return left.when != right.when ? left.when > right.when : left.id > right.id;
}

std::size_t CallTable::home_of(CallId id) const {
  // Numbers that follow each other must not lie side by side: a few long calls would make a wall
  // that every later one has to walk along. The golden ratio spreads them evenly.
  const std::uint64_t hash = static_cast<std::uint64_t>(id) * 0x9e3779b97f4a7c15u;
  return static_cast<std::size_t>(hash >> home_shift_);
}

std::size_t CallTable::find(CallId id) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t index = home_of(id); slots_[index].id != kEmpty; index = (index + 1) & mask) {
    if (slots_[index].id == id) return index;
  }
  return slots_.size();
}

std::size_t CallTable::find_live(CallId id) const {
  const std::size_t index = find(id);
  if (index == slots_.size() || slots_[index].state == State::Live) return index;
  return slots_.size();
}

void CallTable::place(const Slot& slot) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t index = home_of(slot.id);
  while (slots_[index].id != kEmpty) index = (index + 1) & mask;
  slots_[index] = slot;
}

void CallTable::erase(std::size_t index) {
  MUSTER_ASSERT(index < slots_.size() && slots_[index].id != kEmpty);
  const std::size_t mask = slots_.size() - 1;
  std::size_t hole = index;
  for (std::size_t next = (hole + 1) & mask; slots_[next].id != kEmpty; next = (next + 1) & mask) {
    // It may move into the hole unless that lies before its home.
    const std::size_t from_home = (next - home_of(slots_[next].id)) & mask;
    const std::size_t from_hole = (next - hole) & mask;
    if (from_home < from_hole) continue;
    slots_[hole] = slots_[next];
    hole = next;
  }
  slots_[hole] = Slot{};
  --used_count_;
}

void CallTable::end(Slot& slot) {
  MUSTER_ASSERT(slot.state == State::Live);
  slot.state = State::Late;
  slot.token = 0;
  --live_count_;
  if (slot.has_deadline) --timed_count_;
}

void CallTable::resize(std::size_t slot_count) {
  MUSTER_ASSERT(std::has_single_bit(slot_count) && slot_count >= used_count_ * 2);
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slot_count));
  home_shift_ = 64 - std::countr_zero(slot_count);
  for (const Slot& slot : old) {
    if (slot.id != kEmpty) place(slot);
  }
}

void CallTable::pop_deadline() {
  std::pop_heap(deadlines_.begin(), deadlines_.end(), later);
  deadlines_.pop_back();
}

void CallTable::sweep_deadlines() {
  const auto is_dead = [this](const Deadline& deadline) {
    return find_live(deadline.id) == slots_.size();
  };
  deadlines_.erase(std::remove_if(deadlines_.begin(), deadlines_.end(), is_dead), deadlines_.end());
  std::make_heap(deadlines_.begin(), deadlines_.end(), later);
}

Result<std::optional<Duration>> call_timeout(std::optional<double> seconds, Duration by_default) {
  MUSTER_ASSERT(by_default >= Duration::zero());
  Duration timeout = by_default;
  if (seconds && *seconds != kUnsetTimeoutSeconds) {
    // Written so that what is not a number is refused, too.
    if (!(*seconds >= 0)) return fail(ErrorKind::Invalid, negative_timeout_text(*seconds));
    timeout = whole_milliseconds(*seconds);
  }
  if (timeout == Duration::zero()) return std::optional<Duration>();
  return std::optional<Duration>(timeout);
}

Result<Duration> default_timeout(double seconds) {
  if (!(seconds >= 0)) return fail(ErrorKind::Invalid, negative_default_timeout_text(seconds));
  return whole_milliseconds(seconds);
}

}  // namespace muster::rpc
