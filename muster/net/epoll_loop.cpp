#include "muster/net/epoll_loop.h"

#include "muster/base/assert.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace muster::net {
namespace {

constexpr int kEventsMax = 512;
// Together with what other threads take meanwhile.
constexpr Duration kLookMax = std::chrono::milliseconds(5);

// Milliseconds until `when`, rounded up so that a timer is never early.
int milliseconds_until(TimePoint when, TimePoint now) {
  if (when <= now) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - now).count();
  constexpr decltype(left) kLongestSleep = 3'600'000;
  return static_cast<int>(std::min(left, kLongestSleep));
}

}  // namespace

FdWatch::FdWatch(EpollLoop& loop, int fd, std::function<void(std::uint32_t)> ready)
    : loop_(loop), fd_(fd), ready_(std::move(ready)) {}

FdWatch::~FdWatch() {
  want(0);
  if (loop_.calling_ == this) loop_.calling_ = nullptr;
  for (auto& [watch, events] : loop_.pending_) {
    if (watch == this) watch = nullptr;
  }
}

void FdWatch::want(std::uint32_t events) {
  if (events == wanted_) return;
  epoll_event event{};
  event.events = events;
  event.data.ptr = this;
  const int operation = wanted_ == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  const int done = ::epoll_ctl(loop_.epoll_.get(), operation, fd_, &event);
  // Fails only for a descriptor that is closed or cannot be polled, or when the kernel is out of
  // memory.
  MUSTER_ASSERT(done == 0 || events == 0);
  wanted_ = events;
}

Result<LoopDescriptors> LoopDescriptors::open() {
  LoopDescriptors descriptors{Fd(::epoll_create1(EPOLL_CLOEXEC)), {}};
  if (descriptors.epoll.is_open()) descriptors.wake = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!descriptors.wake.is_open()) return fail(ErrorKind::Unavailable, describe_errno(errno));
  return descriptors;
}

EpollLoop::EpollLoop()
    : EpollLoop([] {
        auto descriptors = LoopDescriptors::open();
        MUSTER_ASSERT(descriptors);
        return std::move(*descriptors);
      }()) {}

EpollLoop::EpollLoop(LoopDescriptors descriptors)
    : now_(clock_.now()), epoll_(std::move(descriptors.epoll)), wake_(std::move(descriptors.wake)) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  MUSTER_ASSERT(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0);
}

EpollLoop::~EpollLoop() {
  for (Background& background : background_) background.thread.join();
  run_posted();  // what the threads left behind may own things
}

// Both wake the loop while they hold the lock, and the destructor takes it: so a loop may be
// destroyed by its own thread as soon as it has been stopped, even if the thread that stopped it is
// still on its way out of the call.
Duration EpollLoop::wall_time() const {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  const Duration wall = std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  // At the instant that `now` gives, which may be a while ago.
  return wall - (clock_.now() - now());
}

void EpollLoop::post(std::function<void()> work) {
  const std::lock_guard lock(posted_mutex_);
  posted_.push_back(std::move(work));
  wake();
}

void EpollLoop::wake() {
  const std::uint64_t one = 1;
  // Fails only if the counter is full, and then the loop is awake anyway.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void EpollLoop::run_posted() {
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(posted_mutex_);
    work.swap(posted_);
  }
  for (std::function<void()>& item : work) item();
}

void EpollLoop::run() {
  while (!stopping_.load(std::memory_order_acquire)) turn();
  stopping_ = false;
}

void EpollLoop::stop() {
  const std::lock_guard lock(posted_mutex_);
  stopping_.store(true, std::memory_order_release);
  wake();
}

void EpollLoop::block_on(Task<void> task) {
  bool done = false;
  TaskScope scope;
  scope.start(run_and_mark(std::move(task), done));
  while (!done) turn();
}

Task<void> EpollLoop::run_and_mark(Task<void> task, bool& done) {
  co_await task;
  done = true;
}

void EpollLoop::run_in_background(std::function<void()> work) {
  for (auto entry = background_.begin(); entry != background_.end();) {
    if (!entry->done) {
      ++entry;
      continue;
    }
    entry->thread.join();
    entry = background_.erase(entry);
  }
  Background& background = background_.emplace_back();
  const auto run = [&background, work = std::move(work)] {
    work();
    background.done = true;
  };
  try {
    background.thread = std::thread(run);
  } catch (const std::system_error&) {
    // The system lets none be started. Better that the loop waits than that nothing ever comes.
    run();
    background_.pop_back();
  }
}

int EpollLoop::wait_for_events(epoll_event* events, int timeout) {
  if (!look_ || timeout == 0) return ::epoll_wait(epoll_.get(), events, kEventsMax, timeout);
  const TimePoint started = clock_.now();
  if (spin_.wants_to_know(started)) is_kept_from_looking(started);
  const Duration budget = spin_.at(started);
  Duration waited = Duration::zero();
  int count = 0;
  // A timer that is due is not to wait until the look is over.
  const Duration left = std::chrono::milliseconds(timeout);
  const TimePoint ends =
      started + (timeout < 0 ? kLookMax : std::min(kLookMax, left - std::chrono::milliseconds(1)));
  if (budget > Duration::zero() && look_for(budget, ends, waited, events, count)) {
    spin_.came(waited, true);
    return count;
  }
  const TimePoint slept = clock_.now();
  const auto passed = std::chrono::floor<std::chrono::milliseconds>(slept - started);
  if (timeout > 0) timeout = std::max(0, timeout - static_cast<int>(passed.count()));
  const bool may_sleep = prepare_();
  if (!may_sleep) look_();
  count = ::epoll_wait(epoll_.get(), events, kEventsMax, may_sleep ? timeout : 0);
  waited += clock_.now() - slept;
  if (count > 0) {
    spin_.came(waited, false);
  } else {
    spin_.nothing_came(waited);
  }
  return count;
}

bool EpollLoop::look_for(Duration budget, TimePoint ends, Duration& looked, epoll_event* events,
                         int& count) {
  TimePoint now = clock_.now();
  bool has_given_way = false;
  while (looked < budget && now < ends) {
    const bool found = look_();
    count = ::epoll_wait(epoll_.get(), events, kEventsMax, 0);
    if (count < 0) count = 0;
    const TimePoint before = std::exchange(now, clock_.now());
    looked += now - before;
    // Or what was found took so long.
    const bool is_suspicious = now - before > SpinBudget::kSuspicious && !has_given_way;
    const bool is_kept = is_suspicious && is_kept_from_looking(now);
    // Also when something has come: others may wait for what was found, or add to it.
    has_given_way = give_way_();
    if (found || count > 0) return true;
    if (is_kept) break;
    now = clock_.now();
  }
  return false;
}

bool EpollLoop::is_kept_from_looking(TimePoint now) {
  const Duration lost = lost_to_others(now, spin_.rested_until());
  if (lost == Duration::zero()) return false;
  if (moves_.is_another_due(now, lost) && move_to_another_processor()) return false;
  spin_.preempted(now, moves_.lost());
  return true;
}

void EpollLoop::turn() {
  int timeout = -1;
  if (has_ready()) {
    timeout = 0;
  } else if (const auto next = next_wake()) {
    timeout = milliseconds_until(*next, clock_.now());
  }
  epoll_event events[kEventsMax];
  const int count = wait_for_events(events, timeout);
  MUSTER_ASSERT(count >= 0 || errno == EINTR);
  // Perhaps this process was stopped for long: what has come meanwhile goes before what is due.
  if (count < 0) return;
  now_ = clock_.now();
  bool woken = false;
  for (int index = 0; index < count; ++index) {
    auto* watch = static_cast<FdWatch*>(events[index].data.ptr);
    const std::uint32_t bits = events[index].events;
    if (watch == nullptr) {
      woken = true;
    } else {
      pending_.emplace_back(watch, bits);
    }
  }
  for (std::size_t index = 0; index < pending_.size(); ++index) {
    const auto [watch, bits] = pending_[index];
    if (watch == nullptr) continue;
    pending_[index].first = nullptr;
    // The function is moved out while it runs, for it may destroy the watch, and itself with it.
    std::function<void(std::uint32_t)> ready = std::exchange(watch->ready_, nullptr);
    calling_ = watch;
    ready(bits);
    if (calling_ == watch) watch->ready_ = std::move(ready);
    calling_ = nullptr;
  }
  pending_.clear();
  if (woken) {
    std::uint64_t value = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &value, sizeof value);
    run_posted();
  }
  run_timers(now_);
  run_ready();
}

}  // namespace muster::net
