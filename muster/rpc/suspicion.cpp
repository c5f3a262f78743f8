#include "muster/rpc/suspicion.h"

#include <algorithm>

namespace muster::rpc {

void Suspicion::lost(TimePoint now) {
  if (state_ != State::Trusted) return;
  state_ = State::Suspected;
  refusal_count_ = 0;
  pause_ = kPauseMin;
  next_look_ = now + pause_;
}

void Suspicion::saw(Sign sign, TimePoint now) {
  if (state_ != State::Suspected) return;
  if (sign == Sign::Answered) {
    state_ = State::Trusted;
    next_look_ = kNever;
    return;
  }
  if (now < next_look_) return;
  // A host that answers is looked at often again, however long it had been silent.
  const bool is_first_refusal = sign == Sign::Refused && refusal_count_ == 0;
  refusal_count_ = sign == Sign::Refused ? refusal_count_ + 1 : 0;
  if (refusal_count_ == kRefusalsMax) {
    state_ = State::Dead;
    next_look_ = kNever;
    return;
  }
  pause_ = is_first_refusal ? kPauseMin : std::min(pause_ * kPauseGrowth, kPauseMax);
  next_look_ = now + pause_;
}

}  // namespace muster::rpc
