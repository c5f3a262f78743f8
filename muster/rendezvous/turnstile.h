// Turnstile: lets one coroutine through at a time, in the order they came.
//
// Owned by the object whose state it guards, on one loop; outlives those who wait.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/task.h"

#include <list>
#include <utility>

namespace muster::rendezvous {

class Turnstile {
 public:
  explicit Turnstile(Loop& loop) : loop_(loop) {}

  // Holding it means having passed; destroying it lets the next one through.
  class Pass {
   public:
    explicit Pass(Turnstile& turnstile) : turnstile_(&turnstile) {}
    Pass(Pass&& other) noexcept : turnstile_(std::exchange(other.turnstile_, nullptr)) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (turnstile_ != nullptr) turnstile_->release();
    }

   private:
    Turnstile* turnstile_;
  };

  Task<Pass> pass() {
    if (!taken_) {
      taken_ = true;
      co_return Pass(*this);
    }
    Waiter waiter{*this, {}, Oneshot<bool>(loop_)};
    waiter.at = waiters_.insert(waiters_.end(), &waiter);
    co_await waiter.turn;
    // The turn is ours: it was passed on, not given back.
    waiter.has_turn = false;
    co_return Pass(*this);
  }

 private:
  struct Waiter {
    Turnstile& turnstile;
    std::list<Waiter*>::iterator at;
    Oneshot<bool> turn;
    bool queued = true;
    bool has_turn = false;  // given, but not taken up yet

    ~Waiter() {
      if (queued) turnstile.waiters_.erase(at);
      if (has_turn) turnstile.release();
    }
  };

  void release() {
    if (waiters_.empty()) {
      taken_ = false;
      return;
    }
    Waiter* next = waiters_.front();
    waiters_.pop_front();
    next->queued = false;
    next->has_turn = true;
    next->turn.set(true);
  }

  Loop& loop_;
  bool taken_ = false;
  std::list<Waiter*> waiters_;
};

}  // namespace muster::rendezvous
