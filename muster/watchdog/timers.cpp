#include "muster/watchdog/timers.h"

#include <fmt/format.h>

namespace muster::watchdog {

Result<> Timers::set(Timeout timeout) {
  if (timeout.scope.size() > kScopeBytesMax) {
    return fail(ErrorKind::Invalid, fmt::format("a scope of {} bytes is too long, the limit is {}",
                                                timeout.scope.size(), kScopeBytesMax));
  }
  const auto process = by_process_.find(timeout.pid);
  if (process != by_process_.end()) {
    const auto scope = process->second.find(timeout.scope);
    if (scope != process->second.end()) {
      by_time_.erase(scope->second);
      process->second.erase(scope);
    }
  }
  if (by_time_.size() >= kTimersMax) {
    return fail(ErrorKind::Unavailable, fmt::format("there are {} timers already", kTimersMax));
  }
  const Place place(timeout.deadline, order_++);
  by_process_[timeout.pid].emplace(timeout.scope, place);
  by_time_.emplace(place, std::move(timeout));
  return {};
}

bool Timers::release(pid_t pid, std::string_view scope) {
  const auto process = by_process_.find(pid);
  if (process == by_process_.end()) return false;
  const auto entry = process->second.find(scope);
  if (entry == process->second.end()) return false;
  by_time_.erase(entry->second);
  process->second.erase(entry);
  if (process->second.empty()) by_process_.erase(process);
  return true;
}

std::size_t Timers::drop(pid_t pid) {
  const auto process = by_process_.find(pid);
  if (process == by_process_.end()) return 0;
  const std::size_t count = process->second.size();
  for (const auto& [scope, place] : process->second) by_time_.erase(place);
  by_process_.erase(process);
  return count;
}

void Timers::clear() {
  by_process_.clear();
  by_time_.clear();
}

std::vector<Timeout> Timers::expire(TimePoint now) {
  std::vector<Timeout> late;
  while (!by_time_.empty() && by_time_.begin()->first.first <= now) {
    Timeout timeout = by_time_.begin()->second;
    // Dropping the whole process also takes out its timers that are late but come after this one.
    if (timeout.signal > 0) {
      drop(timeout.pid);
    } else {
      release(timeout.pid, timeout.scope);
    }
    late.push_back(std::move(timeout));
  }
  return late;
}

std::optional<TimePoint> Timers::next_deadline() const {
  if (by_time_.empty() || by_time_.begin()->first.first == kNever) return std::nullopt;
  return by_time_.begin()->first.first;
}

std::size_t Timers::count(pid_t pid) const {
  const auto process = by_process_.find(pid);
  return process == by_process_.end() ? 0 : process->second.size();
}

}  // namespace muster::watchdog
