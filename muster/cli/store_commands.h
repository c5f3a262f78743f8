// `muster store …`: the server, and the commands that talk to one.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

// Adds the commands; the one that is chosen sets `exit_status` when the arguments have been parsed.
void add_store_commands(CLI::App& program, int& exit_status);

// `muster store serve`, in a file of its own.
void add_store_serve(CLI::App& store, int& exit_status);

}  // namespace muster::cli
