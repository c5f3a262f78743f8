#include "muster/logs/log_file.h"

#include "muster/base/log.h"
#include "muster/logs/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace muster::logs {
namespace {

Fd open_for_append(const std::string& path) {
  return Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
}

// Writes until all is written or writing fails, with the reason in errno. How much was written.
std::size_t write_all(int fd, std::string_view bytes) {
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = ::write(fd, bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    written += static_cast<std::size_t>(count);
  }
  return written;
}

// The length of the lines at the beginning of `bytes` that end within its first `room` bytes.
std::size_t lines_within(std::string_view bytes, std::uint64_t room) {
  if (room == 0) return 0;
  const std::size_t newline = bytes.rfind('\n', static_cast<std::size_t>(room - 1));
  return newline == std::string_view::npos ? 0 : newline + 1;
}

}  // namespace

Result<std::unique_ptr<LogFile>> LogFile::open(std::string path, FileLimits limits) {
  Fd fd = open_for_append(path);
  struct stat facts {};
  if (!fd.is_open() || ::fstat(fd.get(), &facts) != 0) {
    const int number = errno;
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot open the log file {}: {}{}", path, describe_errno(number),
                            number == EMFILE ? " (raise the limit with ulimit -n)" : ""));
  }
  const auto bytes = static_cast<std::uint64_t>(facts.st_size);
  return std::unique_ptr<LogFile>(new LogFile(std::move(path), limits, std::move(fd), bytes));
}

LogFile::LogFile(std::string path, FileLimits limits, Fd fd, std::uint64_t bytes)
    : path_(std::move(path)), limits_(limits), fd_(std::move(fd)), file_bytes_(bytes) {}

void LogFile::write(std::string_view bytes) {
  if (capped_ || bytes.empty()) return;
  const std::uint64_t left =
      limits_.max_bytes > stream_bytes_ ? limits_.max_bytes - stream_bytes_ : 0;
  if (limits_.max_bytes == 0 || bytes.size() <= left) {
    stream_bytes_ += bytes.size();
    write_rotating(bytes);
    return;
  }
  std::size_t fitting = lines_within(bytes, left);
  // The line that has begun already is cut where the limit is.
  if (fitting == 0 && !at_line_start_) fitting = static_cast<std::size_t>(left);
  write_rotating(bytes.substr(0, fitting));
  capped_ = true;
  const std::string marker = fmt::format(
      "{}[muster] the limit of {} bytes is reached: the rest of this stream is not stored\n",
      at_line_start_ ? "" : "\n", limits_.max_bytes);
  write_to_current(marker);
}

void LogFile::write_rotating(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t share = limits_.rotate_bytes == 0 ? bytes.size() : share_of_current(bytes);
    if (share == 0) {
      rotate();
      continue;
    }
    write_to_current(bytes.substr(0, share));
    bytes.remove_prefix(share);
  }
}

std::size_t LogFile::share_of_current(std::string_view bytes) const {
  const std::uint64_t room =
      limits_.rotate_bytes > file_bytes_ ? limits_.rotate_bytes - file_bytes_ : 0;
  if (bytes.size() <= room) return bytes.size();
  if (const std::size_t lines = lines_within(bytes, room); lines > 0) return lines;
  if (at_line_start_ && file_bytes_ > 0) return 0;
  // A line that has begun, or one that is longer than a whole file, is not cut unless it is absurd.
  const std::uint64_t most = limits_.rotate_bytes + kLineBytesMax;
  const std::uint64_t allowed = most > file_bytes_ ? most - file_bytes_ : 0;
  const std::size_t newline = bytes.find('\n');
  const std::size_t line = newline == std::string_view::npos ? bytes.size() : newline + 1;
  return static_cast<std::size_t>(std::min<std::uint64_t>(line, allowed));
}

void LogFile::write_to_current(std::string_view bytes) {
  if (lost_bytes_ > 0) {
    const std::string marker = fmt::format("{}[muster] {} bytes are missing here\n",
                                           at_line_start_ ? "" : "\n", lost_bytes_);
    if (write_all(fd_.get(), marker) < marker.size()) return note_failure(errno, bytes.size());
    lost_bytes_ = 0;
    file_bytes_ += marker.size();
  }
  const std::size_t written = write_all(fd_.get(), bytes);
  const int number = errno;
  file_bytes_ += written;
  if (written > 0) at_line_start_ = bytes[written - 1] == '\n';
  if (written < bytes.size()) note_failure(number, bytes.size() - written);
}

void LogFile::note_failure(int number, std::size_t lost) {
  lost_bytes_ += lost;
  if (failure_told_) return;
  failure_told_ = true;
  log::error("logs", "cannot write to {}: {}; what is written meanwhile will be missing there",
             path_, describe_errno(number));
}

void LogFile::rotate() {
  // Whatever happens, the next attempt comes only when another file's worth has been written.
  file_bytes_ = 0;
  for (int index = limits_.keep - 1; index >= 1; --index) {
    const std::string from = fmt::format("{}.{}", path_, index);
    ::rename(from.c_str(), fmt::format("{}.{}", path_, index + 1).c_str());
  }
  if (limits_.keep > 0) {
    ::rename(path_.c_str(), (path_ + ".1").c_str());
  } else {
    ::unlink(path_.c_str());
  }
  Fd next = open_for_append(path_);
  if (next.is_open()) {
    fd_ = std::move(next);
  } else if (!failure_told_) {
    failure_told_ = true;
    log::warn("logs", "cannot begin a new {}: {}; the old file goes on growing", path_,
              describe_errno(errno));
  }
}

}  // namespace muster::logs
