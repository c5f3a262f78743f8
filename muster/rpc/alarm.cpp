#include "muster/rpc/alarm.h"

#include <cstdint>
#include <mutex>
#include <sys/eventfd.h>
#include <unistd.h>
#include <vector>

namespace muster::rpc {
namespace {

struct Spare {
  std::mutex mutex;  // guards what follows
  std::vector<Alarm*> alarms;
  pid_t process = 0;
  // A child that was forked must not share those of its parent.
  std::vector<Alarm*>& own() {
    const pid_t self = ::getpid();
    if (std::exchange(process, self) != self) alarms.clear();
    return alarms;
  }
};

Spare& spare() {
  // Never destroyed: threads that still wait at the end of the program give theirs back.
  static auto* const kSpare = new Spare;
  return *kSpare;
}

}  // namespace

Alarm::Taken Alarm::take() {
  Taken alarm;
  {
    Spare& kept = spare();
    const std::lock_guard lock(kept.mutex);
    if (!kept.own().empty()) {
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
  Spare& kept = spare();
  const std::lock_guard lock(kept.mutex);
  kept.own().push_back(alarm);
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
