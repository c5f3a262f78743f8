// Where characters begin and end in UTF-8. Needs only the standard library: recorder.cpp is
// compiled into other people's programs.
#pragma once

#include <cstddef>
#include <string_view>

namespace muster::failures {

// Length in bytes of the UTF-8 sequence at the start of `text`; 0 if there is no valid one.
constexpr std::size_t utf8_sequence_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&text](std::size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;  // a continuation, an overlong form, or out of range
  const std::size_t bytes = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() < bytes) return 0;
  for (std::size_t index = 1; index < bytes; ++index)
    if ((byte(index) & 0xC0U) != 0x80U) return 0;
  const unsigned char second = byte(1);
  if (first == 0xE0 && second < 0xA0) return 0;  // overlong
  if (first == 0xED && second > 0x9F) return 0;  // a surrogate
  if (first == 0xF0 && second < 0x90) return 0;  // overlong
  if (first == 0xF4 && second > 0x8F) return 0;  // beyond U+10FFFF
  return bytes;
}

}  // namespace muster::failures
