#include "muster/watchdog/progress.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::watchdog {

std::string describe(const Late& late) {
  if (late.kind == Late::Kind::NotReady)
    return fmt::format("was not ready {} after its start", muster::describe(late.limit));
  return fmt::format("made no progress for {}", muster::describe(late.limit));
}

Progress::Progress(ProgressOptions options, int worker_count, TimePoint now) : options_(options) {
  MUSTER_ASSERT(worker_count >= 0);
  workers_.resize(static_cast<std::size_t>(worker_count));
  for (int worker = 0; worker < worker_count; ++worker) begin(worker, now);
}

void Progress::begin(int worker, TimePoint now) {
  move_deadline(worker, Late::Kind::NotReady, after(now, options_.start_timeout));
  const TimePoint alive_by = options_.hang_from_start ? after(now, options_.hang_timeout) : kNever;
  move_deadline(worker, Late::Kind::Hung, alive_by);
  Worker& entry = *find(worker);
  entry.started = now;
  entry.last_alive.reset();
  entry.has_said_alive = false;
  entry.is_watched = options_.hang_from_start;
  entry.is_ready = false;
  entry.has_ended = false;
}

void Progress::restarted(int worker, TimePoint now) {
  MUSTER_ASSERT(find(worker) != nullptr);
  begin(worker, now);
}

bool Progress::ready(int worker, TimePoint now) {
  Worker* entry = find(worker);
  if (entry == nullptr || entry->has_ended) return false;
  const bool is_first = !std::exchange(entry->is_ready, true);
  move_deadline(worker, Late::Kind::NotReady, kNever);
  sign_of_life(worker, now);
  return is_first;
}

bool Progress::alive(int worker, TimePoint now) {
  Worker* entry = find(worker);
  if (entry == nullptr || entry->has_ended) return false;
  const bool is_first = !entry->has_said_alive;
  entry->has_said_alive = true;
  entry->is_watched = true;
  sign_of_life(worker, now);
  return is_first;
}

void Progress::sign_of_life(int worker, TimePoint now) {
  Worker& entry = *find(worker);
  entry.last_alive = now;
  if (entry.is_watched) move_deadline(worker, Late::Kind::Hung, after(now, options_.hang_timeout));
}

void Progress::ended(int worker) {
  Worker* entry = find(worker);
  if (entry == nullptr) return;
  entry->has_ended = true;
  move_deadline(worker, Late::Kind::NotReady, kNever);
  move_deadline(worker, Late::Kind::Hung, kNever);
}

std::vector<Late> Progress::check(TimePoint now) {
  std::vector<Late> late;
  while (!deadlines_.empty() && deadlines_.begin()->when <= now) {
    const Deadline missed = *deadlines_.begin();
    move_deadline(missed.worker, missed.kind, kNever);
    const Worker& worker = *find(missed.worker);
    const bool is_hang = missed.kind == Late::Kind::Hung;
    const TimePoint since = is_hang ? worker.last_alive.value_or(worker.started) : worker.started;
    late.push_back({.worker = missed.worker,
                    .kind = missed.kind,
                    .silence = now - since,
                    .limit = is_hang ? options_.hang_timeout : options_.start_timeout});
  }
  return late;
}

std::optional<TimePoint> Progress::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->when;
}

bool Progress::all_ready() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.is_ready || worker.has_ended; });
}

bool Progress::is_ready(int worker) const {
  const Worker* entry = find(worker);
  return entry != nullptr && entry->is_ready;
}

std::optional<TimePoint> Progress::last_alive(int worker) const {
  const Worker* entry = find(worker);
  return entry == nullptr ? std::nullopt : entry->last_alive;
}

Duration Progress::silence(TimePoint now) const {
  Duration longest{};
  for (const Worker& worker : workers_) {
    if (worker.is_watched && !worker.has_ended)
      longest = std::max(longest, now - worker.last_alive.value_or(worker.started));
  }
  return longest;
}

Progress::Worker* Progress::find(int worker) {
  return const_cast<Worker*>(std::as_const(*this).find(worker));
}

const Progress::Worker* Progress::find(int worker) const {
  if (worker < 0 || static_cast<std::size_t>(worker) >= workers_.size()) return nullptr;
  return &workers_[static_cast<std::size_t>(worker)];
}

// kNever takes the deadline away.
void Progress::move_deadline(int worker, Late::Kind kind, TimePoint when) {
  Worker& entry = *find(worker);
  TimePoint& current = kind == Late::Kind::Hung ? entry.alive_by : entry.ready_by;
  if (current != kNever) deadlines_.erase({current, worker, kind});
  current = when;
  if (when != kNever) deadlines_.insert({when, worker, kind});
}

}  // namespace muster::watchdog
