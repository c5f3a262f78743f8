// StatusBoard: the present Status, and those who wait for another.
//
// Owned by a driver, on its loop; outlives the waits.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/rendezvous/handler.h"

#include <list>

namespace muster::rendezvous {

class StatusBoard {
 public:
  explicit StatusBoard(Loop& loop) : loop_(loop) {}

  const Status& status() const { return status_; }
  void set(const Status& status);
  // The status once it differs from `seen`; at the deadline, whatever it is.
  Task<Status> wait(Status seen, TimePoint deadline);
  // Waits until it is set again, even if to the same. False at the deadline.
  Task<bool> wait_next(TimePoint deadline);

 private:
  struct Waiter {
    Status seen;
    bool any = false;  // waits for whatever is set next
    Oneshot<bool> changed;
  };
  Task<bool> wait(Waiter& waiter, TimePoint deadline);

  Loop& loop_;
  Status status_;
  std::list<Waiter*> waiters_;
};

}  // namespace muster::rendezvous
