// Host starts, watches and stops the worker processes of this machine.
//
// Every worker leads a session and process group of its own, dies with this process (parent-death
// signal), starts with no descriptor but 0, 1 and 2, and with all signals at their defaults. Ends
// are seen through pidfds in the loop; nothing is polled.
//
// This process becomes a sub-reaper: what a worker leaves behind becomes our child, where we find
// it, reap it and, when its worker has ended, kill it. Daemons of a worker that still runs are left
// alone.
//
// One Host for a process, owned by the agent, on the loop's thread, which must be the thread that
// lives longest (the parent-death signal is sent when the *thread* that started a worker ends). It
// reaps every child of the process, so nobody else may wait for children of their own. SIGCHLD is
// blocked while it lives.
//
// Destroying the Host kills with SIGKILL whatever still runs, and waits for it, but not for long.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/process/child.h"
#include "muster/process/proc.h"
#include "muster/process/signals.h"
#include "muster/process/spawn.h"
#include "muster/process/stop_plan.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <unordered_map>
#include <vector>

namespace muster::process {

class Guard;

class Host {
 public:
  // Requires: `loop` outlives the host. With a guard, what workers have started dies with us, too,
  // where the parent-death signal does not reach.
  explicit Host(net::EpollLoop& loop, Guard* guard = nullptr);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Starts `command`; `exited` is called once, from the loop, never inside another call, unless the
  // Process is destroyed first. It may destroy the Process. When the program cannot be executed,
  // nothing is left behind and the error is one line that says what to do. Blocks until the program
  // is loaded (usually below a millisecond).
  Result<std::unique_ptr<Process>> start(const Command& command, std::function<void(Exit)> exited);

  // Ends the workers and everything they have started: signal to all groups (also to what is left
  // of the group of a worker that has ended) and SIGCONT, so that stopped ones hear it; one grace
  // for all (of zero: nobody is asked); SIGKILL; a bounded last wait. The answer is what could not
  // be killed. The `exited` functions are called as always; the Processes may be destroyed
  // meanwhile.
  Task<std::vector<Stuck>> stop(std::vector<Process*> processes, StopOptions options);

  // Kills what workers that have ended left behind: their process groups and all descendants with
  // their tokens. Tokens of workers that still run are ignored. When no worker runs any more, every
  // descendant of this process that is not a worker belongs to the remains, token or not.
  Task<std::vector<Stuck>> sweep(std::vector<std::string> tokens, SweepOptions options);

  // Every stop and sweep under way goes over to SIGKILL now.
  void escalate();

  std::size_t running_count() const { return running_.size(); }
  // The beginning of every token this host gives; contains the token of a host we run below.
  const std::string& id() const { return id_; }
  // Whether `pid` is a worker of this host or descends from one: for those who accept requests from
  // processes (watchdog). Follows parents, and for daemons the token.
  bool owns(pid_t pid) const;

 private:
  friend class Process;
  struct Target {
    pid_t group = 0;
    std::uint64_t serial = 0;
    std::string token;
  };
  struct Pulse;

  void on_exit(internal::Record& record);
  void abandon(std::unique_ptr<internal::Record> record);
  bool is_running(const Target& target) const;
  // Reaps adopted children; stops at a worker, which is reaped by its own watch.
  void reap_strays();
  void changed();
  // All our descendants that are neither workers nor below one that runs.
  std::vector<Member> strays() const;
  // Those of them that belong to `targets`, and, marked `token_unknown`, those that may.
  std::vector<Member> remains_of(const std::vector<Target>& targets) const;
  // Carries out `plan`.
  Task<std::vector<Stuck>> carry_out(std::vector<Target> targets, StopPlan plan);
  Left count(const std::vector<Target>& targets, const std::vector<Member>& remains) const;
  void ask(const std::vector<Target>& targets, int number) const;
  void kill_all(const std::vector<Target>& targets, const std::vector<Member>& remains) const;
  void forget(const std::vector<Target>& targets);
  std::vector<Stuck> stuck_of(const std::vector<Target>& targets,
                              const std::vector<Member>& remains) const;
  void end_everything();

  net::EpollLoop& loop_;
  std::string id_;
  internal::Spawner spawner_;
  Signals child_signal_;
  int was_subreaper_ = 0;
  std::uint64_t serial_ = 0;
  std::uint64_t order_ = 0;
  std::unordered_map<pid_t, internal::Record*> running_;
  std::vector<std::unique_ptr<internal::Record>> abandoned_;  // running, without a Process
  std::map<pid_t, std::string> ended_;  // group and token of ended workers that were not swept
  std::vector<StopPlan*> plans_;        // under way
  std::vector<Pulse*> pulses_;          // who waits for a change
};

}  // namespace muster::process
