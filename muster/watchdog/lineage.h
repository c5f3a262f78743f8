// Which processes come from a worker: what /proc says about parents and environments.
//
// A worker's helper may have another parent by now (its own ended, and the agent adopted it), so
// there are two traces to follow: the chain of parents, and the environment that every process
// inherits from its worker. Both are read anew at every call.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace muster::watchdog {

// How far a chain of parents is followed.
inline constexpr int kAncestorsMax = 128;

// Nothing if the process has ended, or cannot be seen.
std::optional<pid_t> parent_of(pid_t pid);

// The process itself or its nearest ancestor for which `accepts` is true. Does not look beyond
// `root`, usually the agent itself, which is never the answer.
std::optional<pid_t> nearest_ancestor(pid_t pid, pid_t root,
                                      const std::function<bool(pid_t)>& accepts);

// A variable of the environment that the process began with; nothing if it has none of that name,
// has ended, or belongs to someone else.
std::optional<std::string> environment_of(pid_t pid, std::string_view name);

// Takes the parent out of the content of /proc/PID/stat. Pure; the program's name in it may
// contain anything, parentheses and spaces too.
std::optional<pid_t> parse_parent(std::string_view stat);

}  // namespace muster::watchdog
