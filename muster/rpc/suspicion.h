// Suspicion: whether a worker of a static group is dead, judged by what the attempts to reach it
// come to.
//
// Nobody renews a lease there. When a process ends, all that others see is that its connections are
// gone, which happens to the living, too. So it is looked for, soon and with growing pauses:
//
//   state      event                                       to
//   Trusted    the last connection to or from it was lost  Suspected
//   Suspected  Answered: there is a connection again       Trusted
//   Suspected  Refused, kRefusalsMax times in a row        Dead, for good
//   Suspected  Silent                                      Suspected; refusals count anew
//
// Refused is what the host at its address says of a process that does not listen there any more,
// and a worker listens from its start to its end. Silence says nothing: the way to it may be cut,
// and be there again later. One refusal might come from something in between; several are believed.
//
// Pure: no I/O, no clock. One for each process that is known of, owned by what connects to it.
#pragma once

#include "muster/base/clock.h"

#include <chrono>

namespace muster::rpc {

class Suspicion {
 public:
  enum class Sign { Answered, Refused, Silent };

  static constexpr int kRefusalsMax = 3;
  // Before the first look: the one who had opened the connection that was lost may open it again.
  static constexpr Duration kPauseMin = std::chrono::milliseconds(50);
  static constexpr Duration kPauseMax = std::chrono::seconds(30);
  static constexpr int kPauseGrowth = 3;

  // No connection is left, to it or from it.
  void lost(TimePoint now);
  // What an attempt to reach it came to, whoever made it. What is seen before `next_look` does not
  // count, unless it answers: many attempts in one moment are worth no more than one.
  void saw(Sign sign, TimePoint now);

  bool is_dead() const { return state_ == State::Dead; }
  // When it should be looked for; kNever when that is not needed.
  TimePoint next_look() const { return next_look_; }

 private:
  enum class State { Trusted, Suspected, Dead };

  State state_ = State::Trusted;
  int refusal_count_ = 0;
  Duration pause_ = kPauseMin;
  TimePoint next_look_ = kNever;
};

}  // namespace muster::rpc
