// Incoming: a connection that another worker opened to call this one.
//
// It says who it is, then sends requests; each is handed on with the duty to answer it. On the
// agent's loop, but for what a Responder does.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/task.h"
#include "muster/rpc/agent.h"
#include "muster/rpc/backlog.h"
#include "muster/rpc/faults.h"
#include "muster/rpc/hello.h"
#include "muster/rpc/link.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace muster::rpc {

// Connections of those who have not said yet who they are. Workers of the largest groups may all
// come at once; what nobody ever says costs little, and ends after a while.
inline constexpr std::int64_t kStrangersMax = 16384;
// Beside those, of this machine, for which it does not matter how many come by the network.
inline constexpr std::int64_t kStrangersOfThisMachineMax = 64;
// How many there may be in a process that may have so many descriptors, so that most are left to
// the workers that it knows, and to the program.
std::int64_t strangers_max_of(std::uint64_t descriptors_max);
// How long a stranger may say nothing while others have to wait for its place.
inline constexpr Duration kGreetingMaxWhenFull = std::chrono::seconds(1);

// What all connections to one agent share; there until the last Responder is gone.
struct Reception {
  explicit Reception(WorkerInfo who) : self(std::move(who)) {}

  Loop* loop = nullptr;
  RequestHandler* handler = nullptr;
  std::string job;
  WorkerInfo self;
  std::atomic<std::uint64_t> incarnation = 0;
  LinkOptions link;
  std::shared_ptr<const DeviceDirectory> devices;
  std::shared_ptr<Faults> faults;  // nothing goes wrong on purpose if there are none
  BacklogLimits backlog;           // for each connection
  // Whether one that knows the job is let in: why not, or nothing. Not asked in a dynamic group.
  std::function<Task<std::string>(Hello)> admit{};
  // Calls that on the loop, after a while, if there still is an agent. Any thread.
  std::function<void(Duration, std::function<void()>)> later;
  std::atomic<bool> is_open = true;            // once it is not, nothing is answered any more
  std::atomic<std::int64_t> active_count = 0;  // requests that are not answered
  // On the loop. `strangers_changed` is called whenever there is one more or less, if it is set.
  std::int64_t stranger_count = 0;
  std::function<void()> strangers_changed{};
  void count_stranger(std::int64_t change) {
    stranger_count += change;
    if (strangers_changed) strangers_changed();
  }
};

// The requests of one connection for which nobody waits any more; those that it has heard of. Any
// thread.
class Cancelled {
 public:
  void add(std::int64_t id);
  void remove(std::int64_t id);
  bool contains(std::int64_t id) const;

 private:
  std::atomic<bool> has_any_ = false;
  mutable std::mutex mutex_;
  std::set<std::int64_t> ids_;
};

class Incoming final : public LinkEvents {
 public:
  // `ended` is called, on the loop and not inside another call, when the connection is gone.
  // `number`: no other connection to this agent has it.
  Incoming(std::shared_ptr<Reception> reception, std::unique_ptr<Stream> stream, std::string where,
           ConnectionNumber number, std::function<void()> ended);
  ~Incoming() override;

  void look_after(TimePoint now, Duration silence_max);
  // Ends it if it is a stranger that has said nothing for kGreetingMaxWhenFull.
  void give_place(TimePoint now);
  std::size_t queued_bytes() const { return link_->queued_bytes(); }
  // Who opened it; nothing until it has said so.
  const WorkerInfo* from() const { return from_.get(); }

 private:
  class Back;

  void on_message(Link& link, Message message) override;
  void on_lost(Link& link, std::string reason) override;
  void greet(Link& link, const Message& message);
  Task<void> let_in(std::shared_ptr<Link> link, Hello hello);
  void refuse(Link& link, const std::string& problem);

  std::shared_ptr<Reception> reception_;
  std::string where_;
  const ConnectionNumber number_;
  std::function<void()> ended_;
  std::shared_ptr<Link> link_;
  std::shared_ptr<Backlog> backlog_;
  std::shared_ptr<Cancelled> cancelled_ = std::make_shared<Cancelled>();
  std::shared_ptr<const WorkerInfo> from_;  // once it has said so
  const TimePoint opened_at_;
  TimePoint heard_at_;
  std::uint64_t heard_bytes_ = 0;
  std::uint64_t said_bytes_ = 0;
  bool has_greeted_ = false;
  TaskScope tasks_;
};

}  // namespace muster::rpc
