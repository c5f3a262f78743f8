// Crowd: thousands of connections that wait for one write.
//
// Also used to see what connections cost a server that hears nothing from them. Owned by the
// command loop or by one measurement, on its thread.
#pragma once

#include "bench/connection.h"
#include "bench/load.h"
#include "bench/protocol.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace muster::bench {

class Crowd {
 public:
  static Result<std::unique_ptr<Crowd>> open(int port, int waiter_count,
                                             std::unique_ptr<Protocol> protocol);

  // Every waiter begins to wait; returns when the server has seen them all.
  Result<> wait();
  // One round: `wait` unless it was called, then one write. Adds, for each waiter, the time from
  // just before the write was sent until the waiter had read its reply.
  Result<> wake(std::size_t value_bytes, Latencies& latencies);

  std::size_t size() const { return waiters_.size(); }

 private:
  Crowd(int port, std::unique_ptr<Protocol> protocol);
  Result<Connection> connect(Protocol::Role role);
  // The witness asks something and gets the answer. A server that takes connections in the order in
  // which they became readable has by then seen everything that was sent before.
  Result<> ask_witness();

  int port_;
  std::unique_ptr<Protocol> protocol_;
  Fd epoll_;
  std::vector<char> scratch_;
  std::deque<Connection> waiters_;
  std::unique_ptr<Connection> announcer_;
  std::unique_ptr<Connection> witness_;
  std::uint64_t round_ = 0;
  bool waiting_ = false;
};

}  // namespace muster::bench
