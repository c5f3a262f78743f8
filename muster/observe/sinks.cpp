#include "muster/observe/sinks.h"

#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/suggest.h"

#include <fmt/format.h>

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

namespace muster::observe {
namespace {

constexpr std::string_view kFilePrefix = "file:";
constexpr std::string_view kUnixPrefix = "unix:";
constexpr mode_t kFileMode = 0644;

class NullSink final : public EventSink {
 public:
  void write(std::string_view) override {}
  bool discards() const override { return true; }
};

class ConsoleSink final : public EventSink {
 public:
  explicit ConsoleSink(std::function<void(std::string_view)> console)
      : console_(std::move(console)) {}

  void write(std::string_view line) override {
    std::string text(line);
    text += '\n';
    if (console_) {
      console_(text);
    } else if (::write(STDERR_FILENO, text.data(), text.size()) !=
               static_cast<ssize_t>(text.size())) {
      ++lost_;  // nobody is left who could be told
    }
  }
  std::uint64_t lost_count() const override { return lost_; }

 private:
  std::function<void(std::string_view)> console_;
  std::uint64_t lost_ = 0;
};

// One write a record, and the file is opened to append: records of several agents in one file stay
// whole.
class FileSink final : public EventSink {
 public:
  FileSink(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  void write(std::string_view line) override {
    // A record that was cut short by a full disk must not swallow the next one.
    std::string text = is_torn_ ? "\n" : "";
    text += line;
    text += '\n';
    std::string_view rest = text;
    while (!rest.empty()) {
      const ssize_t written = ::write(fd_.get(), rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        lose(written < 0 ? errno : EIO, rest.size() < text.size());
        return;
      }
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
    is_torn_ = false;
    is_failing_ = false;
  }
  std::uint64_t lost_count() const override { return lost_; }

 private:
  void lose(int error, bool in_the_middle) {
    ++lost_;
    is_torn_ = is_torn_ || in_the_middle;
    if (!is_failing_) {
      log::warn("events", "cannot write to {}: {}, events are lost until it works again",
                log::quote(path_), describe_errno(error));
    }
    is_failing_ = true;
  }

  Fd fd_;
  std::string path_;
  bool is_torn_ = false;
  bool is_failing_ = false;  // and said so
  std::uint64_t lost_ = 0;
};

enum class SinkKind { Null, Console, File, Unix };

struct SinkName {
  SinkKind kind = SinkKind::Null;
  std::string path = {};
};

Result<SinkName> parse_name(std::string_view name) {
  if (name == "null" || name == "dynamic_rendezvous") return SinkName{SinkKind::Null};
  if (name == "console") return SinkName{SinkKind::Console};
  for (const auto& [prefix, kind] :
       {std::pair(kFilePrefix, SinkKind::File), std::pair(kUnixPrefix, SinkKind::Unix)}) {
    if (!name.starts_with(prefix)) continue;
    std::string path(name.substr(prefix.size()));
    if (path.empty() || path.find('\0') != std::string::npos) {
      return fail(ErrorKind::Invalid,
                  fmt::format("the event sink {} needs a path: {}PATH", log::quote(name), prefix));
    }
    if (kind == SinkKind::Unix && path.size() >= sizeof(sockaddr_un::sun_path)) {
      return fail(ErrorKind::Invalid,
                  fmt::format("the path of the event sink {} is too long for a socket: {} bytes, "
                              "at most {} are possible",
                              log::quote(name), path.size(), sizeof(sockaddr_un::sun_path) - 1));
    }
    return SinkName{kind, std::move(path)};
  }
  // A forgotten or misspelt prefix is compared without its path.
  const std::string_view word = name.substr(0, name.find(':'));
  std::string likely = nearest(word, {"null", "console", "file", "unix", "dynamic_rendezvous"});
  if (likely == "file" || likely == "unix") likely += ":PATH";
  return fail(ErrorKind::Invalid,
              fmt::format("unknown event sink {}{}; known are null, console, file:PATH and "
                          "unix:PATH",
                          log::quote(name),
                          likely.empty() ? "" : fmt::format(", did you mean {}?", likely)));
}

}  // namespace

std::unique_ptr<EventSink> make_null_sink() { return std::make_unique<NullSink>(); }

std::unique_ptr<EventSink> make_console_sink(const SinkOptions& options) {
  return std::make_unique<ConsoleSink>(options.console);
}

Result<std::unique_ptr<EventSink>> open_file_sink(const std::string& path) {
  // Non-blocking for a named pipe: one that nobody reads is an error now and no hanging agent
  // later.
  Fd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
               kFileMode));
  if (!fd.is_open()) {
    return fail(ErrorKind::Unavailable,
                fmt::format("cannot open {} for events: {}", log::quote(path),
                            errno == ENXIO ? "nobody reads the pipe" : describe_errno(errno)));
  }
  std::unique_ptr<EventSink> sink = std::make_unique<FileSink>(std::move(fd), path);
  return sink;
}

Result<std::unique_ptr<EventSink>> make_sink(net::EpollLoop& loop, std::string_view name,
                                             const SinkOptions& options) {
  auto parsed = parse_name(name);
  if (!parsed) return fail(parsed.error());
  switch (parsed->kind) {
    case SinkKind::Null:
      return make_null_sink();
    case SinkKind::Console:
      return make_console_sink(options);
    case SinkKind::File:
      return open_file_sink(parsed->path);
    case SinkKind::Unix:
      return make_unix_sink(loop, std::move(parsed->path), options);
  }
  return make_null_sink();
}

Result<> check_sink_name(std::string_view name) {
  auto parsed = parse_name(name);
  if (!parsed) return fail(parsed.error());
  return {};
}

}  // namespace muster::observe
