#include "muster/rendezvous/status_board.h"

namespace muster::rendezvous {

void StatusBoard::set(const Status& status) {
  status_ = status;
  for (Waiter* waiter : waiters_) {
    if (waiter->any || waiter->seen != status_) waiter->changed.set(true);
  }
}

Task<Status> StatusBoard::wait(Status seen, TimePoint deadline) {
  if (status_ != seen) co_return status_;
  Waiter waiter{seen, false, Oneshot<bool>(loop_)};
  co_await wait(waiter, deadline);
  co_return status_;
}

Task<bool> StatusBoard::wait_next(TimePoint deadline) {
  Waiter waiter{status_, true, Oneshot<bool>(loop_)};
  co_return co_await wait(waiter, deadline);
}

Task<bool> StatusBoard::wait(Waiter& waiter, TimePoint deadline) {
  // Leaves the list when the wait is over or is given up.
  struct Place {
    std::list<Waiter*>& list;
    std::list<Waiter*>::iterator at;
    ~Place() { list.erase(at); }
  };
  const Place place{waiters_, waiters_.insert(waiters_.end(), &waiter)};
  Timer timer(loop_, [&waiter] { waiter.changed.set(false); });
  timer.set(deadline);
  co_return co_await waiter.changed;
}

}  // namespace muster::rendezvous
