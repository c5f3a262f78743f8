#include "muster/store/notified_signal.h"

#include "muster/base/assert.h"
#include "muster/base/error.h"
#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace muster::store {
namespace {

// The first event after a quiet time wakes at once. When many write, nobody looks more often than
// this, for those who look keep those who write from locking the file.
constexpr Duration kGapMax = std::chrono::milliseconds(5);
// Written or cut; renamed; unlinked while we have it open.
constexpr std::uint32_t kEvents = IN_MODIFY | IN_MOVE_SELF | IN_ATTRIB;

}  // namespace

InotifyFd::~InotifyFd() {
  if (!fd_.is_open()) return;
  try {
    std::thread([fd = std::move(fd_)] {}).detach();
  } catch (...) {
    // There is no thread to be had: with what it was to do, the descriptor was closed here.
  }
}

std::unique_ptr<ChangeSignal> NotifiedChangeSignal::create(net::EpollLoop& loop, Random& random,
                                                           TimedChangeSignal::Options options,
                                                           int file) {
  InotifyFd inotify(Fd(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)));
  // By the descriptor: the path may lead to another file by now.
  const std::string path = fmt::format("/proc/self/fd/{}", file);
  if (inotify.get() < 0 || ::inotify_add_watch(inotify.get(), path.c_str(), kEvents) < 0) {
    log::debug("store", "other processes' writes are noticed by looking only reason={}",
               describe_errno(errno));
    return nullptr;
  }
  return std::unique_ptr<ChangeSignal>(
      new NotifiedChangeSignal(loop, random, options, std::move(inotify)));
}

NotifiedChangeSignal::NotifiedChangeSignal(net::EpollLoop& loop, Random& random,
                                           TimedChangeSignal::Options options, InotifyFd inotify)
    : loop_(loop),
      random_(random),
      options_(options),
      gap_(std::min(options.first, kGapMax)),
      delay_(options.first),
      last_(loop.now() - gap_),
      timer_(loop, [this] { waiting_->due.set(true); }),
      inotify_(std::move(inotify)),
      watch_(loop, inotify_.get(), [this](std::uint32_t) { on_event(); }) {}

NotifiedChangeSignal::Waiting::Waiting(NotifiedChangeSignal& owner)
    : signal(owner), due(owner.loop_) {
  MUSTER_ASSERT(signal.waiting_ == nullptr);
  signal.waiting_ = this;
  signal.watch_.want(EPOLLIN);
}

NotifiedChangeSignal::Waiting::~Waiting() {
  signal.watch_.want(0);
  signal.timer_.cancel();
  signal.due_ = kNever;
  signal.waiting_ = nullptr;
}

Task<void> NotifiedChangeSignal::wait() {
  {
    // Events that came while nobody waited are there still, and end this at once.
    Waiting waiting(*this);
    wake_at(after(loop_.now(), jittered(delay_, random_)));
    delay_ = longer(delay_, options_.max);
    co_await waiting.due;
  }
  last_ = loop_.now();
  // Before the file is looked at: what is written from now on is another event.
  std::array<char, 4096> events;
  while (::read(inotify_.get(), events.data(), events.size()) > 0) {
  }
}

void NotifiedChangeSignal::on_event() {
  watch_.want(0);  // it stays readable until the wait is over
  wake_at(after(last_, gap_));
}

void NotifiedChangeSignal::wake_at(TimePoint when) {
  if (when >= due_) return;
  due_ = when;
  timer_.set(when);
}

void NotifiedChangeSignal::hurry() {
  if (delay_ <= longer(options_.first, options_.max)) return;
  delay_ = options_.first;
  if (waiting_ != nullptr) wake_at(after(loop_.now(), jittered(delay_, random_)));
}

std::unique_ptr<ChangeSignal> make_change_signal(Loop& loop, Random& random,
                                                 TimedChangeSignal::Options options, int file) {
  if (auto* const epoll = dynamic_cast<net::EpollLoop*>(&loop)) {
    if (auto signal = NotifiedChangeSignal::create(*epoll, random, options, file)) return signal;
  }
  return std::make_unique<TimedChangeSignal>(loop, random, options);
}

}  // namespace muster::store
