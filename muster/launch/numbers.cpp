#include "muster/launch/numbers.h"

#include "muster/rendezvous/text.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <string>

namespace muster::launch {
namespace {

using rendezvous::trim;

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

// Without underscores; nothing if one is not between two digits.
std::optional<std::string> drop_underscores(std::string_view text) {
  std::string plain;
  for (std::size_t index = 0; index < text.size(); ++index) {
    if (text[index] != '_') {
      plain += text[index];
      continue;
    }
    const bool between = index > 0 && index + 1 < text.size() && is_digit(text[index - 1]) &&
                         is_digit(text[index + 1]);
    if (!between) return std::nullopt;
  }
  return plain;
}

template <typename T>
std::optional<T> read_number(std::string_view text) {
  const auto plain = drop_underscores(trim(text));
  if (!plain) return std::nullopt;
  std::string_view digits = *plain;
  // from_chars takes a minus, but no plus.
  if (digits.starts_with('+')) {
    digits.remove_prefix(1);
    if (digits.starts_with('-')) return std::nullopt;
  }
  T number{};
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, number);
  if (digits.empty() || error != std::errc() || stopped != end) return std::nullopt;
  return number;
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
  return read_number<std::int64_t>(text);
}

std::optional<double> parse_decimal(std::string_view text) {
  const auto number = read_number<double>(text);
  if (!number || !std::isfinite(*number)) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  text = trim(text);
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit(stopped, static_cast<std::size_t>(end - stopped));
  if (unit.empty()) return number;
  if (unit.size() == 3 && unit.ends_with("iB")) unit.remove_suffix(2);
  constexpr std::string_view kUnits = "KMGT";
  const std::size_t found = kUnits.find(unit[0]);
  if (unit.size() != 1 || found == std::string_view::npos) return std::nullopt;
  const auto shift = static_cast<unsigned>(10 * (found + 1));
  if (number > (std::numeric_limits<std::uint64_t>::max() >> shift)) return std::nullopt;
  return number << shift;
}

}  // namespace muster::launch
