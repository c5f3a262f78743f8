// Future: the outcome of a call that may not be known yet, shared between threads.
//
// Copies refer to the same outcome. Whoever made the Promise sets it, once; the first outcome
// counts. Callbacks run in the thread that sets it, or at once in the calling thread when it is set
// already; never under a lock of ours. An error that nobody has looked at when the last copy goes
// is logged: nobody would hear of it otherwise.
#pragma once

#include "muster/base/assert.h"
#include "muster/base/clock.h"
#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/rpc/alarm.h"
#include "muster/rpc/call_error.h"
#include "muster/rpc/pool.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster::rpc {

// What `get` throws. `what()` is the rendered text.
class CallException : public std::runtime_error {
 public:
  explicit CallException(CallError error);
  const CallError& error() const { return error_; }

 private:
  CallError error_;
};

template <typename T>
class Future;

namespace internal {

// Logs an error that nobody has looked at.
void complain(const CallError& error);
// Waits for the condition; false once `deadline` (of the monotonic clock) has passed.
bool wait_until(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                TimePoint deadline, const std::function<bool()>& holds);
CallError error_of_exception(std::exception_ptr thrown);
// Logs what a callback has thrown. Requires: an exception is being handled.
void complain_about_callback();
// One that throws harms neither the others nor the thread that happens to run it.
template <typename T>
void run_callback(const std::function<void(const CallResult<T>&)>& callback,
                  const CallResult<T>& outcome) {
  try {
    callback(outcome);
  } catch (...) {
    complain_about_callback();
  }
}

// A thread that waits for an outcome.
class Waiter {
 public:
  virtual ~Waiter() = default;
  // The outcome is there.
  virtual bool is_done() const = 0;
  virtual TimePoint deadline() const = 0;
  // For a sleep anywhere else than in the future: whoever sets the outcome rings it. Nothing if the
  // outcome is there already, if another thread has an alarm set, and if there are no more.
  virtual const Alarm* set_alarm() = 0;
};

// Can bring about what a thread waits for, or at least try, in that thread.
class Helper {
 public:
  virtual ~Helper() = default;
  // Returns when it is done, when the deadline has passed, or when it is better to sleep in the
  // future.
  virtual void help(Waiter& waiter) = 0;
  // The thread has to sleep in the future after all, unless what it waits for is done then. And it
  // goes on; it waited that long in all, or until its deadline.
  virtual void sleeps() = 0;
  virtual void slept(std::optional<Duration> total) = 0;
};

// One set of callbacks that runs within those of others, in this thread. A chain of `then` may be
// of any length, the stack is not: deep within, callbacks are put off until the outermost have run.
class CallbackNest {
 public:
  CallbackNest();
  // The outermost runs what was put off.
  ~CallbackNest();
  CallbackNest(const CallbackNest&) = delete;
  CallbackNest& operator=(const CallbackNest&) = delete;

  bool is_deep() const;
  void put_off(std::function<void()> work);
};

template <typename T>
struct FutureState : std::enable_shared_from_this<FutureState<T>> {
  std::mutex mutex;
  std::atomic<bool> is_set = false;  // the outcome is there
  std::weak_ptr<Helper> helper;      // never changed once others have the future
  std::condition_variable condition;
  std::optional<CallResult<T>> outcome;  // never changed once it is set
  std::vector<std::function<void(const CallResult<T>&)>> callbacks;
  int sleeper_count = 0;         // in `condition`
  const Alarm* alarm = nullptr;  // of one that sleeps elsewhere
  bool looked_at = false;

  ~FutureState() {
    if (outcome && !*outcome && !looked_at) complain(outcome->error());
  }
  using Callbacks = std::vector<std::function<void(const CallResult<T>&)>>;
  // The callbacks are then the caller's to run. Nothing if there was an outcome already.
  std::optional<Callbacks> settle(CallResult<T> result) {
    Callbacks waiting;
    bool has_sleepers = false;
    {
      const std::lock_guard lock(mutex);
      if (outcome) return std::nullopt;
      outcome.emplace(std::move(result));
      waiting.swap(callbacks);
      if (!waiting.empty()) looked_at = true;
      is_set.store(true, std::memory_order_release);
      has_sleepers = sleeper_count > 0;
      if (alarm != nullptr) alarm->ring();
    }
    // They need the mutex at once.
    if (has_sleepers) condition.notify_all();
    return waiting;
  }
  bool set(CallResult<T> result) {
    auto waiting = settle(std::move(result));
    if (!waiting) return false;
    if (waiting->empty()) return true;
    CallbackNest nest;
    if (nest.is_deep()) {
      nest.put_off([self = this->shared_from_this(), callbacks = std::move(*waiting)] {
        for (const auto& callback : callbacks) run_callback(callback, *self->outcome);
      });
    } else {
      for (const auto& callback : *waiting) run_callback(callback, *outcome);
    }
    return true;
  }
};

// What a callback of `then` may answer: a value, nothing, a CallResult or a Future.
template <typename R>
struct ThenTraits {
  using Value = R;
};
template <typename R>
struct ThenTraits<CallResult<R>> {
  using Value = R;
};
template <typename R>
struct ThenTraits<Future<R>> {
  using Value = R;
};

}  // namespace internal

// The side that knows the outcome first. Destroyed without having set it, it sets an error, so that
// nobody waits for ever.
template <typename T = void>
class Promise {
 public:
  Promise() : state_(std::make_shared<internal::FutureState<T>>()) {}
  ~Promise() {
    // Nobody waits for what nobody has a future of.
    if (!state_ || state_.use_count() == 1 || state_->is_set) return;
    state_->set(call_failed({CallErrorKind::Rejected, "the call was given up", "", false}));
  }
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }

  Future<T> future() const { return Future<T>(state_); }
  // False if there was an outcome already: the first one counts.
  bool set(CallResult<T> result) const {
    // Whoever waits may destroy the promise as soon as it sees the outcome, with us still here.
    const auto state = state_;
    return state->set(std::move(result));
  }
  // Likewise, but callbacks run on a thread of `pool`; `after` is called when they have run.
  template <typename After>
  void set_on(Pool& pool, CallResult<T> result, After after) const {
    const auto state = state_;
    auto callbacks = state->settle(std::move(result));
    if (!callbacks || callbacks->empty()) return after();
    auto run = [state, callbacks = std::move(*callbacks), after] {
      for (const auto& callback : callbacks) internal::run_callback(callback, *state->outcome);
      after();
    };
    // A pool that has been stopped takes no more.
    if (!pool.post(run)) run();
  }
  // Whoever waits for the outcome lets `helper` try first. Before anybody has the future.
  void set_helper(std::weak_ptr<internal::Helper> helper) const {
    state_->helper = std::move(helper);
  }

 private:
  std::shared_ptr<internal::FutureState<T>> state_;
};

template <typename T = void>
class Future {
 public:
  // One whose outcome is known.
  static Future ready(CallResult<T> result) {
    auto state = std::make_shared<internal::FutureState<T>>();
    state->set(std::move(result));
    return Future(std::move(state));
  }

  bool done() const { return state_->is_set.load(std::memory_order_acquire); }
  // The outcome of one that is done, without counting as a look at it.
  const CallResult<T>& peek() const { return *state_->outcome; }
  // How many futures and promises there are of this outcome, in this moment.
  std::int64_t owner_count() const { return state_.use_count(); }

  // Blocks until the outcome is known. As often as one likes, with the same answer each time.
  const CallResult<T>& wait() const& { return *wait_until(kNever); }
  CallResult<T> wait() && { return *wait_until(kNever); }
  // Nothing when the outcome is not known by `deadline`. The call goes on.
  const CallResult<T>* wait_until(TimePoint deadline) const& {
    if (!done() && !bring_about(deadline)) return nullptr;
    const std::lock_guard lock(state_->mutex);
    state_->looked_at = true;
    return &*state_->outcome;
  }
  // The value, or a CallException.
  T get() const {
    const CallResult<T>& outcome = wait();
    if (!outcome) throw CallException(outcome.error());
    if constexpr (!std::is_void_v<T>) return *outcome;
  }

  // Waits, and moves the outcome out. For the only one who has this future.
  CallResult<T> take() && {
    wait_until(kNever);
    return std::move(*state_->outcome);
  }

  // Calls `callback` with the outcome, once. What it throws is only logged; `then` keeps it.
  void on_done(std::function<void(const CallResult<T>&)> callback) const {
    {
      const std::lock_guard lock(state_->mutex);
      if (!state_->outcome) {
        state_->callbacks.push_back(std::move(callback));
        return;
      }
      state_->looked_at = true;
    }
    internal::run_callback(callback, *state_->outcome);
  }

  // A future of what `callback` makes of the outcome: a value, nothing, a CallResult or a Future.
  // If it throws, that is the error of the new one.
  template <typename F>
  auto then(F callback) const {
    using Answer = std::invoke_result_t<F&, const CallResult<T>&>;
    using R = typename internal::ThenTraits<Answer>::Value;
    auto promise = std::make_shared<Promise<R>>();
    Future<R> next = promise->future();
    on_done([promise = std::move(promise),
             callback = std::move(callback)](const CallResult<T>& outcome) mutable {
      try {
        if constexpr (std::is_void_v<Answer>) {
          callback(outcome);
          promise->set({});
        } else if constexpr (std::is_same_v<Answer, Future<R>>) {
          callback(outcome).on_done([promise](const CallResult<R>& inner) { promise->set(inner); });
        } else {
          promise->set(callback(outcome));
        }
      } catch (...) {
        promise->set(call_failed(internal::error_of_exception(std::current_exception())));
      }
    });
    return next;
  }

 private:
  friend class Promise<T>;
  explicit Future(std::shared_ptr<internal::FutureState<T>> state) : state_(std::move(state)) {}

  class StateWaiter final : public internal::Waiter {
   public:
    StateWaiter(internal::FutureState<T>& state, TimePoint deadline)
        : state_(state), deadline_(deadline) {}
    ~StateWaiter() override {
      if (!alarm_) return;
      const std::lock_guard lock(state_.mutex);
      state_.alarm = nullptr;
    }
    bool is_done() const override { return state_.is_set.load(std::memory_order_acquire); }
    TimePoint deadline() const override { return deadline_; }
    const Alarm* set_alarm() override {
      Alarm::Taken alarm = Alarm::take();
      if (!alarm) return nullptr;
      const std::lock_guard lock(state_.mutex);
      if (state_.outcome || state_.alarm != nullptr) return nullptr;
      alarm_ = std::move(alarm);
      return state_.alarm = alarm_.get();
    }

   private:
    internal::FutureState<T>& state_;
    const TimePoint deadline_;
    Alarm::Taken alarm_;
  };

  // Helps, then sleeps. False once `deadline` has passed.
  bool bring_about(TimePoint deadline) const {
    const Pool::Waiting waiting;
    const SystemClock clock;
    const TimePoint started = clock.now();
    const auto helper = state_->helper.lock();
    if (helper) {
      StateWaiter waiter(*state_, deadline);
      helper->help(waiter);
      if (done()) return true;
      helper->sleeps();
    }
    std::unique_lock lock(state_->mutex);
    ++state_->sleeper_count;
    const bool known =
        internal::wait_until(state_->condition, lock, deadline, [this] { return done(); });
    --state_->sleeper_count;
    lock.unlock();
    if (helper) helper->slept(known ? std::optional(clock.now() - started) : std::nullopt);
    return known;
  }

  std::shared_ptr<internal::FutureState<T>> state_;
};

// The outcome, for a coroutine on `loop`; set from whichever thread. Destroying the task withdraws.
// Requires: `loop` is there until the outcome is.
template <typename T>
Task<CallResult<T>> outcome_of(Loop& loop, Future<T> future) {
  struct Wait {
    explicit Wait(Loop& of) : oneshot(of) {}
    Oneshot<bool> oneshot;
  };
  auto wait = std::make_shared<Wait>(loop);
  std::weak_ptr<Wait> waiting = wait;
  future.on_done([&loop, waiting](const CallResult<T>&) {
    loop.post([waiting] {
      if (const auto still = waiting.lock()) still->oneshot.set(true);
    });
  });
  (void)co_await wait->oneshot;
  co_return future.wait();
}

// Done when all are, or with the first error as soon as it occurs. Its value are the futures.
template <typename T>
Future<std::vector<Future<T>>> collect_all(std::vector<Future<T>> futures) {
  struct Collection {
    std::mutex mutex;
    std::size_t missing = 0;
    std::vector<Future<T>> futures;
    Promise<std::vector<Future<T>>> promise;
  };
  auto all = std::make_shared<Collection>();
  all->missing = futures.size();
  all->futures = futures;
  auto result = all->promise.future();
  if (futures.empty()) all->promise.set(std::vector<Future<T>>());
  for (const Future<T>& future : futures) {
    future.on_done([all](const CallResult<T>& outcome) {
      if (!outcome) {
        all->promise.set(call_failed(outcome.error()));
        return;
      }
      std::vector<Future<T>> done;
      {
        const std::lock_guard lock(all->mutex);
        if (--all->missing > 0) return;
        done.swap(all->futures);
      }
      all->promise.set(std::move(done));
    });
  }
  return result;
}

}  // namespace muster::rpc
