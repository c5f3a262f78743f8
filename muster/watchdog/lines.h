// LineReader cuts what arrives in pieces into lines. Pure.
//
// A line that is longer than allowed is skipped up to its end and reported once, so one bad line
// costs only itself. Owned by whoever reads.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace muster::watchdog {

class LineReader {
 public:
  struct Line {
    std::string_view text;  // without the newline; of one that is too long, how it begins
    bool too_long = false;
  };
  // Returns false to hear no more of this piece; the rest of the piece is then dropped.
  using Handler = std::function<bool(const Line& line)>;

  explicit LineReader(std::size_t line_bytes_max) : line_bytes_max_(line_bytes_max) {}

  // Calls `handle` for every line that is complete now. Requires: `handle` does not destroy this.
  void feed(std::string_view bytes, const Handler& handle);

  // There will be no more: what is left counts as a line, unless it is empty.
  void finish(const Handler& handle);

 private:
  bool complete(std::string_view rest, const Handler& handle);

  std::size_t line_bytes_max_;
  std::string partial_;
  bool skipping_ = false;  // inside a line that is too long and has been reported
};

}  // namespace muster::watchdog
