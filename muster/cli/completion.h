// Shell completion: `muster completion bash|zsh` prints a small script, which asks the program
// itself for candidates through the hidden `muster complete -- WORD…`. So the candidates are always
// those of the installed version.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

void add_completion_commands(CLI::App& program, int& exit_status);

}  // namespace muster::cli
