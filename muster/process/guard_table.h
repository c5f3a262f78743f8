// What the agent tells its guard, in memory that both of them see. Only for guard.cpp and
// guard_duty.cpp.
#pragma once

#include "muster/process/guard.h"
#include "muster/process/proc.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace muster::process::internal {

static_assert(std::atomic<std::size_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// A text that one process writes and another one reads. The length comes last and goes first, so
// that a writer that dies in between leaves an empty text and not half of one.
struct SharedText {
  std::atomic<std::size_t> bytes = 0;
  std::array<char, kGuardTextBytesMax> text{};

  void set(std::string_view value) {
    bytes.store(0, std::memory_order_seq_cst);
    if (value.size() >= text.size()) return;
    std::copy(value.begin(), value.end(), text.begin());
    bytes.store(value.size(), std::memory_order_seq_cst);
  }
  std::string_view get() const { return {text.data(), bytes.load(std::memory_order_seq_cst)}; }
};

struct GuardTable {
  SharedText token;
  SharedText cgroup;
  SharedText scratch;
  SharedText logs;
  std::atomic<std::uint64_t> passed_on = 0;  // bit N-1: signal N, also if it belongs to job control
};

// The guard's life, with all signals blocked and this process a sub-reaper. `strangers` are
// children that it had before there was an agent.
[[noreturn]] void guard(pid_t agent, const GuardTable& table, const std::vector<Stat>& strangers);

}  // namespace muster::process::internal
