// What a worker may tell its agent, one line a message:
//
//   alive                             I make progress.
//   ready                             I have started.
//   expires SCOPE SECONDS [SIGNAL]    I am through with SCOPE in that time, or else: SIGNAL.
//   release SCOPE                     I am through with SCOPE.
//   status TEXT                       What I am doing, for people to read.
//
// SECONDS may have a unit (250ms, 1m30s). SIGNAL is a name or a number, KILL if it is left out;
// `none` only reports. SCOPE has no spaces. Pure.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace muster::watchdog {

inline constexpr std::size_t kMessageBytesMax = 4096;

enum class MessageKind { Alive, Ready, Expires, Release, Status };

struct Message {
  MessageKind kind = MessageKind::Alive;
  std::string scope{};  // of Expires and Release
  Duration length{};    // of Expires
  int signal = 0;       // of Expires; 0: none
  std::string text{};   // of Status; UTF-8, no control characters; may be empty

  friend bool operator==(const Message&, const Message&) = default;
};

// The error's text says what the line should have been.
Result<Message> parse_message(std::string_view line);

}  // namespace muster::watchdog
