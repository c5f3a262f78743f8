#include "muster/agent/restarts.h"

#include <algorithm>
#include <utility>

namespace muster::agent {

void RestartHistory::add(std::uint64_t round, TimePoint when) {
  failed_.emplace(round, when);
  if (failed_.size() > kFailedRoundsMax) failed_.erase(failed_.begin());
}

void RestartHistory::agree(const std::vector<FailedRound>& all, TimePoint now) {
  std::map<std::uint64_t, TimePoint> agreed;
  for (const FailedRound& failed : all) {
    const auto known = failed_.find(failed.round);
    agreed.emplace(failed.round, known == failed_.end() ? now - failed.age : known->second);
  }
  failed_ = std::move(agreed);
}

std::vector<FailedRound> RestartHistory::known(TimePoint now) const {
  std::vector<FailedRound> rounds;
  rounds.reserve(failed_.size());
  for (const auto& [round, when] : failed_) rounds.push_back({round, now - when});
  return rounds;
}

std::int64_t RestartHistory::used(const RestartPolicy& policy, TimePoint now) const {
  if (policy.window == Duration::zero()) return static_cast<std::int64_t>(failed_.size());
  return std::count_if(failed_.begin(), failed_.end(),
                       [&](const auto& entry) { return now - entry.second < policy.window; });
}

Duration RestartHistory::delay(const RestartPolicy& policy, TimePoint now) const {
  Duration delay = policy.delay;
  for (std::int64_t count = used(policy, now); count > 1 && delay < policy.delay_max; --count) {
    delay *= 2;
  }
  return std::min(delay, policy.delay_max);
}

}  // namespace muster::agent
