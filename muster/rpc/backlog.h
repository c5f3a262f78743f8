// Backlog: the requests that came over one connection and stand in line for a thread.
//
// A worker that is slow must not take in all that others have to send. Past a limit nothing more is
// read from that connection, until half of them have been begun: then the others have to wait. What
// needs no thread is not counted.
//
// Owned by a connection and its requests together. Any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>

namespace muster::rpc {

inline constexpr std::size_t kBacklogRequestsMax = 65536;

struct BacklogLimits {
  std::size_t requests = kBacklogRequestsMax;
  std::size_t bytes = 0;
};

class Backlog {
 public:
  // `hold` is told whether to stop reading, with the lock: it must not come back here.
  Backlog(BacklogLimits limits, std::function<void(bool)> hold);

  void add(std::size_t bytes);
  // One that was added has been begun, or dropped.
  void remove(std::size_t bytes);

 private:
  const BacklogLimits limits_;
  const std::function<void(bool)> hold_;
  std::mutex mutex_;  // guards what follows
  std::size_t requests_ = 0;
  std::size_t bytes_ = 0;
  bool is_holding_ = false;
};

}  // namespace muster::rpc
