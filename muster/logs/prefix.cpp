#include "muster/logs/prefix.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <optional>

namespace muster::logs {
namespace {

bool begins_name(char letter) {
  return letter == '_' || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
}

bool continues_name(char letter) { return begins_name(letter) || (letter >= '0' && letter <= '9'); }

// The length of the name at the beginning of `text`; 0 if there is none.
std::size_t name_length(std::string_view text) {
  if (text.empty() || !begins_name(text[0])) return 0;
  std::size_t length = 1;
  while (length < text.size() && continues_name(text[length])) ++length;
  return length;
}

std::optional<std::string> value_of(std::string_view name, const PrefixFields& fields) {
  if (name == "role_name") return fields.role;
  if (name == "rank") return std::to_string(fields.rank);
  if (name == "local_rank") return std::to_string(fields.local_rank);
  if (name == "hostname") return fields.hostname;
  return std::nullopt;
}

// Appends what the reference at the beginning of `text`, a dollar sign, stands for. Returns how
// many bytes of `text` that was.
std::size_t expand_reference(std::string_view text, const PrefixFields& fields, std::string& out) {
  const std::string_view after_dollar = text.substr(1);
  if (after_dollar.starts_with('$')) {
    out.push_back('$');
    return 2;
  }
  const bool braced = after_dollar.starts_with('{');
  const std::string_view candidate = after_dollar.substr(braced ? 1 : 0);
  const std::size_t length = name_length(candidate);
  const bool closed = !braced || candidate.substr(length).starts_with('}');
  if (length > 0 && closed) {
    if (const auto value = value_of(candidate.substr(0, length), fields)) {
      out += *value;
      return 1 + length + (braced ? 2 : 0);
    }
  }
  out.push_back('$');
  return 1;
}

}  // namespace

std::string make_prefix(std::string_view prefix_template, const PrefixFields& fields) {
  if (prefix_template.empty()) return fmt::format("[{}{}]:", fields.role, fields.local_rank);
  std::string prefix;
  while (!prefix_template.empty()) {
    if (prefix_template[0] == '$') {
      prefix_template.remove_prefix(expand_reference(prefix_template, fields, prefix));
    } else {
      prefix.push_back(prefix_template[0]);
      prefix_template.remove_prefix(1);
    }
  }
  return prefix;
}

std::string in_colour(std::string_view prefix, int local_rank) {
  // Cyan, yellow, green, magenta, blue, and their bright ones. Red is left to errors.
  constexpr std::array kColours{36, 33, 32, 35, 34, 96, 93, 92, 95, 94};
  const std::size_t index = static_cast<std::size_t>(local_rank) % kColours.size();
  return fmt::format("\x1b[0;{}m{}\x1b[0m", kColours.at(index), prefix);
}

bool wants_colour(bool is_terminal, const char* no_color, const char* term) {
  if (!is_terminal) return false;
  if (no_color != nullptr && *no_color != '\0') return false;
  return term == nullptr || std::string_view(term) != "dumb";
}

std::string short_host_name(std::string_view host_name) {
  return std::string(host_name.substr(0, host_name.find('.')));
}

}  // namespace muster::logs
