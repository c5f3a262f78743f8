#include "muster/observe/json.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <iterator>

namespace muster::observe {
namespace {

constexpr char32_t kReplacement = 0xfffd;

// Takes one code point from the front of `text`; a byte that begins no valid sequence (overlong,
// surrogate, too large, cut off) is taken alone and gives the replacement character.
char32_t take_code_point(std::string_view& text) {
  const auto byte = [&](std::size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned char first = byte(0);
  std::size_t length = 1;
  char32_t point = first;
  char32_t smallest = 0;
  if (first >= 0xf0 && first < 0xf8) {
    length = 4;
    point = first & 0x07U;
    smallest = 0x10000;
  } else if (first >= 0xe0 && first < 0xf0) {
    length = 3;
    point = first & 0x0fU;
    smallest = 0x800;
  } else if (first >= 0xc0 && first < 0xe0) {
    length = 2;
    point = first & 0x1fU;
    smallest = 0x80;
  } else if (first >= 0x80) {
    point = kReplacement;
  }
  bool valid = length <= text.size();
  for (std::size_t index = 1; valid && index < length; ++index) {
    valid = (byte(index) & 0xc0U) == 0x80U;
    point = (point << 6U) | (byte(index) & 0x3fU);
  }
  if (point < smallest || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) valid = false;
  text.remove_prefix(valid ? length : 1);
  return valid ? point : kReplacement;
}

void append_escaped(std::string& out, char32_t point) {
  const auto unit = [&](char32_t value) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(value));
  };
  switch (point) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      break;
  }
  if (point >= 0x20 && point < 0x7f) {
    out += static_cast<char>(point);
  } else if (point < 0x10000) {
    unit(point);
  } else {
    unit(0xd800 + ((point - 0x10000) >> 10U));
    unit(0xdc00 + ((point - 0x10000) & 0x3ffU));
  }
}

void append_utf8(std::string& out, char32_t point) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xc0U | (point >> 6U));
    put(0x80U | (point & 0x3fU));
  } else if (point < 0x10000) {
    put(0xe0U | (point >> 12U));
    put(0x80U | ((point >> 6U) & 0x3fU));
    put(0x80U | (point & 0x3fU));
  } else {
    put(0xf0U | (point >> 18U));
    put(0x80U | ((point >> 12U) & 0x3fU));
    put(0x80U | ((point >> 6U) & 0x3fU));
    put(0x80U | (point & 0x3fU));
  }
}

}  // namespace

void JsonWriter::before_value() {
  if (needs_comma_) out_ += ", ";
  needs_comma_ = true;
}

JsonWriter& JsonWriter::begin_object() {
  before_value();
  out_ += '{';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::end_object() {
  out_ += '}';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::begin_array() {
  before_value();
  out_ += '[';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::end_array() {
  out_ += ']';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  text(name);
  out_ += ": ";
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::null() { return raw("null"); }
JsonWriter& JsonWriter::boolean(bool value) { return raw(value ? "true" : "false"); }
JsonWriter& JsonWriter::integer(std::int64_t value) { return raw(fmt::to_string(value)); }

JsonWriter& JsonWriter::number(double value) {
  if (!std::isfinite(value)) return null();
  std::string digits = fmt::format("{}", value);
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return raw(digits);
}

JsonWriter& JsonWriter::text(std::string_view value) {
  before_value();
  out_ += '"';
  while (!value.empty()) append_escaped(out_, take_code_point(value));
  out_ += '"';
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  before_value();
  out_ += json;
  return *this;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) append_utf8(out, take_code_point(text));
  return out;
}

}  // namespace muster::observe
