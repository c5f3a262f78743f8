// LineSplitter: makes whole lines out of the pieces that come out of a pipe.
//
// Pure: no I/O, no clock. Owned by one stream of one worker.
//
// A line that does not end is held, but neither without bound nor for ever: after `bytes_max` bytes
// or after `hold` it is passed on as an unfinished piece, and what comes later is marked as its
// continuation. A piece ends between two characters if the text is UTF-8. Any byte except the
// newline may be part of a line.
//
// Invariant: the texts of all pieces, with a newline after each one that is not unfinished, are the
// bytes that were fed (and a newline more if those did not end with one).
#pragma once

#include "muster/base/clock.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace muster::logs {

inline constexpr std::size_t kLineBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kHeldBytesKept = std::size_t{1} << 16;
inline constexpr Duration kLineHold = std::chrono::seconds(1);

struct Line {
  std::string_view text;    // without newline; valid during the call that passes it
  bool resumed = false;     // goes on where an unfinished piece ended
  bool unfinished = false;  // the line goes on in a later piece
};

// How many bytes of `text` are left when a UTF-8 character that is cut off at its end is taken
// away. All of them if nothing is cut off, if the end is no UTF-8, or if nothing would be left.
std::size_t whole_characters(std::string_view text);

class LineSplitter {
 public:
  struct Options {
    std::size_t bytes_max = kLineBytesMax;
    Duration hold = kLineHold;
  };
  LineSplitter() : LineSplitter(Options()) {}
  explicit LineSplitter(Options options) : options_(options) {}

  // Calls `emit(const Line&)` for every line that `bytes` completes. Requires: bytes_max >= 4.
  template <typename Emit>
  void feed(std::string_view bytes, TimePoint now, Emit&& emit);

  // Passes on what has been held long enough. Calling it early is harmless.
  template <typename Emit>
  void tick(TimePoint now, Emit&& emit);

  // No more bytes will come: passes on a last line without newline as a whole line.
  template <typename Emit>
  void finish(Emit&& emit);

  // When `tick` can next change anything; nothing while no line is held.
  std::optional<TimePoint> next_deadline() const;

 private:
  template <typename Emit>
  void emit_piece(std::string_view text, bool unfinished, Emit&& emit) {
    emit(Line{.text = text, .resumed = resumed_, .unfinished = unfinished});
    resumed_ = unfinished;
  }
  // Passes on the first `count` bytes of what is held; the rest stays.
  template <typename Emit>
  void emit_held(std::size_t count, Emit&& emit) {
    emit_piece(std::string_view(held_).substr(0, count), true, emit);
    held_.erase(0, count);
  }

  Options options_;
  std::string held_;      // the beginning of a line whose end has not come
  TimePoint held_since_;  // when its first byte came
  bool resumed_ = false;  // the last piece was unfinished
};

template <typename Emit>
void LineSplitter::feed(std::string_view bytes, TimePoint now, Emit&& emit) {
  while (!bytes.empty()) {
    const void* found = std::memchr(bytes.data(), '\n', bytes.size());
    const bool ends = found != nullptr;
    const std::size_t length =
        ends ? static_cast<std::size_t>(static_cast<const char*>(found) - bytes.data())
             : bytes.size();
    if (held_.size() + length > options_.bytes_max) {
      const std::size_t room = options_.bytes_max - held_.size();
      held_.append(bytes.substr(0, room));
      bytes.remove_prefix(room);
      emit_held(whole_characters(held_), emit);
      held_since_ = now;
    } else if (!ends) {
      if (held_.empty()) held_since_ = now;
      held_.append(bytes);
      return;
    } else if (held_.empty()) {
      emit_piece(bytes.substr(0, length), false, emit);
      bytes.remove_prefix(length + 1);
    } else {
      held_.append(bytes.substr(0, length));
      bytes.remove_prefix(length + 1);
      emit_piece(held_, false, emit);
      held_.clear();
      // A long line must not cost its memory for ever.
      if (held_.capacity() > kHeldBytesKept) held_.shrink_to_fit();
    }
  }
}

template <typename Emit>
void LineSplitter::tick(TimePoint now, Emit&& emit) {
  const std::optional<TimePoint> deadline = next_deadline();
  if (!deadline || now < *deadline) return;
  emit_held(whole_characters(held_), emit);
  held_since_ = now;
}

template <typename Emit>
void LineSplitter::finish(Emit&& emit) {
  if (!held_.empty()) emit_piece(held_, false, emit);
  held_ = std::string();
}

}  // namespace muster::logs
