// What is started (Command), how it ended (Exit), and the handle to it in between (Process).
#pragma once

#include "muster/base/clock.h"
#include "muster/process/placement.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace muster::process {

class Host;
namespace internal {
struct Record;
}

// Every worker carries this variable, and so does whatever it starts: it is how the descendants of
// a worker are known after they have left its process group. Set by `Host::start`.
inline constexpr std::string_view kTokenVariable = "MUSTER_WORKER_TOKEN";

struct Command {
  // A path (relative to `folder`), or a name without a slash that is searched in the PATH of
  // `environment`.
  std::string executable;
  std::vector<std::string> arguments;    // the whole argv, [0] included
  std::vector<std::string> environment;  // "NAME=value", complete; a token in it is replaced
  std::string folder;                    // empty: inherited
  // Become 0, 1 and 2; -1: inherited. They stay the caller's, who closes them after the start.
  int input = -1;
  int output = -1;
  int error = -1;
  Placement placement;
  std::string cgroup;  // the folder of a Cgroup (cgroup.h); empty: none
};

struct Exit {
  int code = 0;  // >= 0: the exit status; < 0: minus the signal that ended it
  bool core_dumped = false;
  TimePoint when;                     // when we saw it
  std::int64_t wall_nanoseconds = 0;  // likewise, since 1970
  // Counts all exits of one Host, from 1, in the order in which the kernel told them.
  std::uint64_t order = 0;

  bool succeeded() const { return code == 0; }
};

// A started process: leader of its own session and process group. Owned by whoever started it;
// lives on its host's loop and does not outlive the host. Destroying it while it runs kills its
// whole group with SIGKILL, and nobody is told of its end any more.
class Process {
 public:
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Also the id of its process group and session.
  pid_t pid() const;
  const std::string& token() const;
  // Turns false in the turn in which `exited` is called.
  bool is_running() const { return !exit(); }
  const std::optional<Exit>& exit() const;
  // Sends `number` to its whole process group. False when it has ended and nothing was sent.
  bool signal(int number);

 private:
  friend class Host;
  Process(Host& host, std::unique_ptr<internal::Record> record);
  Host& host_;
  std::unique_ptr<internal::Record> record_;
};

// "exited with status 3", "was ended by SIGKILL (9)", with ", core dumped".
std::string describe(const Exit& exit);

}  // namespace muster::process
