// Cgroup: a cgroup (version 2) of our own for the workers of one round, where the system lets us
// have one.
//
// It catches every descendant, whatever it does to its environment, session or parent, and ends all
// of them with one write. It is a second net and never a condition: without it, process groups and
// tokens do the work.
//
// A value that moves; removing the folder is part of its end. Not bound to a loop.
#pragma once

#include "muster/base/error.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster::process {

// Where the cgroup of this process is, read from the files of /proc. Pure.
struct CgroupPlace {
  std::string folder;  // our own cgroup; empty: no version 2 hierarchy
};
CgroupPlace find_cgroup(std::string_view mountinfo, std::string_view cgroup);
// Likewise the folder of the memory controller of version 1; empty when there is none.
std::string find_memory_cgroup_v1(std::string_view mountinfo, std::string_view cgroup);

class Cgroup {
 public:
  // Makes `<our own cgroup>/<name>`. The error says why there is none; it is for the debug log.
  static Result<Cgroup> create(const std::string& name);

  Cgroup(Cgroup&& other) noexcept;
  Cgroup& operator=(Cgroup&& other) noexcept;
  Cgroup(const Cgroup&) = delete;
  // Kills what is in it and removes it; waits for that, but not for long.
  ~Cgroup();

  // For Command::cgroup and Guard::watch_cgroup.
  const std::string& folder() const { return folder_; }

  // SIGKILL for everything in it, at once and including what is being forked. False when the kernel
  // cannot (before 5.14).
  bool kill();
  bool is_populated() const;

 private:
  explicit Cgroup(std::string folder) : folder_(std::move(folder)) {}
  void remove();

  std::string folder_;
};

// How many processes the kernel has killed for want of memory: in `folder` (a Cgroup) if it counts
// there, else in our own cgroup of version 2 or 1. Nothing when nobody counts. A worker that was
// ended by SIGKILL while this number grew has most likely been such a victim.
std::optional<std::uint64_t> oom_kill_count(const std::string& folder);

// Pure: the number after `key ` at the beginning of a line, as in memory.events.
std::optional<std::uint64_t> read_counter(std::string_view text, std::string_view key);

}  // namespace muster::process
