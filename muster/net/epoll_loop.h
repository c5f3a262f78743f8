// EpollLoop: the loop of a real process. Adds file descriptors to `Loop` and runs on the monotonic
// clock.
//
// Owned by the thread that runs it. We use epoll directly and not a library: a request costs one
// epoll_wait, one read and one write, the same as an echo server, and an idle connection costs
// nothing but its registration.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/loop.h"
#include "muster/base/spin.h"
#include "muster/base/task.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

struct epoll_event;

namespace muster::net {

class EpollLoop;

// Tells when a file descriptor is ready. Level-triggered: the call repeats as long as the condition
// holds and is wanted. Owned by whoever owns the descriptor, and destroyed before it is closed.
// Lives on the loop's thread.
class FdWatch {
 public:
  // `ready` gets the EPOLL… bits and may destroy the watch. Requires: `loop` outlives the watch.
  // Nothing is wanted at first.
  FdWatch(EpollLoop& loop, int fd, std::function<void(std::uint32_t events)> ready);
  ~FdWatch();
  FdWatch(const FdWatch&) = delete;
  FdWatch& operator=(const FdWatch&) = delete;

  // EPOLLIN, EPOLLOUT or both; errors and hang-ups are always told while anything is wanted. This
  // one function may be called from another thread, if its owner sees to it that no two calls
  // overlap and that the watch is still there.
  void want(std::uint32_t events);

 private:
  friend class EpollLoop;
  EpollLoop& loop_;
  int fd_;
  std::uint32_t wanted_ = 0;
  std::function<void(std::uint32_t)> ready_;
};

// What a loop cannot be without.
struct LoopDescriptors {
  // Unavailable if the process, or the system, has no more.
  static Result<LoopDescriptors> open();

  Fd epoll;
  Fd wake;  // an eventfd that other threads write
};

class EpollLoop final : public Loop {
 public:
  // For programs that are nothing without it: aborts where there are no descriptors.
  EpollLoop();
  explicit EpollLoop(LoopDescriptors descriptors);
  ~EpollLoop() override;

  TimePoint now() const override { return now_; }
  Duration wall_time() const override;
  void post(std::function<void()> work) override;

  // Runs until `stop`. A stop before the run ends it at once.
  void run();
  // Ends `run` after the current turn. Safe from any thread.
  void stop();

  // Runs the loop until the task is done. For programs and tests whose main thread is the loop's.
  template <typename T>
  T block_on(Task<T> task) {
    Oneshot<T> outcome(*this);
    TaskScope scope;
    scope.start(deliver(std::move(task), outcome));
    while (!outcome.is_set()) turn();
    scope.cancel_all();
    return outcome.take();
  }
  void block_on(Task<void> task);

  // From now on the loop looks for a while before it sleeps, as a SpinBudget decides. `look` is
  // called again and again meanwhile, for what epoll does not know of, and says whether it did
  // anything. `prepare` is called last, and says whether the loop may sleep; if not, `look` will
  // find something. `give_way` is called after a look, and may let other threads run; it says
  // whether it did, see `forget_losses`. A thread that others keep from looking moves to another
  // processor.
  void look_before_sleep(std::function<bool()> look, std::function<bool()> prepare,
                         std::function<bool()> give_way) {
    look_ = std::move(look);
    prepare_ = std::move(prepare);
    give_way_ = std::move(give_way);
  }

  // What was posted after the last turn of `run`, on the thread that ends the loop: it may use what
  // is gone when the loop is destroyed.
  void run_what_is_left() { run_posted(); }

  // Runs `work` on a thread of its own, for the few calls that can only block (name resolution).
  // The loop joins the thread when it is destroyed, so `work` must end by itself. Where the system
  // lets no thread be started it runs here.
  void run_in_background(std::function<void()> work);

 private:
  friend class FdWatch;
  template <typename T>
  static Task<void> deliver(Task<T> task, Oneshot<T>& outcome) {
    outcome.set(co_await task);
  }
  static Task<void> run_and_mark(Task<void> task, bool& done);

  // One round of timers, coroutines, posted work and descriptors; sleeps if there is nothing to do.
  void turn();
  // Looks, then sleeps until `timeout`. As epoll_wait.
  int wait_for_events(epoll_event* events, int timeout);
  // As epoll_wait without a timeout, again and again; true if there was something, for `look_` or
  // in `events`. Adds up in `looked` what this thread has used for it; others may run until it
  // `ends`.
  bool look_for(Duration budget, TimePoint ends, Duration& looked, epoll_event* events, int& count);
  // Whether others need the processors, so that the loop rests from looking.
  bool is_kept_from_looking(TimePoint now);
  void wake();
  void run_posted();

  SystemClock clock_;
  TimePoint now_;
  Fd epoll_;
  Fd wake_;
  // The watches with events in this turn that are still to be called; a destroyed watch clears its
  // place.
  std::vector<std::pair<FdWatch*, std::uint32_t>> pending_;
  FdWatch* calling_ =
      nullptr;  // whose function runs now; nothing once that function has destroyed its watch
  std::function<bool()> look_;
  std::function<bool()> prepare_;
  std::function<bool()> give_way_;
  SpinBudget spin_;
  Moves moves_;
  std::mutex posted_mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by posted_mutex_
  std::atomic<bool> stopping_ = false;
  struct Background {
    std::thread thread;
    std::atomic<bool> done = false;
  };
  std::list<Background> background_;
};

}  // namespace muster::net
