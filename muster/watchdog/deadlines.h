// Deadlines keeps the timers of real processes and says when one is late.
//
// It watches each process that has timers through a pidfd: timers go with their process, and a
// process that got a number again is never taken for its predecessor. It does not kill by itself:
// `expired` does, and what it could not do is tried again. So a timer never hits the agent, or a
// process that is no worker's.
//
// One Deadlines serves both PyTorch's file timers (file_timer.h) and Muster's own `expires` (see
// socket.h). Owned by the agent, on the agent's loop; nothing wakes while no timer is set.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/loop.h"
#include "muster/net/epoll_loop.h"
#include "muster/watchdog/timers.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <sys/types.h>

namespace muster::watchdog {

struct DeadlinesOptions {
  // Whether `pid` is a worker or descends from one (see lineage.h). Asked when a process sets its
  // first timer, and again before a process is reported that could not be watched.
  std::function<bool(pid_t pid)> belongs;

  // A timer has expired. With a signal, the process is to get it now, for example through
  // Deadlines::signal; if that is answered with an error, the same timer expires again after
  // `signal_retry`, until it works or the process has ended. May call anything here, but not
  // destroy the Deadlines.
  std::function<Result<>(const Timeout& late)> expired;

  Duration signal_retry = std::chrono::seconds(1);

  // How many processes may have timers at a time.
  std::size_t processes_max = 4096;
};

class Deadlines {
 public:
  // Requires: `loop` outlives this.
  Deadlines(net::EpollLoop& loop, DeadlinesOptions options);
  ~Deadlines();
  Deadlines(const Deadlines&) = delete;
  Deadlines& operator=(const Deadlines&) = delete;

  // Sets or moves a timer. A deadline that has passed expires in this turn of the loop, never
  // inside the call. A signal below 0 counts as 0. Invalid: not a process of ours, or no signal.
  // Closed: the process has ended. Unavailable: too many timers or processes.
  Result<> set(Timeout timeout);

  // False if there is no such timer.
  bool release(pid_t pid, std::string_view scope);

  // Forgets a process, or all of them, for example when they are being stopped.
  void forget(pid_t pid);
  void clear();

  // Sends `number` to the process, through its pidfd if it has timers here. A process that has
  // ended counts as done. Not to its group.
  Result<> signal(pid_t pid, int number);

  std::size_t timer_count() const { return timers_.size(); }
  std::size_t process_count() const { return processes_.size(); }
  // How many timers have expired so far; repetitions count once.
  std::uint64_t expired_count() const { return expired_count_; }

 private:
  struct Watched;  // a process

  Result<> admit(pid_t pid);
  bool make_room();
  void expire();
  bool is_still_there(const Watched& process) const;
  void settle(Timeout late, std::uint64_t era);
  void update();

  net::EpollLoop& loop_;
  DeadlinesOptions options_;
  Timers timers_;
  std::map<pid_t, std::unique_ptr<Watched>> processes_;
  std::uint64_t expired_count_ = 0;
  std::uint64_t era_ = 0;  // changes with clear()
  bool is_expiring_ = false;
  Timer timer_;
};

}  // namespace muster::watchdog
