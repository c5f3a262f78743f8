#include "muster/rref/ids.h"

#include "muster/base/assert.h"

#include <fmt/format.h>

namespace muster::rref {
namespace {

constexpr int kSeriesBits = 36;  // of an id, for the number within its series

}  // namespace

GlobalId::GlobalId(WorkerId created_on, std::int64_t local)
    : bits_(static_cast<std::int64_t>(created_on) * (kLocalIdMax + 1) + local) {
  MUSTER_ASSERT(local >= 0 && local <= kLocalIdMax);
}

std::string GlobalId::text() const {
  return fmt::format("GloballyUniqueId(created_on={}, local_id={})", created_on(), local());
}

GlobalId creation_fork(GlobalId rref) {
  // An id from outside may be the last there is; its fork is then none that anybody has.
  return {rref.created_on(), rref.local() == kLocalIdMax ? 0 : rref.local() + 1};
}

std::int64_t IdSource::draw(std::int64_t count) {
  const std::int64_t first = next_.fetch_add(count, std::memory_order_relaxed);
  MUSTER_ASSERT(first >= 0 && first + count - 1 <= kLocalIdMax);
  return first;
}

std::int64_t series_of(GlobalId id) { return series_of(id.local()); }
std::int64_t series_of(std::int64_t local) { return local >> kSeriesBits; }

std::int64_t first_of_incarnation(std::uint64_t incarnation) {
  constexpr std::uint64_t kSeriesMax = kLocalIdMax >> kSeriesBits;
  return static_cast<std::int64_t>(incarnation & kSeriesMax) << kSeriesBits;
}

std::string owner_text(GlobalId rref) { return fmt::format("OwnerRRef({})", rref.text()); }

std::string user_text(GlobalId rref, GlobalId fork) {
  return fmt::format("UserRRef(RRefId = {}, ForkId = {})", rref.text(), fork.text());
}

std::string owner_error_text(GlobalId rref) {
  return fmt::format("OwnerRRef(rref_id={})", rref.text());
}

std::string user_error_text(GlobalId rref, GlobalId fork) {
  return fmt::format("UserRRef(rref_id={}, fork_id={})", rref.text(), fork.text());
}

}  // namespace muster::rref
