// SpinBudget decides how long a thread looks for what it waits for before it sleeps.
//
// To be woken costs tens of microseconds; what comes sooner than that is better looked for. But a
// thread that looks takes a processor, so it looks only while that has paid lately, never when what
// it waits for takes long, and not when other threads need the processor. Moves decides when such a
// thread goes to another processor instead. Whether others need it is asked of the system below.
//
// The classes are pure: time is an argument. Owned by whoever waits; one thread at a time.
#pragma once

#include "muster/base/clock.h"

#include <chrono>

namespace muster {

// How long to leave off what others have made expensive: so long that trying again costs little
// even if it fails each time.
class Rest {
 public:
  // So much was lost just now. Longer each time that it happens again soon after a rest.
  void begin(TimePoint now, Duration lost);
  TimePoint until() const { return until_; }

 private:
  int weight_ = 1;
  TimePoint until_ = {};
  Duration length_ = Duration::zero();
};

class SpinBudget {
 public:
  // Never longer than this.
  static constexpr Duration kLongest = std::chrono::microseconds(100);
  // What took longer, the sleep included, is not worth looking for.
  static constexpr Duration kNear = std::chrono::microseconds(300);
  // A look takes far less. If so much has passed since the last, the thread may have been off its
  // processor; see `lost_to_others`.
  static constexpr Duration kSuspicious = std::chrono::microseconds(60);

  // How long to look now; zero: sleep at once.
  Duration at(TimePoint now) const { return now < rest_.until() ? Duration::zero() : budget_; }
  // What was waited for came after `total`; whether while looking, or in the sleep after it.
  void came(Duration total, bool while_looking);
  // It was woken by something else, a timer, after so long.
  void nothing_came(Duration total);
  // Once in a while, before it looks: true if it is time to ask `lost_to_others`. A thread that
  // looks uses up its share of a processor, and then waits for it at any other moment.
  bool wants_to_know(TimePoint now);
  // The thread was taken off its processor for so long: others need it, and it rests. Zero: it was
  // not.
  void preempted(TimePoint now, Duration lost);
  // What was lost before does not count any more.
  TimePoint rested_until() const { return rest_.until(); }

 private:
  static constexpr int kSkipsMin = 64;

  Duration budget_ = Duration::zero();
  int misses_ = 0;  // of the longest looks, in a row
  int skips_ = 0;   // how many waits to sleep through before it is tried again
  int next_skips_ = kSkipsMin;
  TimePoint asked_ = {};
  Rest rest_;
};

// How often a thread moves to another processor before it takes it that this does not help: the
// system may leave it behind one that never sleeps, with another processor idle.
class Moves {
 public:
  static constexpr int kMax = 8;
  static constexpr Duration kWithin = std::chrono::milliseconds(100);

  // So much was lost just now. False: it has moved often enough.
  bool is_another_due(TimePoint now, Duration lost);
  // On all of them.
  Duration lost() const { return lost_; }

 private:
  TimePoint first_ = {};
  int count_ = 0;
  Duration lost_ = Duration::zero();
};

// For how long the calling thread, since it last asked, could have run and did not, since others
// had its processor; zero if that was little, or if the system does not tell. Where more threads
// want to run than there are processors it counts for more. Whoever asks for the first time, or for
// the first time after `since`, has lost a little there already: it had better not try.
Duration lost_to_others(TimePoint now, TimePoint since);
// What the calling thread has lost until now does not count: it let others run. For a while, what
// it loses counts for no more than it is.
void forget_losses(TimePoint now);
// Moves the calling thread, if a processor seems to be idle. It may go on to use all that it could
// before. False if none is, or if the system does not tell.
bool move_to_another_processor();

}  // namespace muster
