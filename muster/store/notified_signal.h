// NotifiedChangeSignal: a ChangeSignal that the kernel tells when another process of this host
// writes to the file, so that a waiter learns of it at once. What other hosts write to a network
// file system it does not tell, so the file is looked at after a while in any case.
//
// Owned by one FileStore, on its EpollLoop.
#pragma once

#include "muster/base/fd.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/store/change_signal.h"

#include <cstdint>
#include <memory>
#include <utility>

namespace muster::store {

// An inotify descriptor. To close one takes the kernel ten milliseconds and more, for which nobody
// waits: a thread does so that does nothing else. Until then it counts among the user's instances.
class InotifyFd {
 public:
  explicit InotifyFd(Fd fd) : fd_(std::move(fd)) {}
  InotifyFd(InotifyFd&&) = default;
  ~InotifyFd();
  int get() const { return fd_.get(); }

 private:
  Fd fd_;
};

class NotifiedChangeSignal final : public ChangeSignal {
 public:
  // `file` is the open file; only used in this call. Nothing if the kernel cannot tell (there is no
  // inotify for this file system, or the user's instances are used up).
  // Requires: `loop` and `random` outlive the signal.
  static std::unique_ptr<ChangeSignal> create(net::EpollLoop& loop, Random& random,
                                              TimedChangeSignal::Options options, int file);

  Task<void> wait() override;
  void hurry() override;

 private:
  // In the frame of `wait`.
  struct Waiting {
    explicit Waiting(NotifiedChangeSignal& owner);
    ~Waiting();
    NotifiedChangeSignal& signal;
    Oneshot<bool> due;
  };

  NotifiedChangeSignal(net::EpollLoop& loop, Random& random, TimedChangeSignal::Options options,
                       InotifyFd inotify);
  void on_event();
  // Sets the timer, unless it is due earlier.
  void wake_at(TimePoint when);

  net::EpollLoop& loop_;
  Random& random_;
  const TimedChangeSignal::Options options_;
  const Duration gap_;  // between two looks that events cause
  Duration delay_;      // of the next wait without events
  TimePoint last_;      // when the last wait ended
  TimePoint due_ = kNever;
  Waiting* waiting_ = nullptr;
  Timer timer_;
  InotifyFd inotify_;
  net::FdWatch watch_;
};

// The best there is on this loop for this file.
std::unique_ptr<ChangeSignal> make_change_signal(Loop& loop, Random& random,
                                                 TimedChangeSignal::Options options, int file);

}  // namespace muster::store
