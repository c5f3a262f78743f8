// LineFormat: how a worker's line is written to the console or to a file of filtered lines.
//
// Pure. As text: prefix, line, newline; a piece of a line says so: `text <unfinished ...>`, and
// later `<... resumed> text`. As JSON: one object a line with the fields time, rank, local_rank,
// role, stream, round, line, and unfinished/resumed only when true. Bytes that are not UTF-8 become
// U+FFFD in JSON and stay as they are in text.
#pragma once

#include "muster/logs/lines.h"
#include "muster/logs/streams.h"

#include <string>
#include <string_view>

namespace muster::logs {

inline constexpr std::string_view kUnfinishedMarker = " <unfinished ...>";
inline constexpr std::string_view kResumedMarker = "<... resumed> ";

// Who wrote the line.
struct LineOrigin {
  std::string role;
  int rank = 0;
  int local_rank = 0;
  Stream stream = Stream::Out;
  int round = 0;
};

// A value.
class LineFormat {
 public:
  static LineFormat text(std::string prefix);
  static LineFormat json(const LineOrigin& origin);

  // Appends one whole console line. `time` is the wall clock as text; only JSON uses it.
  void append(std::string& out, const Line& line, std::string_view time) const;

  bool is_json() const { return is_json_; }

 private:
  bool is_json_ = false;
  std::string head_;  // the prefix, or the fields between time and line
};

// A line of the agent itself as a JSON object: time, stream, line.
void append_agent_json(std::string& out, Stream stream, std::string_view text,
                       std::string_view time);

// Appends `text` as a JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text);

}  // namespace muster::logs
