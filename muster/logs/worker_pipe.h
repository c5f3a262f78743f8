// WorkerPipe: one output stream of one worker, read from its pipe and passed on.
//
// The bytes go unchanged into the worker's file, and line by line to the console and to the file of
// filtered lines. While the console is full nothing is read. Owned by Output, on its loop.
#pragma once

#include "muster/base/fd.h"
#include "muster/logs/console.h"
#include "muster/logs/lines.h"
#include "muster/logs/log_file.h"
#include "muster/logs/recent.h"
#include "muster/logs/record.h"
#include "muster/net/epoll_loop.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::logs {

// Counts since the start, of what went through the agent.
struct OutputCounts {
  std::uint64_t bytes = 0;            // read from workers
  std::uint64_t lines = 0;            // passed to the console or to a filter
  std::uint64_t unfinished = 0;       // pieces among them that were not whole lines
  std::uint64_t filtered_lines = 0;   // copied into a filtered file
  std::uint64_t pauses = 0;           // how often a worker had to wait for the console
  std::uint64_t abandoned_pipes = 0;  // still held open by someone when drained
};

// As much as a pipe holds by default.
inline constexpr std::size_t kReadBytes = std::size_t{1} << 16;

// What all pipes of one Output share; outlives them.
struct PipeHost {
  net::EpollLoop& loop;
  std::function<void()> ended;                   // a pipe has come to its end
  std::function<void(TimePoint deadline)> held;  // a line without end is due at `deadline`
  OutputCounts counts;
  std::vector<char> buffer = std::vector<char>(kReadBytes);  // what is being read
  std::size_t open_pipes = 0;
  std::size_t paused_pipes = 0;
};

// Where the bytes go. What is pointed to outlives the pipe.
struct PipeSinks {
  std::unique_ptr<LogFile> file;  // may be nothing
  Console* console = nullptr;     // may be nothing
  LineFormat console_format;
  LogFile* filtered = nullptr;  // may be nothing
  const std::vector<std::string>* filters = nullptr;
  LineFormat filtered_format;
  bool keep_recent = false;  // the file cannot tell the last lines
};

class WorkerPipe {
 public:
  // `reader` is non-blocking. Reads from the next turn on.
  WorkerPipe(PipeHost& host, Fd reader, PipeSinks sinks, LineSplitter::Options lines);
  ~WorkerPipe();
  WorkerPipe(const WorkerPipe&) = delete;
  WorkerPipe& operator=(const WorkerPipe&) = delete;

  bool is_open() const { return reader_.is_open(); }

  // Goes on reading if the console has room again.
  void resume();

  // Passes on a line that was held long enough. When it must be called next.
  std::optional<TimePoint> tick(TimePoint now);

  // Reads what is there, whatever the console says, and closes. True if another process still held
  // the pipe open. Requires: it is open.
  bool abandon();

  std::vector<std::string> recent_lines(std::size_t count) const { return recent_.last(count); }

 private:
  enum class Read { Some, Nothing, End };
  Read read_once();
  void ready();
  void take(std::string_view bytes);
  void pass_on(const Line& line, std::string_view time);
  // Calls `work` with the function that passes lines on, and writes what came of it.
  template <typename Work>
  void with_lines(Work&& work);
  bool splits() const { return sinks_.console != nullptr || sinks_.filtered != nullptr; }
  void pause();
  void end();

  PipeHost& host_;
  Fd reader_;
  PipeSinks sinks_;
  LineSplitter splitter_;
  RecentLines recent_;
  std::string filtered_;  // lines on their way to the filtered file
  bool paused_ = false;
  std::optional<net::FdWatch> watch_;
};

}  // namespace muster::logs
