// `muster alive`, `muster ready`, `muster tell`: what a worker in any language, a shell script
// above all, has to say to the agent that started it.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

// Adds the commands; the one that is chosen sets `exit_status` when the arguments have been parsed.
void add_worker_commands(CLI::App& program, int& exit_status);

}  // namespace muster::cli
