// LoopThread: the loop on which everything of the package runs that waits, and how a Python thread
// waits for it.
//
// One in a process, started by the first who asks for it, and shared by all stores and rendezvous
// handlers. It never touches Python. It lives as long as the process; a child that was forked
// starts one of its own, and what belongs to its parent's is of no use to it.
#pragma once

#include "muster/base/error.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "python/native/errors.h"

#include <pybind11/pybind11.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <sys/types.h>
#include <thread>
#include <utility>

namespace muster::python {

// What a thread waits for, and what tells it that there is nothing left to wait for.
class Pending {
 public:
  virtual ~Pending() = default;

  // Lets go of the interpreter's lock until it is done. Throws what a signal handler raised, once
  // the task has been cancelled. Requires: the interpreter's lock.
  void wait(net::EpollLoop& loop, const std::shared_ptr<Pending>& self);
  // Likewise, whatever signals come; needs no lock.
  void wait_without_signals();

  // On the loop, where there is something to cancel.
  std::function<void()> cancel = {};

 protected:
  void finish();
  // What came after all, though nobody wants it. On the loop, since it may live there.
  virtual void drop() = 0;

 private:
  bool wait_for(Duration length);

  std::mutex mutex_;
  std::condition_variable finished_;
  bool is_finished_ = false;  // guarded by mutex_
};

template <typename T>
class PendingResult final : public Pending {
 public:
  void set(Result<T> result) {
    result_.emplace(std::move(result));
    finish();
  }
  Result<T> take() { return std::move(*result_); }

 private:
  void drop() override { result_.reset(); }

  std::optional<Result<T>> result_;
};

class LoopThread {
 public:
  static LoopThread& of_process();
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  // False in a child that was forked after it was started: nobody runs it there.
  bool runs_here() const;

  net::EpollLoop& loop() { return loop_; }
  // Of the loop; touched only there.
  net::TcpTransport& transport() { return transport_; }
  Random& random() { return random_; }

  // Calls `make` on the loop and waits for the task that it makes, as `Pending::wait` does. When it
  // throws, the task is gone.
  template <typename Make>
  auto run(Make make) {
    using T = typename decltype(make().await_resume())::value_type;
    auto pending = std::make_shared<PendingResult<T>>();
    require_here();
    loop_.post([this, pending, &make] { tasks_.start(attend<T>(loop_, pending, make())); });
    pending->wait(loop_, pending);
    return pending->take();
  }

  // Calls `work` on the loop, and waits until it has returned.
  void do_there(const std::function<void()>& work);
  // Only sees to it that it is called.
  void do_there_soon(std::function<void()> work) { loop_.post(std::move(work)); }

 private:
  LoopThread();
  ~LoopThread() = default;
  void require_here() const;

  template <typename T>
  static Task<void> attend(Loop& loop, std::shared_ptr<PendingResult<T>> pending,
                           Task<Result<T>> task) {
    Oneshot<Result<T>> outcome(loop);
    pending->cancel = [&outcome] {
      outcome.set(fail(ErrorKind::Cancelled, "nobody waits for it any more"));
    };
    TaskScope scope;
    scope.start(internal::deliver<T>(std::move(task), outcome));
    Result<T> result = co_await outcome;
    // What the task used may go as soon as the waiting thread knows.
    scope.cancel_all();
    pending->cancel = nullptr;
    pending->set(std::move(result));
  }

  const pid_t process_;
  net::EpollLoop loop_;
  net::TcpTransport transport_;
  Random random_;
  TaskScope tasks_;  // of the loop
  std::thread thread_;
};

// `result`, or the exception for its error.
template <typename T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// A timeout of Python, in seconds, as a deadline; negative: never.
TimePoint deadline_of(double seconds);
Duration duration_of(double seconds);

}  // namespace muster::python
