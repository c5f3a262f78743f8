// LogFile: a file that the agent writes a stream into, with rotation and a limit if wanted.
//
// Without limits it holds exactly the bytes it was given. With rotation, `stdout.log` becomes
// `stdout.log.1` when it is full, `.1` becomes `.2`, and so on; the files one after the other hold
// the bytes, and a line is cut in two only if it is longer than kLineBytesMax. With a cap, one line
// says that the rest is not stored.
//
// A disk that is full costs what is written meanwhile, not the job: it is logged once, and a line
// in the file says how much is missing. Owned by the stream that writes it; writes are plain
// blocking writes to a regular file.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace muster::logs {

struct FileLimits {
  std::uint64_t rotate_bytes = 0;  // a file is full at about this size; 0: no rotation
  int keep = 5;                    // how many full files stay beside the one that is written
  std::uint64_t max_bytes = 0;     // of one stream over all files; 0: no limit

  // Whether bytes must go through the agent at all.
  bool any() const { return rotate_bytes != 0 || max_bytes != 0; }
};

class LogFile {
 public:
  // Appends if the file exists.
  static Result<std::unique_ptr<LogFile>> open(std::string path, FileLimits limits);

  void write(std::string_view bytes);

  const std::string& path() const { return path_; }

 private:
  LogFile(std::string path, FileLimits limits, Fd fd, std::uint64_t bytes);
  void write_rotating(std::string_view bytes);
  // How many of `bytes` still belong into the current file.
  std::size_t share_of_current(std::string_view bytes) const;
  void write_to_current(std::string_view bytes);
  void rotate();
  void note_failure(int number, std::size_t lost);

  std::string path_;
  FileLimits limits_;
  Fd fd_;
  std::uint64_t file_bytes_ = 0;    // in the current file
  std::uint64_t stream_bytes_ = 0;  // that count against max_bytes
  bool at_line_start_ = true;
  bool capped_ = false;
  bool failure_told_ = false;
  std::uint64_t lost_bytes_ = 0;  // since the last write that worked
};

}  // namespace muster::logs
