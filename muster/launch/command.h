// Command: what is executed for each worker.
#pragma once

#include "muster/base/error.h"
#include "muster/launch/facts.h"
#include "muster/launch/options.h"

#include <string>
#include <string_view>
#include <vector>

namespace muster::launch {

struct Command {
  std::string executable = {};              // a path, or a name to be searched in PATH
  std::vector<std::string> arguments = {};  // behind the executable, macros not yet replaced
  bool python = false;                      // the executable is an interpreter of ours to choose
  // The title of the failure report: the script or module, else the executable as given.
  std::string display_name = {};

  friend bool operator==(const Command&, const Command&) = default;
};

// Chooses the interpreter: PYTHON_EXEC, else python3, else python from PATH. Invalid, saying what
// to do, if the program or the interpreter is not there or cannot be executed, and for flags that
// exclude one another.
Result<Command> make_command(const Options& options, const Facts& facts);

// The whole argument vector of one worker, executable included. `$local_rank` and `${local_rank}`
// are replaced in all arguments, `$$` becomes `$`, and all else stays as it is.
std::vector<std::string> arguments_of(const Command& command, int local_rank);
std::string replace_macros(std::string_view text, int local_rank);

// The last part of the executable's path, as events name it.
std::string entry_point_of(const Command& command);

// One line that a shell would read as this command.
std::string shell_line(const std::vector<std::string>& arguments);

}  // namespace muster::launch
