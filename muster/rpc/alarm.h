// Alarm: wakes a thread that sleeps in poll(2).
//
// They are kept and used again: there are as many as threads ever slept at the same time.
#pragma once

#include "muster/base/fd.h"

#include <memory>
#include <thread>
#include <utility>

namespace muster::rpc {

class Alarm {
 public:
  struct GiveBack {
    void operator()(Alarm* alarm) const;
  };
  using Taken = std::unique_ptr<Alarm, GiveBack>;
  // For the calling thread; nothing when the process has no descriptor left.
  static Taken take();

  // Readable once it has been rung; perhaps also without.
  int fd() const { return event_.get(); }
  // From any thread. The one that it is for does not sleep then, so nothing happens.
  void ring() const;
  // When it has been heard.
  void silence() const;

  explicit Alarm(Fd event) : event_(std::move(event)) {}

 private:
  const Fd event_;
  std::thread::id owner_;
};

}  // namespace muster::rpc
