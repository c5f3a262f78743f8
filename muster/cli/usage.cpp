#include "muster/cli/usage.h"

#include "muster/base/suggest.h"
#include "muster/cli/exit_status.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace muster::cli {
namespace {

std::vector<std::string> command_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* next : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (!next->get_group().empty()) names.push_back(next->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace

int report_usage(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App* command = &program;
  std::string path = program.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += " " + command->get_name();
  }
  const std::vector<std::string> extra = command->remaining();
  std::string message = error.what();
  if (!extra.empty()) {
    const std::string& word = extra.front();
    const bool is_option = word.starts_with('-');
    const auto names = is_option ? option_names(*command) : command_names(*command);
    if (is_option) {
      message = fmt::format("`{}` has no option {}", path, word);
    } else if (!names.empty()) {
      message = fmt::format("`{}` has no command {}", path, word);
    } else {
      message = fmt::format("`{}` takes no further argument: {}", path, word);
    }
    const std::string suggestion = nearest(word, names);
    if (!suggestion.empty()) message += fmt::format("; did you mean {}?", suggestion);
  }
  fmt::print(stderr, "muster: {}\nTry `{} --help`.\n", message, path);
  return kExitUsage;
}

}  // namespace muster::cli
