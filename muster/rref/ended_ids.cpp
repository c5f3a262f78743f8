#include "muster/rref/ended_ids.h"

#include "muster/base/assert.h"

namespace muster::rref {

EndedIds::EndedIds(std::size_t max) : max_(max) { MUSTER_ASSERT(max > 0); }

void EndedIds::remember(GlobalId id, How how) {
  const std::uint32_t turn = next_turn_++;
  if (!by_id_.try_emplace(id, Entry{turn, how}).second) return;
  oldest_first_.push_back({id, turn});
  if (oldest_first_.size() <= max_) return;
  const Place oldest = oldest_first_.front();
  oldest_first_.pop_front();
  const auto found = by_id_.find(oldest.id);
  if (found != by_id_.end() && found->second.turn == oldest.turn) by_id_.erase(found);
}

void EndedIds::forget(GlobalId id) { by_id_.erase(id); }

void EndedIds::forget_all_of(WorkerId worker) {
  erase_if(by_id_, [worker](const auto& one) { return one.first.created_on() == worker; });
}

std::optional<EndedIds::How> EndedIds::find(GlobalId id) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  return found->second.how;
}

}  // namespace muster::rref
