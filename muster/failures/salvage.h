// Reads what can be read of a JSON object that may be damaged. Pure.
//
// Error files are written by processes that are about to die, in any language, sometimes by a shell
// script: they end in the middle, carry raw newlines inside strings, lone surrogates, NaN. A strict
// parser gives nothing for those; this one reports every value until the text ends or stops making
// sense. It accepts all valid JSON.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::failures {

// Objects and arrays nested deeper than this stop the reading.
inline constexpr std::size_t kSalvageDepthMax = 32;

enum class ValueKind {
  Text,       // a string; what there was of it, if the text ended inside
  Scalar,     // a number, true, false, NaN, ...: as it was written
  Null,       // null
  Container,  // an object or array begins; its members follow
};

// `path` holds the names of the members that lead to the value; an element of an array has an empty
// name.
using ValueSink = std::function<void(const std::vector<std::string>& path, ValueKind kind,
                                     std::string_view value)>;

// Calls `sink` for every value in order. The answer is empty if the text was one complete object;
// else it says what is wrong and where: "ends too early at byte 17".
std::string salvage_json(std::string_view text, const ValueSink& sink);

}  // namespace muster::failures
