// Guard: the process that the user has started, while the agent is a child of it.
//
// Who started `muster run` knows one process, and signals and waits for that one. `Guard::start`
// forks: the child goes on as the agent, and the process itself stays behind as its guard. It
// sleeps until something happens, and
//   - passes every signal on to the agent, once. The agent has a process group of its own, so what
//     is sent to the whole group, or comes from the terminal, reaches only the guard;
//   - stops and goes on together with the agent when a shell's job control says so;
//   - ends as the agent ends: with its status, or by the same signal;
//   - before that, kills whatever the agent has left. It is a sub-reaper: when the agent is killed,
//     all that it or its workers ever started becomes the guard's child, whether or not it has a
//     session of its own, a token or a cgroup. When the guard has ended, nothing is left.
// The agent in turn sees through `pidfd` that the guard was killed; then it has to end by itself.
//
// Fork early, while the program is small: what it holds at that time, the guard keeps. That holds
// for descriptors, too: what the program got from whoever started it (the lock of flock(1), for
// example) lives until the guard ends, which is after all workers have.
//
// The object belongs to the agent's main function; it is not bound to a loop.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"

#include <cstddef>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace muster::process {

namespace internal {
struct GuardTable;
}

inline constexpr std::size_t kGuardTextBytesMax = 4096;

class Guard {
 public:
  // Returns in the child only; after an error, in the process itself. In the child the same signals
  // are blocked as before, and SIGTTOU, so that it may always write to the terminal; it is called
  // "muster-agent". Requires: this process has one thread, and nothing is left in buffers that both
  // would write.
  static Result<Guard> start();

  Guard(Guard&& other) noexcept;
  Guard& operator=(Guard&&) = delete;
  Guard(const Guard&) = delete;
  // The guard stays: it ends with this process.
  ~Guard();

  // What it kills when we are gone, besides those that have become its children. The Host calls the
  // first one.
  void watch_token(std::string_view host_id);  // every token within it (proc.h)
  void watch_cgroup(std::string_view folder);  // empty: none

  // What it removes when we were killed: a folder with all that is in it, and the empty folders in
  // and below another one. Empty: none.
  void watch_scratch(std::string_view folder);
  void watch_empty_folders(std::string_view folder);

  // Signals that we want to see, also if they are those of job control.
  void pass_on(const std::vector<int>& signals);

  pid_t pid() const { return pid_; }
  // Readable when the guard has ended, which it does only by force as long as we live.
  int pidfd() const { return pidfd_.get(); }

 private:
  Guard(pid_t pid, Fd pidfd, internal::GuardTable* table);

  pid_t pid_ = -1;
  Fd pidfd_;
  internal::GuardTable* table_ = nullptr;  // shared with the guard
};

}  // namespace muster::process
