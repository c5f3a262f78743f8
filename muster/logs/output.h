// Output: everything that workers print, on its way to files and to the agent's own streams.
//
// One pipe for each stream that the agent must see; no thread, no polling, and no descriptor for
// streams that a worker can write itself. From the pipe the bytes go unchanged into the worker's
// file and line by line, with a prefix or as JSON, to the console. Within one stream of one worker
// no byte is lost, torn or reordered. When the console is slow we stop reading, the pipes fill up
// and the workers wait: nothing is dropped.
//
// The order of use: `start_round`, `open_worker` for each worker, start the worker with those
// descriptors and close them; and when all workers have ended, `drain`.
//
// Owned by the agent, lives on its loop. Requires: SIGPIPE is ignored.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/logs/console.h"
#include "muster/logs/layout.h"
#include "muster/logs/lines.h"
#include "muster/logs/log_file.h"
#include "muster/logs/streams.h"
#include "muster/logs/worker_pipe.h"
#include "muster/net/epoll_loop.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster::logs {

enum class Format { Text, Json };

enum class Colour { Auto, Always, Never };  // Auto: if the console is a terminal

struct OutputOptions {
  int out = 1;  // the agent's own streams; borrowed
  int err = 2;
  Format format = Format::Text;
  std::string prefix_template;  // empty: the default prefix
  std::string hostname;         // for the template
  Colour colour = Colour::Auto;
  std::vector<std::string> out_filters;  // empty: no filtered_stdout.log
  std::vector<std::string> err_filters;
  FileLimits files;
  LineSplitter::Options lines;
};

struct WorkerStreams {
  std::string role;
  int rank = 0;
  int local_rank = 0;
  std::string folder;  // the worker's, see AttemptFolder; empty: no files
  Target out = Target::Inherit;
  Target err = Target::Inherit;
};

// What becomes descriptor 1 and 2 of the worker. Not open: it inherits the agent's. The caller
// closes them as soon as the worker has started, or the pipe never ends.
struct WorkerFds {
  Fd out;
  Fd err;
};

// How many lines of a worker's standard error `recent_lines` gives.
inline constexpr std::size_t kRecentLines = 20;

class Output {
 public:
  Output(net::EpollLoop& loop, OutputOptions options);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // A new round of workers, whose filtered files are in `folder`. Forgets the workers of earlier
  // rounds whose streams have ended.
  Result<> start_round(int round, AttemptFolder folder);

  // Creates files and pipes for one worker. With JSON an inherited stream becomes a pipe, too: the
  // console must hold nothing but objects.
  Result<WorkerFds> open_worker(WorkerStreams worker);

  // Waits until all pipes have ended and everything is written. What is still open at `deadline` is
  // held by a process that outlived its worker: what is in the pipe is read, the pipe is closed,
  // and that is logged once. Timeout: the console does not take what is left; it stays queued. One
  // drain at a time.
  Task<Result<>> drain(TimePoint deadline);

  // A line of the agent itself, in order with the lines of workers. With JSON it becomes an object.
  void say(Stream stream, std::string_view line);

  // The last lines of the newest worker with that local rank, the oldest first. Nothing for a
  // stream that the worker inherited or that was thrown away.
  std::vector<std::string> recent_lines(int local_rank, Stream stream = Stream::Err,
                                        std::size_t count = kRecentLines) const;

  OutputCounts counts() const { return host_.counts; }
  std::uint64_t console_bytes() const;
  bool is_idle() const;  // no pipe is open and the console has everything

 private:
  // One round of workers; shared by those that were started in it, for a pipe may outlive its
  // round.
  struct Round {
    int number = 0;
    std::unique_ptr<LogFile> filtered_out;  // nothing without a filter
    std::unique_ptr<LogFile> filtered_err;
  };
  struct Worker {
    WorkerStreams streams;
    std::shared_ptr<Round> round;
    std::unique_ptr<WorkerPipe> out;  // nothing if the agent does not see the stream
    std::unique_ptr<WorkerPipe> err;

    bool is_open() const { return (out && out->is_open()) || (err && err->is_open()); }
  };
  // What a coroutine that drains waits for; lives in its frame.
  struct Drain;

  Console& console(Stream stream) { return stream == Stream::Out ? out_ : err_; }
  const std::vector<std::string>& filters(Stream stream) const;
  Result<Fd> open_stream(Worker& worker, Stream stream);
  Result<Fd> open_pipe(Worker& worker, Stream stream, bool with_file, bool with_console);
  PipeSinks make_sinks(const Worker& worker, Stream stream, bool with_console);
  // Waits until the console is empty and, when `pipes_too`, all pipes have ended; false: `deadline`
  // came first.
  Task<bool> settle(bool pipes_too, TimePoint deadline);
  void check_drain();
  void abandon_pipes();
  void console_changed();
  void line_held(TimePoint deadline);
  void tick();

  net::EpollLoop& loop_;
  OutputOptions options_;
  Console out_;
  Console err_;
  PipeHost host_;
  std::shared_ptr<Round> round_;
  std::vector<std::unique_ptr<Worker>> workers_;  // in the order they were opened
  Drain* drain_ = nullptr;
  Timer hold_timer_;  // the earliest time at which a held line may be due
};

}  // namespace muster::logs
