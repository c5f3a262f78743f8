#include "muster/agent/dwell.h"

namespace muster::agent {

bool Dwell::saw(int local_rank, std::optional<char> state, TimePoint now) {
  if (!state) return false;
  if (*state != 'D') {
    since_.erase(local_rank);
    return false;
  }
  const TimePoint since = since_.emplace(local_rank, now).first->second;
  return now - since >= limit_;
}

}  // namespace muster::agent
