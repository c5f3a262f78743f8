// The `muster` program. This folder is the only place that parses arguments and builds the objects.

#include "muster/cli/completion.h"
#include "muster/cli/exit_status.h"
#include "muster/cli/rendezvous_commands.h"
#include "muster/cli/run_command.h"
#include "muster/cli/store_commands.h"
#include "muster/cli/usage.h"
#include "muster/cli/worker_commands.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <signal.h>
#include <string>
#include <string_view>
#include <vector>

namespace {

using muster::launch::Style;

// `muster run …`, and every call under the name torchrun, parse their words themselves: what comes
// after the program is the program's.
int launch(int count, char** words, int first, Style style) {
  const std::vector<std::string> rest(words + first, words + count);
  return muster::cli::run_command(rest, style);
}

int run(int count, char** words) {
  if (count > 0 && muster::launch::style_of(words[0]) == Style::Torchrun) {
    return launch(count, words, 1, Style::Torchrun);
  }
  if (count > 1 && std::string_view(words[1]) == "run") {
    return launch(count, words, 2, Style::Muster);
  }
  CLI::App program("Muster gathers processes on many machines into one job.", "muster");
  program.set_version_flag("--version", std::string("muster ") + MUSTER_VERSION);
  program.require_subcommand(1);
  program.get_formatter()->column_width(36);
  int exit_status = muster::cli::kExitOk;
  program.add_subcommand("run", "launch a program as the workers of an elastic job");
  muster::cli::add_store_commands(program, exit_status);
  muster::cli::add_rendezvous_commands(program, exit_status);
  muster::cli::add_worker_commands(program, exit_status);
  muster::cli::add_completion_commands(program, exit_status);
  try {
    program.parse(count, words);
  } catch (const CLI::Success& help) {
    return program.exit(help);
  } catch (const CLI::ParseError& error) {
    return muster::cli::report_usage(program, error);
  }
  // Output that could not be written (a full disk, a closed pipe) must not look like success.
  if (std::fflush(stdout) != 0 && exit_status == muster::cli::kExitOk)
    exit_status = muster::cli::kExitFailed;
  return exit_status;
}

}  // namespace

int main(int count, char** words) {
  ::signal(SIGPIPE, SIG_IGN);
  try {
    return run(count, words);
  } catch (const std::exception& error) {
    fmt::print(stderr, "muster: {}\n", error.what());
    return muster::cli::kExitFailed;
  }
}
