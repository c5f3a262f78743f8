#include "python/native/loop_thread.h"

#include "python/native/interpreter.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <mutex>
#include <new>
#include <pthread.h>
#include <string>
#include <unistd.h>

namespace py = pybind11;

namespace muster::python {
namespace {

// How soon a waiting main thread sees that a signal came. Python's own handlers only take a note.
constexpr Duration kSignalInterval = std::chrono::milliseconds(50);
constexpr double kSecondsMax = 1e9;

// Never destroyed: threads may still use them while the process ends.
struct Current {
  std::mutex mutex;
  LoopThread* thread = nullptr;  // guarded by mutex
};
Current& current() {
  static Current* const only = new Current;
  return *only;
}

// Whoever had the lock is not in the child, nor is the loop's thread.
void forget_in_child() { new (&current()) Current; }

bool is_main_thread() { return ::getpid() == ::gettid(); }

// The loop's thread takes no signals; those of the process are for Python's main thread.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

bool Pending::wait_for(Duration length) {
  std::unique_lock lock(mutex_);
  return finished_.wait_for(lock, length, [this] { return is_finished_; });
}

void Pending::wait_without_signals() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this] { return is_finished_; });
}

void Pending::wait(net::EpollLoop& loop, const std::shared_ptr<Pending>& self) {
  const bool takes_signals = is_main_thread();
  for (;;) {
    bool done = true;
    {
      const Unlocked unlocked;
      if (takes_signals) {
        done = wait_for(kSignalInterval);
      } else {
        wait_without_signals();
      }
    }
    if (done) return;
    if (PyErr_CheckSignals() == 0) continue;
    py::error_already_set raised;
    {
      const Unlocked unlocked;
      loop.post([self] {
        if (self->cancel) self->cancel();
      });
      wait_without_signals();
      loop.post([self] { self->drop(); });
    }
    throw raised;
  }
}

void Pending::finish() {
  const std::lock_guard lock(mutex_);
  is_finished_ = true;
  finished_.notify_all();
}

LoopThread& LoopThread::of_process() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, forget_in_child);
  (void)registered;
  Current& now = current();
  const std::lock_guard lock(now.mutex);
  if (now.thread == nullptr) now.thread = new LoopThread;
  return *now.thread;
}

LoopThread::LoopThread() : process_(::getpid()), transport_(loop_), random_(Random::from_system()) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { loop_.run(); });
}

bool LoopThread::runs_here() const { return process_ == ::getpid(); }

void LoopThread::require_here() const {
  if (runs_here()) return;
  raise({ErrorKind::Closed, "this was made by process " + std::to_string(process_) +
                                ", which was forked; a forked process makes its own"});
}

void LoopThread::do_there(const std::function<void()>& work) {
  PendingResult<void> pending;
  loop_.post([&] {
    work();
    pending.set({});
  });
  pending.wait_without_signals();
}

Duration duration_of(double seconds) {
  if (std::isnan(seconds) || seconds < 0 || seconds > kSecondsMax) return Duration(-1);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

TimePoint deadline_of(double seconds) { return after(SystemClock().now(), duration_of(seconds)); }

}  // namespace muster::python
