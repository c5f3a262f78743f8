// Was a worker killed because memory ran out? The kernel does not say so to the parent: all it sees
// is SIGKILL. It does count such kills, per cgroup and for the machine, so the counters are read
// when workers start and again when one was killed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster::failures {

// How many processes the kernel has killed for lack of memory so far; nothing: unknown here.
struct OutOfMemoryCounts {
  std::optional<std::uint64_t> group;    // in our cgroup and those below it
  std::optional<std::uint64_t> machine;  // everywhere

  friend bool operator==(const OutOfMemoryCounts&, const OutOfMemoryCounts&) = default;
};

struct OutOfMemorySources {
  // What /proc and /sys lie under; a test puts its own files there.
  std::string root = "/";
  // The cgroup that the workers run in, as a folder; empty: that of this process.
  std::string group_folder;
};

// Reads three small files. What cannot be read is unknown.
OutOfMemoryCounts read_out_of_memory_counts(const OutOfMemorySources& sources);

struct OutOfMemoryWindow {
  OutOfMemoryCounts before;
  OutOfMemoryCounts after;
};

// True if the worker died by SIGKILL (or is a shell that says so: 137) and a counter moved. The
// count of the group decides where it is known: others on this machine may run out of memory too.
bool ran_out_of_memory(int exit_code, const OutOfMemoryWindow& window);

}  // namespace muster::failures
