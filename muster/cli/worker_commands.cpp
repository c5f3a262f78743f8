#include "muster/cli/worker_commands.h"

#include "muster/cli/arguments.h"
#include "muster/cli/exit_status.h"
#include "muster/watchdog/socket.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace muster::cli {
namespace {

struct TellOptions {
  std::string path;
  Duration timeout = std::chrono::seconds(5);
  std::vector<std::string> words;
};

int tell(const TellOptions& options, const std::string& line) {
  std::string path = options.path;
  if (path.empty()) {
    const char* variable = std::getenv(watchdog::kAgentSocketVariable);
    path = variable == nullptr ? "" : variable;
  }
  if (path.empty()) {
    fmt::print(stderr,
               "muster: {} is not set: this is for programs that `muster run` has started\n",
               watchdog::kAgentSocketVariable);
    return kExitUsage;
  }
  const auto told = watchdog::tell_agent(path, line, options.timeout);
  if (told) return kExitOk;
  fmt::print(stderr, "muster: {}\n", told.error().message);
  return exit_status_of(told.error().kind);
}

CLI::App* add_command(CLI::App& program, const std::string& name, const std::string& about,
                      const std::shared_ptr<TellOptions>& options) {
  CLI::App* command = program.add_subcommand(name, about);
  command->add_option("--socket", options->path,
                      "the agent's socket; default: the variable MUSTER_AGENT_SOCKET");
  add_duration(*command, "--timeout", options->timeout, "how long to wait for the answer");
  return command;
}

}  // namespace

void add_worker_commands(CLI::App& program, int& exit_status) {
  const auto options = std::make_shared<TellOptions>();
  add_command(program, "alive", "tell the agent that this worker makes progress", options)
      ->callback([options, &exit_status] { exit_status = tell(*options, "alive"); });
  add_command(program, "ready", "tell the agent that this worker has started", options)
      ->callback([options, &exit_status] { exit_status = tell(*options, "ready"); });
  CLI::App* any = add_command(program, "tell",
                              "tell the agent: status TEXT, expires SCOPE SECONDS [SIGNAL], "
                              "release SCOPE, alive, ready",
                              options);
  any->add_option("WORDS", options->words, "the message")->required();
  any->callback([options, &exit_status] {
    exit_status = tell(*options, fmt::format("{}", fmt::join(options->words, " ")));
  });
}

}  // namespace muster::cli
