#include "muster/base/log.h"

#include "muster/base/clock.h"

#include <array>
#include <atomic>
#include <mutex>
#include <unistd.h>

namespace muster::log {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"debug", "info", "warn", "error", "off"};
constexpr std::size_t kQuoteBytesMax = 120;

std::atomic<Level> threshold = Level::Info;
struct Output {
  // Recursive: a sink may have something to log itself.
  std::recursive_mutex mutex;
  std::function<void(Level, std::string_view, std::string_view)> sink;  // guarded by it
};
Output& output() {
  // Never destroyed: threads that go on at the end of the program may have something to say.
  static auto* const kOutput = new Output;
  return *kOutput;
}

}  // namespace

void set_level(Level level) { threshold = level; }
bool enabled(Level level) { return level >= threshold.load(std::memory_order_relaxed); }

bool parse_level(std::string_view text, Level& out) {
  for (std::size_t index = 0; index < kNames.size(); ++index) {
    if (kNames[index] == text) {
      out = static_cast<Level>(index);
      return true;
    }
  }
  return false;
}

void set_sink(std::function<void(Level, std::string_view, std::string_view)> new_sink) {
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  out.sink = std::move(new_sink);
}

std::string line_of(Level level, std::string_view part, std::string_view message) {
  return fmt::format("{} {:<5} {}  {}", wall_clock_text(), kNames[static_cast<std::size_t>(level)],
                     part, message);
}

void write(Level level, std::string_view part, std::string_view message) {
  Output& out = output();
  const std::lock_guard lock(out.mutex);
  if (out.sink) {
    out.sink(level, part, message);
    return;
  }
  const std::string line = line_of(level, part, message) + '\n';
  // One write a line, so that lines of several processes on one terminal or file stay whole. If
  // standard error is gone there is nobody to tell.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char character : text.substr(0, kQuoteBytesMax)) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '"' || character == '\\') {
      out += '\\';
      out += character;
    } else if (byte >= 0x20 && byte < 0x7f) {
      out += character;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  out += '"';
  if (text.size() > kQuoteBytesMax) out += fmt::format("…({} bytes)", text.size());
  return out;
}

}  // namespace muster::log
