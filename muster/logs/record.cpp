#include "muster/logs/record.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

namespace muster::logs {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// The length of the valid UTF-8 character at the beginning of `text`, which is not ASCII; 0 if
// there is none. Overlong forms, surrogates and what is above U+10FFFF are not valid.
std::size_t valid_character(std::string_view text) {
  const auto byte = [&](std::size_t index) {
    return index < text.size() ? static_cast<unsigned char>(text[index]) : 0U;
  };
  const auto continues = [&](std::size_t index) { return (byte(index) & 0xC0) == 0x80; };
  const unsigned first = byte(0);
  if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (first == 0xE0 && byte(1) < 0xA0) return 0;
    if (first == 0xED && byte(1) > 0x9F) return 0;
    return continues(1) && continues(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (first == 0xF0 && byte(1) < 0x90) return 0;
    if (first == 0xF4 && byte(1) > 0x8F) return 0;
    return continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

bool is_plain(char letter) {
  const auto byte = static_cast<unsigned char>(letter);
  return byte >= 0x20 && byte < 0x7F && letter != '"' && letter != '\\';
}

void append_control(std::string& out, char letter) {
  switch (letter) {
    case '"':
      out += "\\\"";
      break;
    case '\\':
      out += "\\\\";
      break;
    case '\n':
      out += "\\n";
      break;
    case '\r':
      out += "\\r";
      break;
    case '\t':
      out += "\\t";
      break;
    default:
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(letter));
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out.push_back('"');
  std::size_t index = 0;
  while (index < text.size()) {
    std::size_t end = index;
    while (end < text.size() && is_plain(text[end])) ++end;
    out.append(text, index, end - index);
    index = end;
    if (index == text.size()) break;
    if (static_cast<unsigned char>(text[index]) < 0x80) {
      append_control(out, text[index]);
      ++index;
    } else if (const std::size_t length = valid_character(text.substr(index)); length > 0) {
      out.append(text, index, length);
      index += length;
    } else {
      out += kReplacement;
      ++index;
    }
  }
  out.push_back('"');
}

LineFormat LineFormat::text(std::string prefix) {
  LineFormat format;
  format.head_ = std::move(prefix);
  return format;
}

LineFormat LineFormat::json(const LineOrigin& origin) {
  LineFormat format;
  format.is_json_ = true;
  format.head_ =
      fmt::format(R"(","rank":{},"local_rank":{},"role":)", origin.rank, origin.local_rank);
  append_json_string(format.head_, origin.role);
  format.head_ +=
      fmt::format(R"(,"stream":"{}","round":{},"line":)", name_of(origin.stream), origin.round);
  return format;
}

void LineFormat::append(std::string& out, const Line& line, std::string_view time) const {
  if (is_json_) {
    out += R"({"time":")";
    out += time;
    out += head_;
    append_json_string(out, line.text);
    if (line.resumed) out += R"(,"resumed":true)";
    if (line.unfinished) out += R"(,"unfinished":true)";
    out += "}\n";
    return;
  }
  out += head_;
  if (line.resumed) out += kResumedMarker;
  out += line.text;
  if (line.unfinished) out += kUnfinishedMarker;
  out.push_back('\n');
}

void append_agent_json(std::string& out, Stream stream, std::string_view text,
                       std::string_view time) {
  out += fmt::format(R"({{"time":"{}","stream":"{}","line":)", time, name_of(stream));
  append_json_string(out, text);
  out += "}\n";
}

}  // namespace muster::logs
