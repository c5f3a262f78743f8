#include "muster/failures/text.h"

#include "muster/failures/utf8.h"

#include <fmt/format.h>

#include <iterator>

namespace muster::failures {
namespace {

// The largest length <= `bytes` at which `text` can be cut without splitting a character.
std::size_t cut_before(std::string_view text, std::size_t bytes) {
  for (std::size_t back = 0; back < 4 && back < bytes; ++back) {
    const std::size_t at = bytes - back;
    if (at >= text.size() || (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U) return at;
  }
  return bytes;  // that many continuation bytes are no UTF-8: cut anywhere
}

}  // namespace

std::string keep_ends(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  const std::size_t head_bytes = cut_before(text, bytes_max / 2);
  const std::size_t tail_start = cut_before(text, text.size() - bytes_max / 2);
  return fmt::format("{}\n[... {} bytes left out ...]\n{}", text.substr(0, head_bytes),
                     tail_start - head_bytes, text.substr(tail_start));
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = utf8_sequence_bytes(text);
    const auto first = static_cast<unsigned char>(text.front());
    const bool is_control = (first < 0x20 && first != '\n' && first != '\t') || first == 0x7F;
    // U+0080..U+009F are control characters, too: terminals obey them.
    const bool is_late_control =
        bytes == 2 && first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
    const std::size_t taken = bytes == 0 ? 1 : bytes;
    if (bytes == 0 || is_control || is_late_control) {
      for (const char byte : text.substr(0, taken))
        fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(byte));
    } else {
      out += text.substr(0, taken);
    }
    text.remove_prefix(taken);
  }
  return out;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = utf8_sequence_bytes(text);
    if (bytes == 0) {
      out += "\xEF\xBF\xBD";
      text.remove_prefix(1);
    } else {
      out += text.substr(0, bytes);
      text.remove_prefix(bytes);
    }
  }
  return out;
}

std::size_t character_count(std::string_view text) {
  std::size_t count = 0;
  while (!text.empty()) {
    const std::size_t bytes = utf8_sequence_bytes(text);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
    ++count;
  }
  return count;
}

}  // namespace muster::failures
