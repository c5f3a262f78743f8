// Logging. One line an event: a sentence, then fields: `connection closed peer=10.0.0.3:4410
// reason="..."`.
//
// Whoever decides about an error logs it, once. Lines go to standard error as
// `2026-03-14T09:26:53.589Z warn  store  message`. Safe from any thread.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>

namespace muster::log {

enum class Level { Debug, Info, Warn, Error, Off };

// What is below the level is neither formatted nor written. Default: Info.
void set_level(Level level);
bool enabled(Level level);

// "debug", "info", "warn", "error", "off"; false when it is none of them.
bool parse_level(std::string_view text, Level& out);

// Where whole lines go instead of standard error (tests, a ring of recent lines); an empty function
// undoes it. A sink is called by whoever logs, on any thread, and may log itself.
void set_sink(std::function<void(Level, std::string_view part, std::string_view message)> sink);

// The line as it would be written now, without its end.
std::string line_of(Level level, std::string_view part, std::string_view message);

void write(Level level, std::string_view part, std::string_view message);

// What came from outside, made safe for one line: quoted, control and non-ASCII bytes as \xNN, cut
// at 120 bytes.
std::string quote(std::string_view text);

template <typename... Args>
void debug(std::string_view part, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::Debug))
    write(Level::Debug, part, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void info(std::string_view part, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::Info))
    write(Level::Info, part, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warn(std::string_view part, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::Warn))
    write(Level::Warn, part, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(std::string_view part, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::Error))
    write(Level::Error, part, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace muster::log
