#include "muster/rpc/alarm.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <vector>

namespace muster::rpc {
namespace {

struct Spare {
  std::mutex mutex;  // guards what follows
  std::vector<Alarm*> alarms;
};

// Never destroyed: threads that still wait at the end of the program give theirs back.
std::atomic<Spare*>& spare() {
  static std::atomic<Spare*> current = new Spare;
  // A child that was forked must not share those of its parent, nor wait for a lock that one of its
  // parent's threads had. Told here rather than asked with each use, which is a system call.
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { current = new Spare; });
  return current;
}

}  // namespace

Alarm::Taken Alarm::take() {
  Taken alarm;
  {
    Spare& kept = *spare();
    const std::lock_guard lock(kept.mutex);
    if (!kept.alarms.empty()) {
      alarm.reset(kept.alarms.back());
      kept.alarms.pop_back();
    }
  }
  if (!alarm) {
    Fd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event.is_open()) return nullptr;
    alarm.reset(new Alarm(std::move(event)));
  }
  alarm->owner_ = std::this_thread::get_id();
  return alarm;
}

void Alarm::GiveBack::operator()(Alarm* alarm) const {
  Spare& kept = *spare();
  const std::lock_guard lock(kept.mutex);
  kept.alarms.push_back(alarm);
}

void Alarm::ring() const {
  if (std::this_thread::get_id() == owner_) return;
  const std::uint64_t once = 1;
  // It can only fail if it has been rung more often than anybody can count.
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &once, sizeof once);
}

void Alarm::silence() const {
  std::uint64_t times = 0;
  [[maybe_unused]] const ssize_t got = ::read(event_.get(), &times, sizeof times);
}

}  // namespace muster::rpc
