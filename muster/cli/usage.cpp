#include "muster/cli/usage.h"

#include "muster/cli/exit_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace muster::cli {
namespace {

// How many letters must be changed, added or removed to get from one word to the other.
std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  for (std::size_t column = 0; column <= to.size(); ++column) row[column] = column;
  for (std::size_t line = 1; line <= from.size(); ++line) {
    std::size_t diagonal = row[0];
    row[0] = line;
    for (std::size_t column = 1; column <= to.size(); ++column) {
      const std::size_t changed = diagonal + (from[line - 1] == to[column - 1] ? 0 : 1);
      diagonal = row[column];
      row[column] = std::min({row[column] + 1, row[column - 1] + 1, changed});
    }
  }
  return row[to.size()];
}

// The name nearest to what was typed, or nothing if none is near.
std::string nearest(const std::string& typed, const std::vector<std::string>& names) {
  std::string best;
  std::size_t best_distance = typed.size() / 3 + 2;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(typed, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

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
