// Small helpers for what people type. ASCII only, whatever the locale.
#pragma once

#include <string>
#include <string_view>

namespace muster::rendezvous {

// `text` without white space at its ends.
constexpr std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  const std::size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

inline std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& letter : result) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return result;
}

}  // namespace muster::rendezvous
