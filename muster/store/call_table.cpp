#include "muster/store/call_table.h"

#include <algorithm>

namespace muster::store {
namespace {
constexpr std::size_t kPlacesMin = 8;
}

std::uint32_t CallTable::add(ReplySink& sink, std::uint64_t first_byte) {
  const std::uint32_t id = skip();
  places_[place_of(id)] = {id, &sink, first_byte};
  ++size_;
  return id;
}

std::uint32_t CallTable::skip() {
  make_room();
  do {
    ++last_id_;
  } while (last_id_ == 0 || places_[place_of(last_id_)].id != 0);
  return last_id_;
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

void CallTable::make_room() {
  if (2 * (size_ + 1) <= places_.size()) return;
  // Ids that differ modulo the old size differ modulo the new one, too.
  std::vector<Call> old(std::max(kPlacesMin, 2 * places_.size()));
  old.swap(places_);
  for (const Call& call : old) {
    if (call.id != 0) places_[place_of(call.id)] = call;
  }
}

}  // namespace muster::store
