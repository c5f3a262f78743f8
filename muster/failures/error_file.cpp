#include "muster/failures/error_file.h"

#include "muster/base/fd.h"
#include "muster/failures/salvage.h"
#include "muster/failures/text.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fcntl.h>
#include <initializer_list>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::failures {
namespace {

namespace json = boost::json;

constexpr std::int64_t kSecond = 1'000'000'000;

// Seconds since the epoch, "1700000000" or "1700000000.25", in nanoseconds; 0 if it is neither.
std::int64_t parse_seconds(std::string_view text) {
  std::int64_t seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [after_seconds, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc() || seconds < 0 || seconds >= INT64_MAX / kSecond) return 0;
  if (after_seconds == end) return seconds * kSecond;
  if (*after_seconds != '.') return 0;
  std::int64_t nanoseconds = 0;
  std::int64_t unit = kSecond / 10;
  for (const char* digit = after_seconds + 1; digit != end; ++digit, unit /= 10) {
    if (*digit < '0' || *digit > '9') return 0;
    nanoseconds += unit * (*digit - '0');
  }
  return seconds * kSecond + nanoseconds;
}

bool is_path(const std::vector<std::string>& path, std::initializer_list<std::string_view> names) {
  return std::equal(path.begin(), path.end(), names.begin(), names.end());
}

// Picks the members of both shapes out of the values of a file.
struct Members {
  bool has_structure = false;
  std::optional<std::string> message;
  std::optional<std::string> traceback;
  std::int64_t timestamp_nanoseconds = 0;

  void take(const std::vector<std::string>& path, ValueKind kind, std::string_view value) {
    if (kind == ValueKind::Container) {
      if (is_path(path, {"message"})) {
        has_structure = true;
        message.reset();
      }
      return;
    }
    if (kind == ValueKind::Null) return;
    const auto text = [value] { return valid_utf8(keep_ends(value, kErrorTextBytesMax)); };
    if (is_path(path, {"message"}) || is_path(path, {"message", "message"})) {
      has_structure = path.size() == 2;
      message = text();
    } else if (is_path(path, {"message", "extraInfo", "py_callstack"})) {
      traceback = text();
    } else if (is_path(path, {"timestamp"}) ||
               is_path(path, {"message", "extraInfo", "timestamp"})) {
      timestamp_nanoseconds = parse_seconds(value);
    }
  }
};

ErrorDetails unreadable(std::string problem) {
  ErrorDetails details;
  details.shape = ErrorFileShape::Unreadable;
  details.complete = false;
  details.problem = std::move(problem);
  return details;
}

// Up to kErrorFileBytesMax + 1 bytes, so that the caller sees when there is more.
Result<std::string> read_bounded(int fd, std::size_t bytes_expected) {
  std::string content;
  content.resize(std::min(bytes_expected, kErrorFileBytesMax) + 1);
  std::size_t bytes = 0;
  while (bytes < kErrorFileBytesMax + 1) {
    if (bytes == content.size())
      content.resize(std::min(content.size() * 2, kErrorFileBytesMax + 1));
    const ssize_t count = ::read(fd, content.data() + bytes, content.size() - bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail(ErrorKind::Unavailable, describe_errno(errno));
    if (count == 0) break;
    bytes += static_cast<std::size_t>(count);
  }
  content.resize(bytes);
  return content;
}

std::string_view kind_of_file(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

ErrorDetails parse_error_file(std::string_view text) {
  Members members;
  std::string problem = text.empty()
                            ? std::string("is empty")
                            : salvage_json(text, [&members](const auto& path, ValueKind kind,
                                                            std::string_view value) {
                                members.take(path, kind, value);
                              });
  // A file that ended before it said anything is as good as none; one whose message is there and
  // empty is a file.
  const bool says_nothing = !members.message && !members.traceback;
  if (says_nothing && (!problem.empty() || !members.has_structure)) {
    ErrorDetails details = unreadable(problem.empty() ? "has no message" : std::move(problem));
    details.raw = printable(text.substr(0, kErrorRawBytesMax));
    return details;
  }
  ErrorDetails details;
  details.shape = members.has_structure ? ErrorFileShape::Structured : ErrorFileShape::Simple;
  details.complete = problem.empty();
  details.problem = std::move(problem);
  details.message = std::move(members.message).value_or("");
  details.traceback = std::move(members.traceback).value_or("");
  details.timestamp_nanoseconds = members.timestamp_nanoseconds;
  return details;
}

ErrorDetails read_error_file(const std::string& path) {
  struct stat facts {};
  if (path.empty() || ::stat(path.c_str(), &facts) != 0) {
    if (path.empty() || errno == ENOENT || errno == ENOTDIR) return {};
    return unreadable(fmt::format("cannot be read: {}", describe_errno(errno)));
  }
  if (!S_ISREG(facts.st_mode)) return unreadable(fmt::format("is {}", kind_of_file(facts.st_mode)));
  // The path may have changed its kind since, so the open does not block either.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.is_open() || ::fstat(file.get(), &facts) != 0)
    return unreadable(fmt::format("cannot be read: {}", describe_errno(errno)));
  auto content =
      read_bounded(file.get(), static_cast<std::size_t>(std::max<off_t>(facts.st_size, 0)));
  if (!content) return unreadable(fmt::format("cannot be read: {}", content.error().message));

  const bool is_too_long = content->size() > kErrorFileBytesMax;
  ErrorDetails details = parse_error_file(std::string_view(*content).substr(0, kErrorFileBytesMax));
  if (is_too_long) {
    details.complete = false;
    details.problem = fmt::format("is longer than {} bytes", kErrorFileBytesMax);
  }
  details.modified_nanoseconds = facts.st_mtim.tv_sec * kSecond + facts.st_mtim.tv_nsec;
  return details;
}

std::string to_json(const ErrorRecord& record) {
  json::object extra;
  if (!record.traceback.empty()) extra["py_callstack"] = valid_utf8(record.traceback);
  extra["timestamp"] = std::to_string(record.timestamp_seconds);
  json::object message;
  message["message"] = valid_utf8(record.message);
  message["extraInfo"] = std::move(extra);
  if (record.exit_code != 0) message["errorCode"] = record.exit_code;
  json::object whole;
  whole["message"] = std::move(message);
  return json::serialize(whole);
}

Result<> write_whole_file(const std::string& path, std::string_view content) {
  const auto failed = [&path](const char* what) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot {} '{}': {}", what, path, describe_errno(errno)));
  };
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  const Fd file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file.is_open()) return failed("create");
  while (!content.empty()) {
    const ssize_t count = ::write(file.get(), content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      auto error = failed("write");
      ::unlink(temporary.c_str());
      return error;
    }
    content.remove_prefix(static_cast<std::size_t>(count));
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    auto error = failed("replace");
    ::unlink(temporary.c_str());
    return error;
  }
  return {};
}

Result<> write_error_file(const std::string& path, const ErrorRecord& record) {
  return write_whole_file(path, to_json(record));
}

}  // namespace muster::failures
