#include "muster/agent/twins.h"

#include <chrono>

namespace muster::agent {
namespace {

// Both are sent within microseconds; a busy machine may take its time to deliver the second one.
constexpr Duration kApartMax = std::chrono::seconds(2);

}  // namespace

bool Twins::is_new(int signal, bool through_guard, TimePoint now) {
  const auto found = single_.find(signal);
  if (found != single_.end() && found->second.through_guard != through_guard &&
      now - found->second.when <= kApartMax) {
    single_.erase(found);
    return false;
  }
  single_[signal] = {through_guard, now};
  return true;
}

}  // namespace muster::agent
