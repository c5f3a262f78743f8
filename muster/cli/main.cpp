// The `muster` program. This folder is the only place that parses arguments and builds the objects.

#include "muster/cli/completion.h"
#include "muster/cli/exit_status.h"
#include "muster/cli/rendezvous_commands.h"
#include "muster/cli/store_commands.h"
#include "muster/cli/usage.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <signal.h>

namespace {

int run(int count, char** words) {
  CLI::App program("Muster gathers processes on many machines into one job.", "muster");
  program.set_version_flag("--version", std::string("muster ") + MUSTER_VERSION);
  program.require_subcommand(1);
  program.get_formatter()->column_width(36);
  int exit_status = muster::cli::kExitOk;
  muster::cli::add_store_commands(program, exit_status);
  muster::cli::add_rendezvous_commands(program, exit_status);
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
