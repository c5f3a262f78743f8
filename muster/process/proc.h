// What /proc tells about processes: who descends from whom, who carries which token, where one
// hangs.
//
// Everything here may be outdated when it is read; a process is therefore named by its id and its
// start time, and `signal_exactly` signals only that one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <unordered_set>
#include <vector>

namespace muster::process {

struct Stat {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  char state = '?';              // R, S, D, T, t, Z, X, I as in ps(1)
  std::uint64_t start_time = 0;  // clock ticks since boot
  std::string name;              // at most 15 bytes, anything in it
  bool is_kernel_thread = false;
  // Where its environment lies in memory. Both are 0 when we may not look, and in the middle of an
  // exec: the old memory is gone by then and the new one has not been filled yet.
  std::uint64_t environment_begin = 0;
  std::uint64_t environment_end = 0;

  bool is_dead() const { return state == 'Z' || state == 'X'; }
};

// Pure: one line of /proc/PID/stat. The name may contain blanks and parentheses.
std::optional<Stat> parse_stat(std::string_view line);

// Nothing when there is no such process.
std::optional<Stat> read_stat(pid_t pid);

// Pure: the value of `name` in the bytes of an environ file; empty when it is not there.
std::string_view find_variable(std::string_view environment, std::string_view name);

// Pure: whether `token` is `ancestor` or was given out below it. "a.1" and "a.1/b.2" are within
// "a.1", and "a.1" is within the host "a"; "a.10" is not within "a.1".
bool is_within(std::string_view token, std::string_view ancestor);

// The token that the process was started with; empty when it has none or we may not look. Nothing
// when it cannot be told just now, since the process is in the middle of an exec or of its end:
// look again.
std::optional<std::string> token_of(pid_t pid);

// All process ids, in no order.
std::vector<pid_t> all_processes();

// A descendant of ours, together with its token (its own, or that of its nearest ancestor with
// one).
struct Member {
  Stat stat;
  std::string token;
  // In the middle of an exec or of its end, and no ancestor has a token: it may turn out to have
  // one.
  bool token_unknown = false;
};

// The descendants of this process, parents before children, without those in `except` and what
// descends from them. Dead ones are left out.
std::vector<Member> descendants(const std::unordered_set<pid_t>& except);

// Sends `number` to the process if it still is the same one. False when it has gone (or we may
// not).
bool signal_exactly(const Stat& process, int number);

// A process that SIGKILL did not end in time.
struct Stuck {
  pid_t pid = 0;
  std::string name;
  char state = '?';
  std::string where;  // the kernel functions it waits in, innermost first; empty if unknown
};

// Looks at it now; nothing when it has ended meanwhile.
std::optional<Stuck> look_at_stuck(pid_t pid);

// `process 4711 (python3) does not end after SIGKILL: state D (waits in the kernel), in
// nfs_wait_bit_killable < ...`
std::string describe(const Stuck& stuck);

}  // namespace muster::process
