// ChangeSignal tells a FileStore when its file may have changed, so that it looks.
//
// Owned by one FileStore, on its loop.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/base/task.h"

#include <algorithm>

namespace muster::store {

// Three quarters of `delay` to all of it: processes that collided once must not do so again.
Duration jittered(Duration delay, Random& random);

// The delay after `delay`: half as long again, but at most `max`.
constexpr Duration longer(Duration delay, Duration max) { return std::min(delay + delay / 2, max); }

class ChangeSignal {
 public:
  virtual ~ChangeSignal() = default;

  // Returns when the file may have changed, or after a while in any case. One caller at a time.
  virtual Task<void> wait() = 0;

  // Something happened or is expected: the wait in progress, too, should not be a long one.
  virtual void hurry() = 0;
};

// Needs nothing but a loop, and works where the kernel does not tell us what other hosts write:
// looks again after a delay that grows from `first` to `max` unless `hurry` is called.
class TimedChangeSignal final : public ChangeSignal {
 public:
  struct Options {
    Duration first;
    Duration max;
  };

  // Requires: `loop` and `random` outlive the signal.
  TimedChangeSignal(Loop& loop, Random& random, Options options)
      : loop_(loop),
        random_(random),
        options_(options),
        delay_(options.first),
        timer_(loop, [this] { waiting_->due.set(true); }) {}

  Task<void> wait() override;
  void hurry() override;

 private:
  // In the frame of `wait`.
  struct Waiting {
    explicit Waiting(TimedChangeSignal& owner);
    ~Waiting();
    TimedChangeSignal& signal;
    Oneshot<bool> due;
  };

  Loop& loop_;
  Random& random_;
  const Options options_;
  Duration delay_;  // of the next wait
  Waiting* waiting_ = nullptr;
  Timer timer_;
};

}  // namespace muster::store
