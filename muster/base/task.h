// Task<T>: a coroutine that produces a T on one loop.
//
// A task starts when it is awaited (or given to a TaskScope) and is owned by whoever holds it.
// **Destroying a task cancels it**: its frame is destroyed where it waits, and everything it was
// waiting for is withdrawn by the destructors of the awaiters in it. That is the only kind of
// cancellation there is, so there are no tokens to pass and none to forget.
//
// Rules for authors are in CONTRIBUTING.md; the important one: name things before you await them
// (GCC 12).
//
// We do not throw: an exception that leaves a coroutine ends the program.
#pragma once

#include "muster/base/assert.h"
#include "muster/base/coroutine.h"
#include "muster/base/error.h"
#include "muster/base/loop.h"

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace muster {

template <typename T = void>
class Task;

namespace internal {

class RootPromise;  // in task.cpp

class TaskPromiseBase {
 public:
  std::suspend_always initial_suspend() noexcept { return {}; }

  // Going on through plain calls, not symmetric transfer: GCC only turns the latter into jumps when
  // optimising, so debug and sanitizer builds would use up the stack. A child that finishes without
  // waiting returns to `start`, so a loop over such children does not deepen the stack either.
  struct Finish {
    bool await_ready() noexcept { return false; }
    template <typename Promise>
    void await_suspend(std::coroutine_handle<Promise> finished) noexcept {
      TaskPromiseBase& promise = finished.promise();
      promise.done_ = true;
      if (promise.parent_waits_) promise.parent_.resume();
    }
    void await_resume() noexcept {}
  };
  Finish final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { std::terminate(); }

  bool done_ = false;
  bool parent_waits_ = false;
  std::coroutine_handle<> parent_;
};

template <typename T>
class TaskPromise : public TaskPromiseBase {
 public:
  Task<T> get_return_object();
  template <typename U>
  void return_value(U&& value) {
    value_.emplace(std::forward<U>(value));
  }
  T take() { return std::move(*value_); }

 private:
  std::optional<T> value_;
};

template <>
class TaskPromise<void> : public TaskPromiseBase {
 public:
  Task<void> get_return_object();
  void return_void() {}
  void take() {}
};

}  // namespace internal

template <typename T>
class [[nodiscard]] Task {
 public:
  using promise_type = internal::TaskPromise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, {});
    }
    return *this;
  }
  ~Task() { reset(); }

  // Cancels the task if it is not done.
  void reset() {
    if (handle_) std::exchange(handle_, {}).destroy();
  }

  bool await_ready() const { return false; }
  bool await_suspend(std::coroutine_handle<> parent) {
    MUSTER_ASSERT(handle_ && !handle_.promise().parent_);
    handle_.promise().parent_ = parent;
    handle_.resume();
    if (handle_.promise().done_) return false;
    handle_.promise().parent_waits_ = true;
    return true;
  }
  T await_resume() { return handle_.promise().take(); }

 private:
  Handle handle_;
};

namespace internal {
template <typename T>
Task<T> TaskPromise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<TaskPromise<T>>::from_promise(*this));
}
inline Task<void> TaskPromise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<TaskPromise<void>>::from_promise(*this));
}
}  // namespace internal

// Runs tasks that nobody awaits and cancels those that are left when it is destroyed.
//
// Owned by the object whose members the tasks use, as its last member, so that it is destroyed
// first. Lives on that object's loop. A task must not destroy the scope it runs in.
class TaskScope {
 public:
  TaskScope() = default;
  ~TaskScope() { cancel_all(); }
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

  // Starts `task` at once: it runs until it first waits before this returns.
  void start(Task<void> task);
  void cancel_all();
  bool empty() const { return first_ == nullptr; }

 private:
  internal::RootPromise* first_ = nullptr;
};

// A value that will be set once, and one coroutine that waits for it. Setting never runs the waiter
// inline.
//
// Owned by the waiter (usually in its frame) or by the table that will set it. Either may go first:
// a waiter that is cancelled leaves no trace, and a table may set a value and forget the Oneshot at
// once, since the value is by then with the waiter. A Oneshot that goes without having been set
// leaves its waiter waiting.
template <typename T>
class Oneshot {
 public:
  explicit Oneshot(Loop& loop) : loop_(loop) {}
  ~Oneshot() {
    if (waiter_ != nullptr) waiter_->oneshot_ = nullptr;
  }
  Oneshot(const Oneshot&) = delete;
  Oneshot& operator=(const Oneshot&) = delete;

  // The first value counts; later ones are dropped, since a reply and a timeout may come in the
  // same turn.
  void set(T value) {
    if (is_set_) return;
    is_set_ = true;
    if (waiter_ == nullptr) {
      value_.emplace(std::move(value));
    } else {
      waiter_->value_.emplace(std::move(value));
      loop_.soon(waiter_->ready_, waiter_->coroutine_);
    }
  }
  bool is_set() const { return is_set_; }

  // For whoever looks instead of waiting. Requires: it is set, and nobody waits or has taken it.
  T take() {
    MUSTER_ASSERT(value_);
    T value = std::move(*value_);
    value_.reset();
    return value;
  }

  // Lives in the frame of the coroutine that awaits.
  class Waiter {
   public:
    explicit Waiter(Oneshot& oneshot) : oneshot_(&oneshot) {}
    ~Waiter() {
      if (oneshot_ != nullptr && oneshot_->waiter_ == this) oneshot_->waiter_ = nullptr;
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    bool await_ready() {
      if (!oneshot_->is_set_) return false;
      value_.emplace(oneshot_->take());
      return true;
    }
    void await_suspend(std::coroutine_handle<> coroutine) {
      MUSTER_ASSERT(oneshot_->waiter_ == nullptr);
      oneshot_->waiter_ = this;
      coroutine_ = coroutine;
    }
    T await_resume() { return std::move(*value_); }

   private:
    friend class Oneshot;
    Oneshot* oneshot_;  // nothing once it is destroyed
    std::optional<T> value_;
    std::coroutine_handle<> coroutine_;
    Ready ready_;
  };
  Waiter operator co_await() { return Waiter(*this); }

 private:
  Loop& loop_;
  bool is_set_ = false;
  std::optional<T> value_;  // while nobody waits
  Waiter* waiter_ = nullptr;
};

namespace internal {
template <typename T>
Task<void> deliver(Task<Result<T>> task, Oneshot<Result<T>>& outcome) {
  outcome.set(co_await task);
}
}  // namespace internal

// Awaits `task`, but no longer than `deadline`; then it is cancelled and the result is a Timeout
// that says `what`.
template <typename T>
Task<Result<T>> with_deadline(Loop& loop, TimePoint deadline, Task<Result<T>> task,
                              std::string what) {
  Oneshot<Result<T>> outcome(loop);
  Timer timer(loop, [&] { outcome.set(fail(ErrorKind::Timeout, std::move(what))); });
  timer.set(deadline);
  TaskScope scope;
  scope.start(internal::deliver<T>(std::move(task), outcome));
  co_return co_await outcome;
}

}  // namespace muster
