// Calls: the calls of one agent from the moment they are made until their program knows how they
// ended. Any thread.
//
// A CallTable says who is first: response, timeout or the end of the connection. Here is the lock
// around it, and here those who wait are told, outside of it.
#pragma once

#include "muster/base/clock.h"
#include "muster/rpc/call_error.h"
#include "muster/rpc/call_table.h"
#include "muster/rpc/future.h"
#include "muster/rpc/message.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace muster::rpc {

class Calls;

// Who is told how a call ended: exactly once, by whichever thread finds out, which must not be held
// up. It must call Calls::finished once, when everything that follows from the end has been done.
class CallSink {
 public:
  virtual ~CallSink() = default;
  // Before anything else: who can help a thread that waits for this call.
  virtual void set_helper(std::weak_ptr<internal::Helper> helper) { (void)helper; }
  virtual void ended(CallResult<Message> outcome, Calls& calls) = 0;
  // Whether an answer that comes after the time of the call must still be looked at, since it may
  // carry what somebody has to release; and the answer, perhaps while `ended` still runs.
  virtual bool wants_late_answer() const { return false; }
  virtual void came_late(Message response) { (void)response; }
  // Whether somebody made this call; not so if it is only sent in the place of another one.
  virtual bool is_made() const { return true; }
};

// Who carries a call, counts those that failed, and may tell the other side that nobody waits for
// one any more.
class CallCarrier {
 public:
  virtual ~CallCarrier() = default;
  virtual void timed_out(CallId id) = 0;
  // A call that it carries has failed, in whatever way.
  virtual void failed() = 0;
};

struct CallStart {
  PeerId connection = 0;
  TimePoint deadline = kNever;
  Duration timeout = Duration::zero();  // for the text
  std::weak_ptr<CallCarrier> carrier{};
};

class Calls {
 public:
  // `earlier_deadline` is called, by any thread and without the lock, when `expire` is to be called
  // earlier than `next_deadline` said before.
  explicit Calls(std::function<void()> earlier_deadline)
      : earlier_deadline_(std::move(earlier_deadline)) {}
  // Ends what is left.
  ~Calls();
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // Registers a call, before its request is handed to the connection. An error when there are too
  // many, or once they are closed; `sink` is then still the caller's, to be refused.
  CallResult<CallId> start(const CallStart& call, std::unique_ptr<CallSink>& sink);
  // A call that cannot even be started.
  void refuse(std::unique_ptr<CallSink> sink, CallError error);

  // A response came. False if nobody can have asked for it: the peer breaks the protocol.
  bool responded(PeerId connection, Message response);
  // Whether anybody still waits for a call whose request was not handed over yet.
  bool is_wanted(CallId id);
  // Nobody does, and it will not be: there will be no answer.
  void forget(CallId id);
  // The request was not handed over after all.
  void withdraw(CallId id, CallError error);
  // The connection is gone, and all its calls with it.
  void lost(PeerId connection, const CallError& error);
  // Ends what is due; the time of the next.
  TimePoint expire(TimePoint now);
  // Ends all calls, and refuses new ones.
  void close(const CallError& error);

  // What the sinks owe.
  void finished();

  // Calls that were started and are not finished, and how many were ever made.
  std::int64_t active_count() const { return active_count_.load(); }
  std::int64_t started_count() const { return started_count_.load(); }
  // Until none is active; false when `go_on` has become false, which is looked at several times a
  // second.
  bool wait_until_idle(const std::function<bool()>& go_on);

 private:
  struct Pending {
    std::unique_ptr<CallSink> sink;
    PeerId connection = 0;
    Duration timeout = Duration::zero();
    std::weak_ptr<CallCarrier> carrier;

    void fail(CallError error, Calls& calls);
  };
  static std::unique_ptr<Pending> owner_of(std::uint64_t token);

  std::function<void()> earlier_deadline_;
  std::mutex mutex_;
  CallTable table_;
  // Those whose time was over and that want their answers; until these come, or the connection
  // ends.
  std::unordered_map<CallId, std::shared_ptr<Pending>> late_;
  TimePoint armed_ = kNever;  // when `expire` is called next
  std::optional<CallError> closed_;
  std::atomic<std::int64_t> active_count_ = 0;
  std::atomic<std::int64_t> started_count_ = 0;
  std::mutex idle_mutex_;
  std::condition_variable idle_;
};

// What an EXCEPTION carries, and back; what is too long is cut.
std::string encode_failure(std::string_view type, std::string_view text);
CallError decode_failure(const Message& message);

// Whether values of the type can have references in them; true for what is not known here.
template <typename T>
inline constexpr bool kMayCarryReferences = std::is_class_v<T>;
template <>
inline constexpr bool kMayCarryReferences<std::string> = false;
template <>
inline constexpr bool kMayCarryReferences<Message> = false;
template <typename T>
inline constexpr bool kMayCarryReferences<std::vector<T>> = kMayCarryReferences<T>;

// Makes a value of the response and completes a promise with it. `decode` must not throw.
template <typename T, typename Decode>
class PromiseSink final : public CallSink {
 public:
  PromiseSink(Promise<T> promise, Pool& callbacks, Decode decode)
      : promise_(std::move(promise)), callbacks_(callbacks), decode_(std::move(decode)) {}
  void set_helper(std::weak_ptr<internal::Helper> helper) override {
    promise_.set_helper(std::move(helper));
  }
  void ended(CallResult<Message> outcome, Calls& calls) override {
    promise_.set_on(callbacks_, decode_(std::move(outcome)), [&calls] { calls.finished(); });
  }
  bool wants_late_answer() const override { return kMayCarryReferences<T>; }
  // Nobody wants the value; but what it refers to must hear of that.
  void came_late(Message response) override { (void)decode_(std::move(response)); }

 private:
  Promise<T> promise_;
  Pool& callbacks_;
  Decode decode_;
};

}  // namespace muster::rpc
