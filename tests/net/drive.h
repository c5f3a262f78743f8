// Running a real loop from a test, turn by turn, until something has happened.
#pragma once

#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"

#include <chrono>
#include <functional>

namespace muster::tests {

// Only what is broken takes this long.
inline constexpr Duration kPatience = std::chrono::seconds(30);

namespace internal {

inline Task<void> look_until(Loop& loop, const std::function<bool()>& reached, bool& did) {
  const TimePoint limit = loop.now() + kPatience;
  while (!(did = reached()) && loop.now() < limit) {
    const TimePoint next = loop.now() + std::chrono::milliseconds(1);
    co_await sleep_until(loop, next);
  }
}

}  // namespace internal

// Looks after every turn in which something happened, and at least once a millisecond. False if it
// did not happen within kPatience.
inline bool run_until(net::EpollLoop& loop, const std::function<bool()>& reached) {
  bool did = false;
  loop.block_on(internal::look_until(loop, reached, did));
  return did;
}

}  // namespace muster::tests
