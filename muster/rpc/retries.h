// Retries: sends what the framework repeats by itself, as RetrySchedule decides.
//
// The same bytes each time. `send` from any thread; the timer lives on the agent's loop.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/loop.h"
#include "muster/rpc/agent.h"
#include "muster/rpc/retry_schedule.h"

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace muster::rpc {

class Retries {
 public:
  // `clock` may be read by any thread. Requires: all three outlive it; `stop` before the loop's
  // end.
  Retries(Agent& agent, Loop& loop, const Clock& clock);
  ~Retries();
  Retries(const Retries&) = delete;
  Retries& operator=(const Retries&) = delete;

  Future<Message> send(std::string to, Message request, RetryOptions options);
  // On the loop: what waits for its time fails, and nothing is sent again.
  void stop();

 private:
  class Attempt;
  struct Entry {
    std::string to;
    Message request;
    Promise<Message> promise;
    bool was_sent = false;  // some attempt may have left this process
  };

  void transmit(RetryEntry number);
  void ended(RetryEntry number, CallResult<Message> outcome);
  void finish(RetryEntry number, CallResult<Message> outcome);
  void rearm();
  void due();

  Agent& agent_;
  Loop& loop_;
  const Clock& clock_;
  std::mutex mutex_;  // guards what follows
  RetrySchedule schedule_;
  std::unordered_map<RetryEntry, std::shared_ptr<Entry>> entries_;
  bool is_stopped_ = false;
  Timer timer_;  // on the loop
};

}  // namespace muster::rpc
