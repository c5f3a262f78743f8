// The line in which calls stand that want to run Python.
//
// Only one thread at a time can run Python, so more of them only fight for the interpreter's lock,
// and every fight costs more than a short function. So one thread of the pool serves the line, call
// by call. But functions may also wait, for others or for a device: when the one who serves does
// not come back for a while and others stand in line, another thread joins in; at once, if it says
// that it waits.
//
// Any thread.
#pragma once

#include "muster/rpc/pool.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace muster::python {

class Line {
 public:
  // Runs it when it is its turn, on a thread of `pool`; drops it once that is stopped. While
  // anybody stands in line, a thread of the pool serves it, so the pool is there.
  void add(std::function<void()> run, rpc::Pool& pool);

  // This thread is about to wait. If it serves a line, another one does from now on. Without the
  // interpreter's lock.
  static void step_aside();

 private:
  struct Serving;

  void serve(rpc::Pool& pool);
  // Requires: the lock.
  bool start_serving(rpc::Pool& pool);
  void watch(rpc::Pool& pool);

  std::mutex mutex_;  // guards what follows
  std::condition_variable served_;
  std::deque<std::function<void()>> entries_;
  std::size_t server_count_ = 0;
  std::uint64_t taken_count_ = 0;
  bool is_watched_ = false;
};

}  // namespace muster::python
