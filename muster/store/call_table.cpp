#include "muster/store/call_table.h"

#include <algorithm>

namespace muster::store {
namespace {
constexpr std::size_t kPlacesMin = 8;
// A smaller table grows rather than skip an id: a few calls that wait for long then cost the others
// nothing.
constexpr std::size_t kPlacesBeforeSkipping = 64;
}  // namespace

std::uint32_t CallTable::add(ReplySink& sink, std::uint64_t first_byte) {
  const std::uint32_t id = skip();
  places_[place_of(id)] = {id, &sink, first_byte};
  ++size_;
  return id;
}

std::uint32_t CallTable::skip() {
  if (2 * (size_ + 1) > places_.size()) grow();
  for (;;) {
    ++last_id_;
    if (last_id_ == 0) continue;
    while (is_taken(last_id_) && places_.size() < kPlacesBeforeSkipping) grow();
    if (!is_taken(last_id_)) return last_id_;
  }
}

bool CallTable::remove(std::uint32_t id) {
  Call* const call = find(id);
  if (call == nullptr) return false;
  *call = Call();
  --size_;
  return true;
}

std::vector<CallTable::Call> CallTable::take_all() {
  std::vector<Call> all;
  all.reserve(size_);
  for (const Call& call : places_) {
    if (call.id != 0) all.push_back(call);
  }
  places_.clear();
  size_ = 0;
  std::sort(all.begin(), all.end(),
            [](const Call& left, const Call& right) { return left.first_byte < right.first_byte; });
  return all;
}

void CallTable::grow() {
  // Ids that differ modulo the old size differ modulo the new one, too.
  std::vector<Call> old(std::max(kPlacesMin, 2 * places_.size()));
  old.swap(places_);
  for (const Call& call : old) {
    if (call.id != 0) places_[place_of(call.id)] = call;
  }
}

}  // namespace muster::store
