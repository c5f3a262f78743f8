#include "muster/agent/signs.h"

#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/base/signal_name.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace muster::agent {
namespace {

// Enough to be alone with it, and short: the path of a socket may not be long.
constexpr std::size_t kFolderRandomCharacters = 12;

}  // namespace

Signs::Signs(net::EpollLoop& loop, SignsOptions options)
    : loop_(loop),
      options_(std::move(options)),
      progress_timer_(loop, [this] { check_progress(); }) {
  watchdog::DeadlinesOptions deadlines;
  deadlines.belongs = [this](pid_t pid) { return crew_ != nullptr && crew_->find(pid) != nullptr; };
  deadlines.expired = [this](const watchdog::Timeout& late) { return expired(late); };
  deadlines_ = std::make_unique<watchdog::Deadlines>(loop_, std::move(deadlines));
}

Signs::~Signs() {
  if (file_timer_) options_.record(observe::WatchdogMoment::Stopped, {});
  file_timer_.reset();
  socket_.reset();
  if (!folder_.empty()) ::rmdir(folder_.c_str());
}

Result<std::unique_ptr<Signs>> Signs::create(net::EpollLoop& loop, Random& random,
                                             SignsOptions options) {
  std::unique_ptr<Signs> signs(new Signs(loop, std::move(options)));
  const std::string folder = fmt::format("{}/muster-{}", signs->options_.temporary_folder,
                                         random_id(random).substr(0, kFolderRandomCharacters));
  if (signs->options_.announce) signs->options_.announce(folder);
  if (::mkdir(folder.c_str(), S_IRWXU) != 0) {
    return fail(
        ErrorKind::Unavailable,
        fmt::format("cannot make a folder for the agent's socket in {}: {}; set TMPDIR to a "
                    "folder that can be written",
                    signs->options_.temporary_folder, describe_errno(errno)));
  }
  signs->folder_ = folder;
  watchdog::AgentSocketOptions socket;
  socket.path = folder + "/agent";
  auto opened = watchdog::AgentSocket::create(
      loop, std::move(socket),
      [self = signs.get()](pid_t sender, const watchdog::Message& message) {
        return self->handle(sender, message);
      });
  if (!opened) return fail(std::move(opened.error()));
  signs->socket_ = std::move(*opened);
  if (signs->options_.file_timer) {
    watchdog::FileTimerEnvironment environment;
    environment.enable = "1";
    environment.path = signs->options_.timer_file;
    environment.temporary_folder = folder;
    watchdog::FileTimerOptions timer;
    timer.path = watchdog::file_timer_path(environment, random).value_or("");
    auto server = watchdog::FileTimerServer::create(loop, *signs->deadlines_, std::move(timer));
    if (!server) return fail(std::move(server.error()));
    signs->file_timer_ = std::move(*server);
    signs->options_.record(observe::WatchdogMoment::Started, {});
  }
  return signs;
}

void Signs::begin(Crew& crew) {
  crew_ = &crew;
  progress_.emplace(options_.progress, static_cast<int>(crew.workers().size()), loop_.now());
  check_progress();
}

void Signs::end() {
  deadlines_->clear();
  progress_timer_.cancel();
  crew_ = nullptr;
}

void Signs::exited(const Worker& worker) {
  if (!progress_) return;
  progress_->ended(worker.local_rank);
  check_progress();
}

void Signs::restarted(const Worker& worker) {
  if (!progress_) return;
  progress_->restarted(worker.local_rank, loop_.now());
  check_progress();
}

std::optional<TimePoint> Signs::last_alive(int local_rank) const {
  if (!progress_) return std::nullopt;
  return progress_->last_alive(local_rank);
}

Result<> Signs::handle(pid_t sender, const watchdog::Message& message) {
  Worker* worker = crew_ == nullptr ? nullptr : crew_->find(sender);
  if (worker == nullptr || !progress_) {
    return fail(ErrorKind::Invalid,
                fmt::format("process {} does not belong to a worker of this agent", sender));
  }
  switch (message.kind) {
    case watchdog::MessageKind::Alive:
      progress_->alive(worker->local_rank, loop_.now());
      break;
    case watchdog::MessageKind::Ready:
      progress_->ready(worker->local_rank, loop_.now());
      break;
    case watchdog::MessageKind::Status:
      worker->status = message.text;
      return {};
    case watchdog::MessageKind::Expires: {
      watchdog::Timeout timeout;
      // A shell's `muster expires` has ended by then: the promise is its worker's.
      timeout.pid = worker->pid();
      timeout.scope = message.scope;
      timeout.deadline = after(loop_.now(), message.length);
      timeout.signal = message.signal;
      return deadlines_->set(std::move(timeout));
    }
    case watchdog::MessageKind::Release:
      if (deadlines_->release(worker->pid(), message.scope)) return {};
      return fail(ErrorKind::Invalid, fmt::format("no timer '{}' is set", message.scope));
  }
  check_progress();
  return {};
}

Result<> Signs::expired(const watchdog::Timeout& late) {
  observe::WatchdogTimer timer;
  timer.worker_pid = late.pid;
  timer.scope_id = late.scope;
  timer.expiration_time = late.expiration_time;
  timer.signal = late.signal;
  options_.record(observe::WatchdogMoment::TimerExpired, timer);
  Worker* worker = crew_ == nullptr ? nullptr : crew_->find(late.pid);
  if (worker == nullptr) return {};
  if (late.signal <= 0) {
    log::warn("agent", "timer {} of process {} has expired, and asks for no signal",
              log::quote(late.scope), late.pid);
    return {};
  }
  options_.record(observe::WatchdogMoment::KillWorker, timer);
  std::string note = fmt::format("its timer {} expired, so it got {}", log::quote(late.scope),
                                 signal_name(late.signal));
  // The process that made the promise; the worker counts as failed when it ends because of it.
  if (late.pid != worker->pid()) {
    worker->note = note;
    return deadlines_->signal(late.pid, late.signal);
  }
  options_.late(*worker, late.signal, "timer", std::move(note));
  return {};
}

void Signs::check_progress() {
  if (crew_ == nullptr || !progress_) return;
  for (const watchdog::Late& late : progress_->check(loop_.now())) {
    Worker& worker = crew_->workers().at(static_cast<std::size_t>(late.worker));
    const bool hung = late.kind == watchdog::Late::Kind::Hung;
    options_.late(worker, SIGKILL, hung ? "hang" : "start", "it " + watchdog::describe(late));
  }
  const auto next = progress_->next_deadline();
  progress_timer_.set(next ? *next : kNever);
}

}  // namespace muster::agent
