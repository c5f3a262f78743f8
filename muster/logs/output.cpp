#include "muster/logs/output.h"

#include "muster/base/assert.h"
#include "muster/base/clock.h"
#include "muster/base/log.h"
#include "muster/logs/prefix.h"
#include "muster/logs/recent.h"
#include "muster/logs/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <optional>
#include <unistd.h>
#include <utility>

namespace muster::logs {
namespace {

// How long the console may take for what came out of abandoned pipes after the deadline.
constexpr Duration kLastWrites = std::chrono::seconds(1);

tl::unexpected<Error> cannot_open(std::string_view what, int number) {
  const bool too_many = number == EMFILE || number == ENFILE;
  return fail(ErrorKind::Unavailable,
              fmt::format("cannot open {}: {}{}", what, describe_errno(number),
                          too_many ? " (raise the limit with ulimit -n)" : ""));
}

Result<Fd> open_to_write(const std::string& path, int flags) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0644));
  if (!fd.is_open()) return cannot_open(path, errno);
  return fd;
}

}  // namespace

struct Output::Drain {
  Drain(Output& waited_for, bool pipes)
      : output(waited_for), pipes_too(pipes), done(waited_for.loop_) {
    MUSTER_ASSERT(output.drain_ == nullptr);
    output.drain_ = this;
  }
  ~Drain() { output.drain_ = nullptr; }
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  Output& output;
  bool pipes_too;
  Oneshot<bool> done;
};

Output::Output(net::EpollLoop& loop, OutputOptions options)
    : loop_(loop),
      options_(std::move(options)),
      out_(loop, options_.out, "standard output", [this] { console_changed(); }),
      err_(loop, options_.err, "standard error", [this] { console_changed(); }),
      host_{.loop = loop,
            .ended = [this] { check_drain(); },
            .held = [this](TimePoint deadline) { line_held(deadline); },
            .counts = {},
            .buffer = std::vector<char>(kReadBytes)},
      round_(std::make_shared<Round>()),
      hold_timer_(loop, [this] { tick(); }) {}

Output::~Output() {
  out_.flush();
  err_.flush();
}

const std::vector<std::string>& Output::filters(Stream stream) const {
  return stream == Stream::Out ? options_.out_filters : options_.err_filters;
}

Result<> Output::start_round(int round, AttemptFolder folder) {
  auto next = std::make_shared<Round>();
  next->number = round;
  for (const Stream stream : {Stream::Out, Stream::Err}) {
    if (folder.path.empty() || filters(stream).empty()) continue;
    const bool is_out = stream == Stream::Out;
    std::string path = is_out ? folder.filtered_out() : folder.filtered_err();
    Result<std::unique_ptr<LogFile>> file = LogFile::open(std::move(path), options_.files);
    if (!file) return fail(file.error());
    (is_out ? next->filtered_out : next->filtered_err) = std::move(*file);
  }
  round_ = std::move(next);
  std::erase_if(workers_, [](const auto& worker) { return !worker->is_open(); });
  return {};
}

Result<WorkerFds> Output::open_worker(WorkerStreams streams) {
  auto worker = std::make_unique<Worker>();
  worker->streams = std::move(streams);
  worker->round = round_;
  Result<Fd> out = open_stream(*worker, Stream::Out);
  if (!out) return fail(out.error());
  Result<Fd> err = open_stream(*worker, Stream::Err);
  if (!err) return fail(err.error());
  // One that was started again alone: what came before it and has ended is not asked for any more.
  std::erase_if(workers_, [&](const auto& other) {
    return other->streams.local_rank == worker->streams.local_rank && !other->is_open();
  });
  workers_.push_back(std::move(worker));
  return WorkerFds{.out = std::move(*out), .err = std::move(*err)};
}

Result<Fd> Output::open_stream(Worker& worker, Stream stream) {
  const bool is_out = stream == Stream::Out;
  const Target target = is_out ? worker.streams.out : worker.streams.err;
  const WorkerPaths paths = worker_paths(worker.streams.folder);
  const bool has_folder = !paths.folder.empty();
  switch (target) {
    case Target::Inherit:
      if (options_.format == Format::Text) return Fd();
      return open_pipe(worker, stream, false, true);
    case Target::Null:
      return open_to_write(kNullDevice, 0);
    case Target::File:
      if (!has_folder) return open_to_write(kNullDevice, 0);
      if (options_.files.any()) return open_pipe(worker, stream, true, false);
      return open_to_write(is_out ? paths.out : paths.err, O_CREAT | O_APPEND);
    case Target::Tee:
      return open_pipe(worker, stream, has_folder, true);
  }
  MUSTER_ASSERT(false);
  return Fd();
}

Result<Fd> Output::open_pipe(Worker& worker, Stream stream, bool with_file, bool with_console) {
  const bool is_out = stream == Stream::Out;
  PipeSinks sinks = make_sinks(worker, stream, with_console);
  if (with_file) {
    const WorkerPaths paths = worker_paths(worker.streams.folder);
    auto file = LogFile::open(is_out ? paths.out : paths.err, options_.files);
    if (!file) return fail(file.error());
    sinks.file = std::move(*file);
  }
  sinks.keep_recent = !with_file || options_.files.any();
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return cannot_open("a pipe for a worker's output", errno);
  Fd reader(ends[0]);
  Fd writer(ends[1]);
  // Only our end: the worker expects writes that wait.
  if (::fcntl(reader.get(), F_SETFL, O_NONBLOCK) != 0) {
    return cannot_open("a pipe for a worker's output", errno);
  }
  (is_out ? worker.out : worker.err) =
      std::make_unique<WorkerPipe>(host_, std::move(reader), std::move(sinks), options_.lines);
  return writer;
}

PipeSinks Output::make_sinks(const Worker& worker, Stream stream, bool with_console) {
  PipeSinks sinks;
  if (!with_console) return sinks;
  const WorkerStreams& streams = worker.streams;
  const std::string prefix =
      make_prefix(options_.prefix_template, PrefixFields{.role = streams.role,
                                                         .rank = streams.rank,
                                                         .local_rank = streams.local_rank,
                                                         .hostname = options_.hostname});
  sinks.console = &console(stream);
  if (options_.format == Format::Json) {
    sinks.console_format = LineFormat::json(LineOrigin{.role = streams.role,
                                                       .rank = streams.rank,
                                                       .local_rank = streams.local_rank,
                                                       .stream = stream,
                                                       .round = worker.round->number});
  } else {
    const bool colour = options_.colour == Colour::Always ||
                        (options_.colour == Colour::Auto && sinks.console->is_terminal());
    sinks.console_format =
        LineFormat::text(colour ? in_colour(prefix, streams.local_rank) : prefix);
  }
  const bool is_out = stream == Stream::Out;
  const bool is_teed = (is_out ? streams.out : streams.err) == Target::Tee;
  Round& round = *worker.round;
  sinks.filtered = is_teed ? (is_out ? round.filtered_out : round.filtered_err).get() : nullptr;
  sinks.filters = &filters(stream);
  sinks.filtered_format = LineFormat::text(prefix);
  return sinks;
}

void Output::say(Stream stream, std::string_view line) {
  Console& target = console(stream);
  if (target.is_broken()) return;
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (options_.format == Format::Json) {
    append_agent_json(target.queue(), stream, line, wall_clock_text());
  } else {
    target.queue().append(line).push_back('\n');
  }
  target.added();
}

std::vector<std::string> Output::recent_lines(int local_rank, Stream stream,
                                              std::size_t count) const {
  const auto is_wanted = [&](const auto& worker) {
    return worker->streams.local_rank == local_rank;
  };
  const auto found = std::find_if(workers_.rbegin(), workers_.rend(), is_wanted);
  if (found == workers_.rend()) return {};
  const Worker& worker = **found;
  const bool is_out = stream == Stream::Out;
  const WorkerPipe* pipe = (is_out ? worker.out : worker.err).get();
  const Target target = is_out ? worker.streams.out : worker.streams.err;
  const bool has_file =
      (target == Target::File || target == Target::Tee) && !worker.streams.folder.empty();
  if (has_file && !options_.files.any()) {
    const WorkerPaths paths = worker_paths(worker.streams.folder);
    return last_lines_of_file(is_out ? paths.out : paths.err, count);
  }
  return pipe == nullptr ? std::vector<std::string>() : pipe->recent_lines(count);
}

std::uint64_t Output::console_bytes() const { return out_.written_bytes() + err_.written_bytes(); }

bool Output::is_idle() const { return host_.open_pipes == 0 && out_.is_empty() && err_.is_empty(); }

Task<Result<>> Output::drain(TimePoint deadline) {
  if (co_await settle(true, deadline)) co_return Result<>();
  abandon_pipes();
  const TimePoint last = after(loop_.now(), kLastWrites);
  if (co_await settle(false, last)) co_return Result<>();
  co_return fail(ErrorKind::Timeout,
                 fmt::format("the console takes no more output: {} bytes of the workers' lines are "
                             "not written",
                             out_.unwritten_bytes() + err_.unwritten_bytes()));
}

Task<bool> Output::settle(bool pipes_too, TimePoint deadline) {
  Drain drain(*this, pipes_too);
  Timer timer(loop_, [&drain] { drain.done.set(false); });
  timer.set(deadline);
  check_drain();
  const bool settled = co_await drain.done;
  co_return settled;
}

void Output::check_drain() {
  if (drain_ == nullptr) return;
  const bool ended = host_.open_pipes == 0 || !drain_->pipes_too;
  if (ended && out_.is_empty() && err_.is_empty()) drain_->done.set(true);
}

void Output::abandon_pipes() {
  std::string ranks;
  for (const auto& worker : workers_) {
    bool held = false;
    for (WorkerPipe* pipe : {worker->out.get(), worker->err.get()}) {
      if (pipe == nullptr || !pipe->is_open() || !pipe->abandon()) continue;
      held = true;
      ++host_.counts.abandoned_pipes;
    }
    if (held) ranks += fmt::format("{}{}", ranks.empty() ? "" : ",", worker->streams.rank);
  }
  if (ranks.empty()) return;
  log::warn("logs",
            "the output of ended workers is still held open by processes they started, closing it "
            "ranks={}",
            ranks);
}

void Output::console_changed() {
  if (host_.paused_pipes > 0) {
    for (const auto& worker : workers_) {
      if (worker->out) worker->out->resume();
      if (worker->err) worker->err->resume();
    }
  }
  check_drain();
}

void Output::line_held(TimePoint deadline) {
  // Lines are held for the same time each, so the first one that is held is due first.
  if (!hold_timer_.pending()) hold_timer_.set(deadline);
}

void Output::tick() {
  std::optional<TimePoint> next;
  for (const auto& worker : workers_) {
    for (WorkerPipe* pipe : {worker->out.get(), worker->err.get()}) {
      if (pipe == nullptr) continue;
      const std::optional<TimePoint> due = pipe->tick(loop_.now());
      if (due && (!next || *due < *next)) next = due;
    }
  }
  if (next) hold_timer_.set(*next);
}

}  // namespace muster::logs
