#include "muster/cli/arguments.h"

#include <charconv>

namespace muster::cli {

bool parse_size(std::string_view text, std::size_t& out) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (unit.ends_with("iB")) unit.remove_suffix(2);
  constexpr std::string_view kUnits = "KMGT";
  unsigned shift = 0;
  if (!unit.empty()) {
    const std::size_t found = kUnits.find(unit[0]);
    if (found == std::string_view::npos || unit.size() != 1) return false;
    shift = static_cast<unsigned>(10 * (found + 1));
  }
  if (number > (static_cast<std::size_t>(-1) >> shift)) return false;
  out = number << shift;
  return true;
}

CLI::Option* add_size(CLI::App& command, const std::string& name, std::size_t& target,
                      const std::string& description) {
  CLI::Option* option = command.add_option_function<std::string>(
      name,
      [&target, name](const std::string& text) {
        if (!parse_size(text, target))
          throw CLI::ValidationError(name, "'" + text + "' is not a size like 512M or 4G");
      },
      description);
  return option->type_name("SIZE");
}

CLI::Option* add_duration(CLI::App& command, const std::string& name, Duration& target,
                          const std::string& description) {
  CLI::Option* option = command.add_option_function<std::string>(
      name,
      [&target, name](const std::string& text) {
        if (!parse_duration(text, target)) {
          throw CLI::ValidationError(
              name, "'" + text + "' is not a duration like 500ms, 5s or 2m (-1: for ever)");
        }
      },
      description);
  return option->type_name("DURATION")->default_str(describe(target));
}

}  // namespace muster::cli
