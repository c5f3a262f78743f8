// The error file: one JSON object in which a worker says why it is about to fail, at the path in
// TORCHELASTIC_ERROR_FILE. Two shapes are in use:
//
//   structured  {"message": {"message": "<Type>: <text>",
//                            "extraInfo": {"py_callstack": "<traceback>", "timestamp": "<s>"}}}
//   simple      {"message": "<text>", "timestamp": <s>}
//
// Workers write this file while they die, so reading never fails: from a truncated file everything
// that was complete is kept, and of a file that makes no sense the raw text. Whatever a worker may
// have put at the path (a folder, a pipe, ten megabytes), reading it is bounded and never blocks.
#pragma once

#include "muster/base/error.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster::failures {

inline constexpr const char* kErrorFileVariable = "TORCHELASTIC_ERROR_FILE";

// More than this is never read; what lies beyond counts as truncated.
inline constexpr std::size_t kErrorFileBytesMax = std::size_t{16} << 20;
// A message or traceback keeps this much, half from its beginning and half from its end.
inline constexpr std::size_t kErrorTextBytesMax = std::size_t{32} << 10;
// Of a file that makes no sense, this much of the beginning is kept.
inline constexpr std::size_t kErrorRawBytesMax = std::size_t{4} << 10;

enum class ErrorFileShape {
  Missing,     // there is no file
  Structured,  // as above
  Simple,      // as above
  Unreadable,  // there is something, and no message could be found in it
};

// What an error file says.
struct ErrorDetails {
  ErrorFileShape shape = ErrorFileShape::Missing;
  // What was understood is all there was. False also for Unreadable.
  bool complete = true;
  std::string message;
  std::string traceback;  // empty: there is none
  // Since the epoch, as the worker wrote it; 0 when it did not.
  std::int64_t timestamp_nanoseconds = 0;
  // When the file was last written, by the same clock but finer than what workers write; 0:
  // unknown.
  std::int64_t modified_nanoseconds = 0;
  // Why the shape is Unreadable or not complete, in words; else empty.
  std::string problem;
  // Unreadable: the beginning of the file, made printable.
  std::string raw;

  friend bool operator==(const ErrorDetails&, const ErrorDetails&) = default;
};

// Pure: what `text`, the content of an error file, says.
ErrorDetails parse_error_file(std::string_view text);

// Blocks for as long as a local disk takes. Pipes, sockets and devices are not opened.
ErrorDetails read_error_file(const std::string& path);

// What goes into a new error file of the structured shape.
struct ErrorRecord {
  std::string message;    // "<Type>: <text>"
  std::string traceback;  // may be empty
  std::int64_t timestamp_seconds = 0;
  int exit_code = 0;  // becomes the member `errorCode` unless 0
};

std::string to_json(const ErrorRecord& record);

// Replaces `path` in one step: a reader sees the old file or the new one, never a part.
Result<> write_whole_file(const std::string& path, std::string_view content);
Result<> write_error_file(const std::string& path, const ErrorRecord& record);

}  // namespace muster::failures
