// `muster rendezvous show|watch|close`: looking at a run from outside, and ending it.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

// Adds the commands; the one that is chosen sets `exit_status` when the arguments have been parsed.
void add_rendezvous_commands(CLI::App& program, int& exit_status);

}  // namespace muster::cli
