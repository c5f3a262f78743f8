#include "muster/watchdog/message.h"

#include "muster/base/log.h"
#include "muster/base/signal_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

namespace muster::watchdog {
namespace {

struct Word {
  std::string_view word;
  MessageKind kind;
};
constexpr Word kWords[] = {
    {"alive", MessageKind::Alive},     {"ready", MessageKind::Ready},
    {"expires", MessageKind::Expires}, {"release", MessageKind::Release},
    {"status", MessageKind::Status},
};
static_assert(std::size(kWords) == static_cast<std::size_t>(MessageKind::Status) + 1);

bool is_blank(char letter) { return letter == ' ' || letter == '\t'; }

// Takes the first word off `text`, and the blanks around it.
std::string_view take_word(std::string_view& text) {
  const auto skip_blanks = [&] {
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  };
  skip_blanks();
  const auto end = std::find_if(text.begin(), text.end(), is_blank);
  const std::string_view word = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  text.remove_prefix(word.size());
  skip_blanks();
  return word;
}

// The length of the UTF-8 sequence that `text` begins with; 0 if it is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  std::uint32_t code = first & (0xFFU >> (length + 1));
  for (std::size_t index = 1; index < length; ++index) {
    if ((byte(index) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(index) & 0x3FU);
  }
  const bool is_overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  return is_overlong || is_surrogate || code > 0x10FFFF ? 0 : length;
}

bool is_printable_text(std::string_view text) {
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text.front());
    const std::size_t length = utf8_length(text);
    if (length == 0 || (first < 0x20 && first != '\t') || first == 0x7F) return false;
    text.remove_prefix(length);
  }
  return true;
}

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorKind::Invalid, std::move(message));
}

// "none" and "0" give 0.
std::optional<int> parse_signal_or_none(std::string_view text) {
  if (text == "0" || text == "none" || text == "None" || text == "NONE") return 0;
  return parse_signal(text);
}

Result<Message> parse_expires(std::string_view rest) {
  constexpr const char* kUsage = "expected `expires SCOPE SECONDS [SIGNAL]`";
  Message message{.kind = MessageKind::Expires};
  message.scope = take_word(rest);
  const std::string_view length = take_word(rest);
  const std::string_view signal = take_word(rest);
  if (message.scope.empty() || length.empty() || !rest.empty()) return refuse(kUsage);
  if (!parse_duration(length, message.length) || message.length < Duration::zero())
    return refuse(fmt::format("{} is no number of seconds: {}", log::quote(length), kUsage));
  const auto number = signal.empty() ? std::optional<int>(SIGKILL) : parse_signal_or_none(signal);
  if (!number) return refuse(fmt::format("{} is no signal: {}", log::quote(signal), kUsage));
  message.signal = *number;
  return message;
}

}  // namespace

Result<Message> parse_message(std::string_view line) {
  if (line.size() > kMessageBytesMax) {
    return refuse(
        fmt::format("the line is longer than {} bytes, which is the limit", kMessageBytesMax));
  }
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (!is_printable_text(line)) return refuse("the line is not UTF-8 text");
  const std::string_view word = take_word(line);
  const auto* found = std::find_if(std::begin(kWords), std::end(kWords),
                                   [&](const Word& known) { return known.word == word; });
  if (found == std::end(kWords)) {
    return refuse(fmt::format("{} is not known; expected alive, ready, expires, release or status",
                              log::quote(word)));
  }
  Message message{.kind = found->kind};
  switch (found->kind) {
    case MessageKind::Alive:
    case MessageKind::Ready:
      if (!line.empty()) return refuse(fmt::format("`{}` takes no arguments", word));
      return message;
    case MessageKind::Expires:
      return parse_expires(line);
    case MessageKind::Release:
      message.scope = take_word(line);
      if (message.scope.empty() || !line.empty()) return refuse("expected `release SCOPE`");
      return message;
    case MessageKind::Status:
      message.text = line;
      return message;
  }
  return message;
}

}  // namespace muster::watchdog
