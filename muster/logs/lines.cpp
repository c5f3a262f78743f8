#include "muster/logs/lines.h"

namespace muster::logs {
namespace {

// How many bytes a character has that begins with `byte`; 0 if none begins with it.
std::size_t character_bytes(unsigned char byte) {
  if (byte < 0x80) return 1;
  if (byte >= 0xC2 && byte <= 0xDF) return 2;
  if (byte >= 0xE0 && byte <= 0xEF) return 3;
  if (byte >= 0xF0 && byte <= 0xF4) return 4;
  return 0;
}

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

}  // namespace

std::size_t whole_characters(std::string_view text) {
  std::size_t tail = 0;  // bytes from the beginning of the last character on
  while (tail < 4 && tail < text.size()) {
    ++tail;
    const auto byte = static_cast<unsigned char>(text[text.size() - tail]);
    if (is_continuation(byte)) continue;
    const bool is_cut = character_bytes(byte) > tail;
    return is_cut && tail < text.size() ? text.size() - tail : text.size();
  }
  return text.size();
}

std::optional<TimePoint> LineSplitter::next_deadline() const {
  if (held_.empty()) return std::nullopt;
  return after(held_since_, options_.hold);
}

}  // namespace muster::logs
