// SpinBudget decides how long a thread looks for what it waits for before it sleeps.
//
// To be woken costs tens of microseconds; what comes sooner than that is better looked for. But a
// thread that looks takes a processor, so it looks only while that has paid lately, never when what
// it waits for takes long, and not when other threads need the processor.
//
// Pure: time is an argument. Owned by whoever waits; one thread at a time.
#pragma once

#include "muster/base/clock.h"

#include <chrono>

namespace muster {

class SpinBudget {
 public:
  // Never longer than this.
  static constexpr Duration kLongest = std::chrono::microseconds(100);
  // What took longer, the sleep included, is not worth looking for.
  static constexpr Duration kNear = std::chrono::microseconds(300);
  // A look takes far less. If so much has passed since the last, the thread may have been off its
  // processor; see `was_preempted`.
  static constexpr Duration kSuspicious = std::chrono::microseconds(60);

  // How long to look now; zero: sleep at once.
  Duration at(TimePoint now) const { return now < rests_until_ ? Duration::zero() : budget_; }
  // What was waited for came after `total`; whether while looking, or in the sleep after it.
  void came(Duration total, bool while_looking);
  // Once in a while, before it looks: true if it is time to ask `was_preempted`. A thread that
  // looks uses up its share of a processor, and then waits for it at any other moment.
  bool wants_to_know(TimePoint now);
  // The thread was taken off its processor, for so long if that is known: others need it. It rests
  // so much longer that looking costs little even if that happens each time.
  static constexpr Duration kLostUsually = std::chrono::microseconds(500);
  void preempted(TimePoint now, Duration lost = kLostUsually);

 private:
  Duration budget_ = Duration::zero();
  int misses_ = 0;  // of the longest looks, in a row
  int skips_ = 0;   // how many waits to sleep through before it is tried again
  TimePoint asked_ = {};
  TimePoint rests_until_ = {};
  Duration rest_ = Duration::zero();
};

// Whether the calling thread has been taken off its processor, since others needed it, after it
// last asked.
bool was_preempted();

}  // namespace muster
