// Guard: a tiny process that outlives the agent just long enough to end its workers.
//
// When the agent is killed with SIGKILL, the parent-death signal reaches its workers but not what
// they started. The guard sees the agent's end as the end of a pipe and kills the process groups of
// the workers, their cgroup, and every process that carries a token of the agent, until none is
// left (or two seconds have passed). It sleeps in `read` until then.
//
// Fork it early, while the agent is small: what the agent holds at that time, the guard keeps. It
// has a session of its own, blocks every signal, holds no descriptor of the agent's and is called
// "muster-guard".
//
// Owned by the agent's main function; not bound to a loop.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"

#include <cstddef>
#include <string_view>
#include <sys/types.h>

namespace muster::process {

namespace internal {
struct GuardTable;
}

inline constexpr std::size_t kGuardGroupCountMax = 4096;
inline constexpr std::size_t kGuardTextBytesMax = 4096;

class Guard {
 public:
  // Requires: this process has one thread.
  static Result<Guard> start();

  Guard(Guard&& other) noexcept;
  Guard& operator=(Guard&&) = delete;
  Guard(const Guard&) = delete;
  // Dismisses it.
  ~Guard();

  // What it will kill. The Host calls these; only `watch_cgroup` and what follows are for others. A
  // group more than kGuardGroupCountMax is ignored: the parent-death signal and the token cover it.
  void watch_token(std::string_view host_id);  // every token within it (proc.h)
  void adopt(pid_t group);
  void forget(pid_t group);
  void watch_cgroup(std::string_view folder);  // empty: none

  // What it will remove: a folder with all that is in it, and the empty folders in and below
  // another one. Empty: none.
  void watch_scratch(std::string_view folder);
  void watch_empty_folders(std::string_view folder);

  // Lets it end without killing anything, and waits for that. Harmless when repeated.
  void dismiss();

  pid_t pid() const { return pid_; }

 private:
  Guard(pid_t pid, Fd pipe, internal::GuardTable* table);

  pid_t pid_ = -1;
  Fd pipe_;
  internal::GuardTable* table_ = nullptr;  // shared with the guard
};

}  // namespace muster::process
