#include "muster/failures/salvage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace muster::failures {
namespace {

constexpr std::uint32_t kReplacement = 0xFFFD;

bool is_space(char byte) { return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r'; }

void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

class Reader {
 public:
  Reader(std::string_view text, const ValueSink& sink) : text_(text), sink_(sink) {}

  std::string read() {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;  // a byte order mark
    skip_space();
    if (at_ < text_.size() && text_[at_] != '{') return "is not a JSON object";
    if (read_value() && at_ < text_.size()) {
      skip_space();
      if (at_ < text_.size()) stop("has something after its end");
    }
    return std::move(problem_);
  }

 private:
  // Every read_... answers whether reading can go on.
  bool stop(std::string_view what) {
    problem_ = fmt::format("{} at byte {}", what, at_);
    return false;
  }
  bool stop_here() { return stop(at_ < text_.size() ? "makes no sense" : "ends too early"); }
  bool stop_at_end() {
    at_ = text_.size();
    return stop_here();
  }

  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  bool take(char byte) {
    if (at_ >= text_.size() || text_[at_] != byte) return false;
    ++at_;
    return true;
  }

  bool read_value() {
    skip_space();
    if (at_ >= text_.size()) return stop_here();
    switch (text_[at_]) {
      case '{':
        return read_container('}');
      case '[':
        return read_container(']');
      case '"': {
        std::string value;
        const bool is_whole = read_string(value);
        sink_(path_, ValueKind::Text, value);
        return is_whole;
      }
      default:
        return read_word();
    }
  }

  bool read_container(char end) {
    if (path_.size() >= kSalvageDepthMax) return stop("is nested too deeply");
    sink_(path_, ValueKind::Container, text_.substr(at_, 1));
    ++at_;
    skip_space();
    if (take(end)) return true;
    while (true) {
      std::string name;
      if (end == '}' && !read_name(name)) return false;
      path_.push_back(std::move(name));
      if (!read_value()) return false;
      path_.pop_back();
      skip_space();
      if (take(end)) return true;
      if (!take(',')) return stop_here();
    }
  }

  bool read_name(std::string& name) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != '"') return stop_here();
    if (!read_string(name)) return false;
    skip_space();
    return take(':') || stop_here();
  }

  // A number or a bare word. One that touches the end of the text may be a part of a longer one.
  bool read_word() {
    const std::size_t start = at_;
    while (at_ < text_.size()) {
      const char byte = text_[at_];
      const bool belongs = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
                           (byte >= 'A' && byte <= 'Z') || byte == '+' || byte == '-' ||
                           byte == '.';
      if (!belongs) break;
      ++at_;
    }
    if (at_ == start || at_ == text_.size()) return stop_here();
    const std::string_view word = text_.substr(start, at_ - start);
    sink_(path_, word == "null" ? ValueKind::Null : ValueKind::Scalar, word);
    return true;
  }

  // Requires: at a quote. `out` gets what there is, also when the text ends inside.
  bool read_string(std::string& out) {
    ++at_;
    while (true) {
      const std::size_t special = text_.find_first_of("\"\\", at_);
      const std::size_t plain_end = special == std::string_view::npos ? text_.size() : special;
      out += text_.substr(at_, plain_end - at_);
      at_ = plain_end;
      if (at_ >= text_.size()) return stop_here();
      if (take('"')) return true;
      if (!read_escape(out)) return false;
    }
  }

  // Requires: at a backslash.
  bool read_escape(std::string& out) {
    if (at_ + 1 >= text_.size()) return stop_at_end();
    const char letter = text_[at_ + 1];
    if (letter == 'u') return read_unicode(out);
    constexpr std::string_view kLetters = "bfnrt";
    constexpr std::string_view kMeanings = "\b\f\n\r\t";
    const std::size_t index = kLetters.find(letter);
    // An unknown escape stands for itself: somebody forgot to double a backslash.
    if (index != std::string_view::npos) {
      out += kMeanings[index];
    } else {
      if (letter != '"' && letter != '\\' && letter != '/') out += '\\';
      out += letter;
    }
    at_ += 2;
    return true;
  }

  // \uXXXX at `position`; nothing if it is not there.
  std::optional<std::uint32_t> unicode_at(std::size_t position) const {
    const std::string_view escape = text_.substr(std::min(position, text_.size()), 6);
    if (escape.size() < 6 || escape[0] != '\\' || escape[1] != 'u') return std::nullopt;
    std::uint32_t code = 0;
    for (const char digit : escape.substr(2)) {
      const std::size_t value =
          std::string_view("0123456789abcdef").find(static_cast<char>(digit | 0x20));
      if (value == std::string_view::npos) return std::nullopt;
      code = code * 16 + static_cast<std::uint32_t>(value);
    }
    return code;
  }

  bool read_unicode(std::string& out) {
    const std::optional<std::uint32_t> first = unicode_at(at_);
    if (!first) {
      if (text_.size() - at_ < 6) return stop_at_end();
      out += "\\u";
      at_ += 2;
      return true;
    }
    at_ += 6;
    std::uint32_t code = *first;
    if (code >= 0xD800 && code < 0xDC00) {
      const std::optional<std::uint32_t> second = unicode_at(at_);
      if (second && *second >= 0xDC00 && *second < 0xE000) {
        at_ += 6;
        code = 0x10000 + ((code - 0xD800) << 10) + (*second - 0xDC00);
      }
    }
    // Python writes bytes that it could not decode as lone surrogates.
    const bool is_lone = code >= 0xD800 && code < 0xE000;
    append_utf8(out, is_lone ? kReplacement : code);
    return true;
  }

  std::string_view text_;
  const ValueSink& sink_;
  std::size_t at_ = 0;
  std::vector<std::string> path_;
  std::string problem_;
};

}  // namespace

std::string salvage_json(std::string_view text, const ValueSink& sink) {
  return Reader(text, sink).read();
}

}  // namespace muster::failures
