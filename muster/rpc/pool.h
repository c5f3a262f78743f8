// Pool: the threads that run user functions.
//
// `thread_count` of them run at once. A function that waits for another call (Future::wait, and so
// every synchronous call) does not count while it waits: another thread takes its place if there is
// work, so that calls which come back to where they started never wait for a thread of their own
// pool, however few there are.
//
// Where the system lets it start no more threads, it goes on with those that there are.
//
// Owned by an agent. `post` from any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace muster::rpc {

// A chain of calls that is deeper than this waits for threads after all.
inline constexpr std::size_t kPoolThreadsMax = 4096;

class Pool {
 public:
  // Threads are started when there is work for them. `name` is what ps(1) shows. Requires:
  // thread_count > 0. There are never more than `threads_max`, those that wait included.
  Pool(std::string name, std::size_t thread_count, std::size_t threads_max = kPoolThreadsMax);
  // As `stop`.
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Runs `work` on a thread of the pool; it must not throw. False, and it never runs, once the pool
  // is stopped, and if there is no thread and the system lets none be started.
  bool post(std::function<void()> work);

  // Takes no more work, finishes what it has, and ends the threads. Not from one of them.
  void stop();

  bool is_stopped() const;
  std::size_t thread_count() const { return thread_count_; }
  // Whether this thread is one of them.
  bool is_current() const;
  // Threads that could take work right now, those that were not needed yet included.
  std::size_t idle_count() const;
  std::size_t waiting_count() const;  // in a Waiting

  // Lives as long as the calling thread waits for something that other work may have to bring
  // about. Does nothing on threads that belong to no pool.
  class Waiting {
   public:
    Waiting();
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Pool* pool_;
  };

 private:
  void run();
  // Starts a thread if there is work that nobody is there to take. A text to be logged without the
  // lock if that was wanted and did not go. Requires: the lock.
  std::string add_thread_if_needed();
  // Those that have ended, to be joined without the lock. Requires: the lock.
  std::vector<std::thread> take_ended();
  // Threads that are not in a Waiting.
  std::size_t active_count() const { return alive_count_ - waiting_count_; }

  const std::string name_;
  const std::size_t thread_count_;
  const std::size_t threads_max_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
  std::vector<std::thread::id> ended_;
  std::size_t alive_count_ = 0;
  std::size_t sleeping_count_ = 0;
  std::size_t waiting_count_ = 0;
  bool stopped_ = false;
  bool is_short_ = false;  // the last thread that was wanted could not be started
};

}  // namespace muster::rpc
