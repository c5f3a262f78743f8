// Outgoing: this worker's calls to one other worker, and the connection that carries them.
//
// The connection is opened when the first call is made, and again after it was lost, with growing
// pauses. What is called meanwhile waits for it. Calls that were under way when a connection broke
// fail; they may have run.
//
// In a static group it also finds out whether that worker has died; see Suspicion.
//
// `submit`, `cut`, and those of Helper from any thread, the rest on the agent's loop.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/loop.h"
#include "muster/base/spin.h"
#include "muster/base/task.h"
#include "muster/rpc/calls.h"
#include "muster/rpc/group.h"
#include "muster/rpc/hello.h"
#include "muster/rpc/link.h"
#include "muster/rpc/suspicion.h"
#include "muster/rpc/texts.h"
#include "muster/rpc/throttle.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace muster::rpc {

// What all connections of an agent share.
struct Surroundings {
  Loop* loop = nullptr;
  Calls* calls = nullptr;
  LinkOptions link;
  std::string job;
  Duration connect_timeout = std::chrono::seconds(10);
  Duration pause_min = std::chrono::milliseconds(20);
  Duration pause_max = std::chrono::seconds(2);
  // A new number for each connection of the agent.
  std::function<PeerId()> next_connection;
  // Bytes to that worker, by the best way there is. Closed if its host says that nobody listens
  // there.
  std::function<Task<Result<std::unique_ptr<Stream>>>(Member)> open_stream;
  // A fresh look where it is; nothing new if it is as before.
  std::function<Task<Result<Member>>(std::string name)> look_up;
  std::function<void(const Member&)> suspect;
  std::function<void(const Member&)> reached{};
  // Whether the calling thread may wait for room; nothing: none may.
  std::function<bool()> may_wait{};
  // The connection to it was lost, and when it has died; nothing in a dynamic group, where leases
  // tell.
  std::function<void(const Member&)> cut_off{};
  std::function<void(const Member&, const std::string& reason)> died{};
};

class Outgoing final : public LinkEvents,
                       public internal::Helper,
                       public CallCarrier,
                       public std::enable_shared_from_this<Outgoing> {
 public:
  Outgoing(const Surroundings& around, WorkerInfo self, std::uint64_t self_incarnation,
           Member member);
  ~Outgoing() override;

  void submit(Message request, Duration timeout, TimePoint deadline,
              std::unique_ptr<CallSink> sink);
  void help(internal::Waiter& waiter) override;
  void sleeps() override;
  void slept(std::optional<Duration> total) override;
  void timed_out(CallId id) override;
  void failed() override { ++failed_count_; }

  // It was started again somewhere else, or is the same.
  void update(const Member& member);
  // No connection is left to or from it: it is looked for until there is one, or it is dead.
  void look_for();
  // It has opened a connection to this worker.
  void came();
  bool is_dead() const { return suspicion_.is_dead(); }
  // Cuts the connection, if there is one. Any thread.
  void cut(std::string reason);
  // Once a while: sends a sign of life, and gives up on a peer that gave none for `silence_max`.
  void look_after(TimePoint now, Duration silence_max);
  // Fails what waits. Nothing happens afterwards.
  void close(const CallError& error);

  Member member() const;
  // Nothing if it never was; on the loop.
  std::optional<LastHeard> last_heard() const;
  std::string_view kind() const;  // of the connection; empty when there is none
  // Requests to it, and those that failed: what its functions answered with an error included.
  std::uint64_t call_count() const { return call_count_; }
  std::uint64_t failed_count() const { return failed_count_; }
  std::uint64_t sent_bytes() const;
  std::uint64_t received_bytes() const;

 private:
  void on_message(Link& link, Message message) override;
  void on_lost(Link& link, std::string reason) override;

  void want_connection();
  // Unless there is a connection, or one is being opened.
  void open();
  void saw(Suspicion::Sign sign);
  Task<void> connect();
  Task<Result<>> try_to_connect(Member member);
  void connected();
  // Requires: the lock.
  bool is_crowded(TimePoint now) const;
  void help_in_turns(const internal::Waiter& waiter, Link& link);
  // Too much waits for it already. Requires: the lock.
  bool is_full() const;
  // Waits until that is not so; why the call cannot be made, if it is still so then.
  std::optional<CallError> wait_for_room(Duration timeout, TimePoint deadline);
  // The connection is lost, and the next one has another number: whoever calls from now on waits
  // for that. Requires: the lock.
  void let_go_of_link();
  void fail_waiting(const std::string& text);
  // Memory that a program has lent for one call, until that is over.
  struct Loan;
  class LoanSink;
  void end_loan(Loan& loan);
  void refuse(std::unique_ptr<CallSink> sink, CallError error);

  const Surroundings& around_;
  const WorkerInfo self_;
  const std::uint64_t self_incarnation_;
  const std::shared_ptr<Crowd> crowd_;  // may be nothing
  const std::shared_ptr<Throttle> throttle_ = std::make_shared<Throttle>();

  mutable std::mutex mutex_;  // guards what follows
  Member member_;
  PeerId connection_;
  std::shared_ptr<Link> link_;                // when it can be used
  std::vector<std::shared_ptr<Link>> going_;  // lost, and the loop has not dealt with it yet
  std::vector<Message> waiting_;              // for the connection
  std::size_t waiting_bytes_ = 0;
  bool is_wanted_ = false;               // it is being opened
  std::optional<CallError> closed_;      // once nothing happens any more
  std::uint64_t sent_before_bytes_ = 0;  // by connections that are gone
  std::uint64_t received_before_bytes_ = 0;
  SpinBudget spin_;
  // Threads that sleep in futures of this connection; the one that was woken last, and another one
  // before it.
  struct Woken {
    std::thread::id thread;
    TimePoint when;
  };
  int sleeper_count_ = 0;
  Woken woken_{};
  Woken woken_before_{};

  std::atomic<std::uint64_t> call_count_ = 0;
  std::atomic<std::uint64_t> failed_count_ = 0;
  std::atomic<int> under_way_count_ = 0;  // requests on this connection, roughly
  std::atomic<bool> is_welcome_ = false;  // on the newest connection

  // On the loop.
  std::shared_ptr<Link> greeting_;  // not welcome yet
  std::string greeting_failure_;
  std::optional<Oneshot<Result<>>> welcome_;
  TimePoint not_before_{};
  Duration pause_ = Duration::zero();
  std::uint64_t heard_bytes_ = 0;
  std::uint64_t said_bytes_ = 0;
  std::optional<TimePoint> heard_at_;  // over any connection
  Suspicion suspicion_;
  std::optional<Timer> look_;  // only in a static group
  TaskScope tasks_;
};

}  // namespace muster::rpc
