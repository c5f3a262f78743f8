#include "muster/logs/worker_pipe.h"

#include "muster/base/assert.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/log.h"

#include <cerrno>
#include <sys/epoll.h>
#include <unistd.h>
#include <utility>

namespace muster::logs {
namespace {

// How much is still read from a pipe that is given up: more than a pipe can hold, and not for ever
// if someone keeps writing.
constexpr std::size_t kAbandonedBytesMax = std::size_t{4} << 20;

}  // namespace

WorkerPipe::WorkerPipe(PipeHost& host, Fd reader, PipeSinks sinks, LineSplitter::Options lines)
    : host_(host), reader_(std::move(reader)), sinks_(std::move(sinks)), splitter_(lines) {
  watch_.emplace(host_.loop, reader_.get(), [this](std::uint32_t) { ready(); });
  watch_->want(EPOLLIN);
  ++host_.open_pipes;
}

WorkerPipe::~WorkerPipe() {
  if (!is_open()) return;
  --host_.open_pipes;
  if (paused_) --host_.paused_pipes;
}

void WorkerPipe::ready() {
  // The event may be from before the pause.
  if (paused_) return;
  // Asked before each read: of many pipes that are ready in one turn, the first may fill it.
  if (sinks_.console != nullptr && sinks_.console->is_full()) {
    pause();
  } else if (read_once() == Read::End) {
    end();
  }
}

WorkerPipe::Read WorkerPipe::read_once() {
  const ssize_t got = ::read(reader_.get(), host_.buffer.data(), host_.buffer.size());
  if (got > 0) {
    take(std::string_view(host_.buffer.data(), static_cast<std::size_t>(got)));
    return Read::Some;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Read::Nothing;
  if (got < 0) {
    log::error("logs", "cannot read a worker's output: {}; the rest of it is lost",
               describe_errno(errno));
  }
  return Read::End;
}

void WorkerPipe::take(std::string_view bytes) {
  host_.counts.bytes += bytes.size();
  if (sinks_.file) sinks_.file->write(bytes);
  if (sinks_.keep_recent) recent_.append(bytes);
  if (!splits()) return;
  const TimePoint now = host_.loop.now();
  with_lines([&](auto&& emit) { splitter_.feed(bytes, now, emit); });
  if (const std::optional<TimePoint> deadline = splitter_.next_deadline()) host_.held(*deadline);
}

template <typename Work>
void WorkerPipe::with_lines(Work&& work) {
  // One look at the clock for all lines of one read: they came together.
  const bool timed = sinks_.console != nullptr && sinks_.console_format.is_json();
  const std::string time = timed ? wall_clock_text() : std::string();
  work([&](const Line& line) { pass_on(line, time); });
  if (sinks_.console != nullptr) sinks_.console->added();
  if (!filtered_.empty()) {
    sinks_.filtered->write(filtered_);
    filtered_.clear();
  }
}

void WorkerPipe::pass_on(const Line& line, std::string_view time) {
  ++host_.counts.lines;
  if (line.unfinished) ++host_.counts.unfinished;
  if (sinks_.console != nullptr && !sinks_.console->is_broken()) {
    sinks_.console_format.append(sinks_.console->queue(), line, time);
  }
  if (sinks_.filtered != nullptr && matches_any(*sinks_.filters, line.text)) {
    ++host_.counts.filtered_lines;
    sinks_.filtered_format.append(filtered_, line, time);
  }
}

void WorkerPipe::pause() {
  paused_ = true;
  ++host_.paused_pipes;
  ++host_.counts.pauses;
  watch_->want(0);
}

void WorkerPipe::resume() {
  if (!paused_ || !sinks_.console->has_room()) return;
  paused_ = false;
  --host_.paused_pipes;
  watch_->want(EPOLLIN);
}

std::optional<TimePoint> WorkerPipe::tick(TimePoint now) {
  if (!is_open() || !splits()) return std::nullopt;
  const std::optional<TimePoint> deadline = splitter_.next_deadline();
  if (!deadline || now < *deadline) return deadline;
  // The rest of the line may be in the pipe, and it is we who do not read it.
  if (paused_) return after(now, kLineHold);
  with_lines([&](auto&& emit) { splitter_.tick(now, emit); });
  return splitter_.next_deadline();
}

void WorkerPipe::end() {
  with_lines([&](auto&& emit) { splitter_.finish(emit); });
  if (paused_) --host_.paused_pipes;
  paused_ = false;
  watch_.reset();
  reader_.reset();
  // The file keeps a descriptor that nobody needs any more.
  sinks_.file.reset();
  --host_.open_pipes;
  host_.ended();
}

bool WorkerPipe::abandon() {
  MUSTER_ASSERT(is_open());
  Read last = Read::Some;
  const std::uint64_t begin = host_.counts.bytes;
  while (last == Read::Some && host_.counts.bytes - begin < kAbandonedBytesMax) last = read_once();
  end();
  return last != Read::End;
}

}  // namespace muster::logs
