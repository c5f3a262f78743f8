#include "muster/rendezvous/parameters.h"

#include "muster/base/log.h"
#include "muster/rendezvous/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace muster::rendezvous {
namespace {

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

tl::unexpected<Error> refuse(std::string_view option, const Value& value, std::string_view wanted) {
  return fail(ErrorKind::Invalid, fmt::format("the rendezvous option {} must be {}, not {}", option,
                                              wanted, describe(value)));
}

std::optional<bool> bool_in(const std::string& text) {
  constexpr std::array<std::string_view, 5> kTrue = {"1", "true", "t", "yes", "y"};
  constexpr std::array<std::string_view, 5> kFalse = {"0", "false", "f", "no", "n"};
  const std::string word = lower_case(text);
  if (std::ranges::find(kTrue, word) != kTrue.end()) return true;
  if (std::ranges::find(kFalse, word) != kFalse.end()) return false;
  return std::nullopt;
}

std::optional<std::int64_t> int_in(std::string_view text) {
  text = trim(text);
  std::string digits;  // as from_chars wants them: without plus and underscores
  if (text.starts_with('-')) digits = "-";
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  bool after_digit = false;
  for (const char letter : text) {
    if (!is_digit(letter) && !(letter == '_' && after_digit)) return std::nullopt;
    after_digit = letter != '_';
    if (after_digit) digits += letter;
  }
  if (!after_digit) return std::nullopt;  // empty, or an underscore at the end
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::optional<std::int64_t> int_in(double number) {
  constexpr double kLimit = 0x1p63;  // the first that does not fit; its negative does
  const double whole = std::trunc(number);
  if (!(whole >= -kLimit && whole < kLimit)) return std::nullopt;  // NaN and infinities, too
  return static_cast<std::int64_t>(whole);
}

std::optional<Duration> duration_in(double seconds) {
  constexpr double kSecondsMax = 9e9;  // as parse_duration has it
  if (!(seconds >= 0 && seconds <= kSecondsMax)) return std::nullopt;
  return Duration(std::llround(seconds * 1e9));
}

}  // namespace

std::string describe(const Value& value) {
  if (value.is_null()) return "null";
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  if (const auto* number = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *number);
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  if (const auto* text = std::get_if<std::string>(&value)) return log::quote(*text);
  return "a " + std::get<OtherValue>(value).type;
}

Result<Parameters> Parameters::create(Parameters parameters) {
  if (parameters.backend.empty())
    return fail(ErrorKind::Invalid, "the rendezvous backend must not be empty");
  if (parameters.min_nodes < 1) {
    return fail(ErrorKind::Invalid,
                fmt::format("the minimum number of nodes must be at least 1, not {}",
                            parameters.min_nodes));
  }
  if (parameters.max_nodes < parameters.min_nodes) {
    return fail(ErrorKind::Invalid,
                fmt::format("the maximum number of nodes ({}) is less than the minimum ({})",
                            parameters.max_nodes, parameters.min_nodes));
  }
  return parameters;
}

Value Parameters::get(std::string_view option, Value otherwise) const {
  const auto found = config.find(option);
  if (found == config.end()) return otherwise;
  return found->second;
}

Result<std::optional<bool>> Parameters::get_as_bool(std::string_view option,
                                                    Value otherwise) const {
  const Value value = get(option, std::move(otherwise));
  if (value.is_null()) return std::nullopt;
  std::optional<bool> result;
  if (const auto* truth = std::get_if<bool>(&value)) result = *truth;
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    if (*number == 0 || *number == 1) result = *number == 1;
  }
  if (const auto* text = std::get_if<std::string>(&value)) result = bool_in(*text);
  if (!result) return refuse(option, value, "true or false");
  return result;
}

Result<std::optional<std::int64_t>> Parameters::get_as_int(std::string_view option,
                                                           Value otherwise) const {
  const Value value = get(option, std::move(otherwise));
  if (value.is_null()) return std::nullopt;
  std::optional<std::int64_t> result;
  if (const auto* truth = std::get_if<bool>(&value)) result = *truth ? 1 : 0;
  if (const auto* number = std::get_if<std::int64_t>(&value)) result = *number;
  if (const auto* number = std::get_if<double>(&value)) result = int_in(*number);
  if (const auto* text = std::get_if<std::string>(&value)) result = int_in(*text);
  if (!result) return refuse(option, value, "a whole number");
  return result;
}

Result<std::optional<std::string>> Parameters::get_as_string(std::string_view option,
                                                             Value otherwise) const {
  const Value value = get(option, std::move(otherwise));
  if (value.is_null()) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return refuse(option, value, "a string");
}

Result<std::optional<Duration>> Parameters::get_as_duration(std::string_view option,
                                                            Value otherwise) const {
  const Value value = get(option, std::move(otherwise));
  if (value.is_null()) return std::nullopt;
  std::optional<Duration> result;
  if (const auto* number = std::get_if<std::int64_t>(&value))
    result = duration_in(static_cast<double>(*number));
  if (const auto* number = std::get_if<double>(&value)) result = duration_in(*number);
  if (const auto* text = std::get_if<std::string>(&value)) {
    Duration length{};
    if (parse_duration(trim(*text), length) && length >= Duration::zero()) result = length;
  }
  if (!result) return refuse(option, value, "a length of time such as 0.5 (seconds) or 500ms");
  return result;
}

}  // namespace muster::rendezvous
