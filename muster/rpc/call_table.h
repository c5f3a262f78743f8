// CallTable: the calls of one agent that wait for their response.
//
// Pure: no I/O, no clock, no threads. Owned by one agent, which locks around every call and
// completes futures after the lock is released.
//
// It decides who is first: the response, the timeout, or the end of the connection. Whoever is
// first is handed the token that the agent gave for the call (what it keeps its future under), and
// nobody else ever is: a token comes back exactly once, from `responded` as Live, from `due`,
// `lost`, `withdraw`, `abandon` or `clear`.
//
//   state  event                                   to     answer
//   -      add                                     Live   the number, as it goes over the wire
//   Live   response on its connection              gone   Live, and the token
//   Live   its deadline has passed                 Late   the token, from `due`
//   Live   abandon                                 Late   the token
//   Late   response on its connection              gone   Late: drop it, it is nobody's fault
//   Live   its connection is lost                  gone   the token, from `lost`
//   Late   its connection is lost                  gone   nothing
//   Late   too many are, and it is an old one      gone   nothing, and its response will be Late
//   Live   withdraw                                gone   the token
//   other  response                                -      Unknown: the peer breaks the protocol
//
// Numbers are 0, 1, 2, ... for all calls of the agent together and are never used again. So a
// number that nobody gave out, one that was answered before, and one of another connection's call
// are all Unknown; but for numbers up to the last that was forgotten, of which nobody can say it.
//
// Cost: `add` and `responded` are one look into a hash table without links. A deadline is pushed
// onto a heap, where it usually belongs at the end, since most calls have the same timeout; it is
// not taken out when the response comes. Such entries are swept when more than half are dead.
// `lost` looks at the whole table.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace muster::rpc {

// How many calls may wait at one time; and how many are remembered whose time was over, since their
// response may still come. A worker that never answers must not use up the first.
inline constexpr std::size_t kCallsMax = std::size_t{1} << 20;
inline constexpr std::size_t kLateCallsMax = std::size_t{1} << 16;

using CallId = std::int64_t;
// One connection, not one worker: after a reconnect the agent gives a new number.
using PeerId = std::uint64_t;

struct NewCall {
  PeerId peer = 0;
  TimePoint deadline = kNever;  // kNever: no timeout
  std::uint64_t token = 0;
};

// A call that is over for the program that made it.
struct EndedCall {
  CallId id = 0;
  std::uint64_t token = 0;

  friend bool operator==(const EndedCall&, const EndedCall&) = default;
};

class CallTable {
 public:
  // What a response is to this side.
  enum class Answer {
    Live,     // it completes its call
    Late,     // its call has timed out or was abandoned; to be dropped without a word
    Unknown,  // no call waits for it: close that connection
  };
  struct Response {
    Answer answer = Answer::Unknown;
    std::uint64_t token = 0;  // Live only
  };

  // Other maxima are for tests.
  explicit CallTable(std::size_t calls_max = kCallsMax, std::size_t late_calls_max = kLateCallsMax);

  // Registers a call, to be done before its request is handed to the connection. Unavailable when
  // the table is full. Requires: `peer` is not lost; nobody would end the call if it has no
  // timeout.
  Result<CallId> add(const NewCall& call);

  // A response with the number `id` came on connection `peer`.
  [[nodiscard]] Response responded(CallId id, PeerId peer);

  // The calls that time out now, earliest deadline first.
  [[nodiscard]] std::vector<EndedCall> due(TimePoint now);

  // When more than the maximum are Late, forgets the older half of them, and says which.
  [[nodiscard]] std::vector<CallId> forget_late();

  // The connection is gone: its calls, oldest first.
  [[nodiscard]] std::vector<EndedCall> lost(PeerId peer);

  // Takes back a call whose request was not handed to the connection after all: no response can
  // come. Its token; nothing when it was not Live.
  [[nodiscard]] std::optional<std::uint64_t> withdraw(CallId id);

  // The program does not wait for the call any more, but its response may still come. Its token;
  // nothing when it was not Live.
  [[nodiscard]] std::optional<std::uint64_t> abandon(CallId id);

  // Whether the call still waits.
  bool is_live(CallId id) const { return find_live(id) != slots_.size(); }
  // One that has timed out, and to which no response can come.
  void forget(CallId id);

  // The agent stops: all calls, oldest first. Numbers go on from where they were.
  [[nodiscard]] std::vector<EndedCall> clear();

  // When `due` can next answer anything; kNever when no call has a deadline. An agent that has set
  // a timer need not ask after `add` unless the new deadline is earlier than the timer.
  TimePoint next_deadline();

  std::size_t live_count() const { return live_count_; }
  std::size_t late_count() const { return used_count_ - live_count_; }
  // How many deadlines are kept, those of calls that have ended included: never more than two for
  // each Live call that has one, and a few.
  std::size_t deadline_count() const { return deadlines_.size(); }
  // The number that the next call gets; so many were registered before.
  CallId next_id() const { return next_id_; }

 private:
  enum class State : std::uint8_t { Live, Late };
  // Open addressing with linear probing; a hole is closed by moving what is behind it.
  struct Slot {
    CallId id = -1;  // -1: empty
    PeerId peer = 0;
    std::uint64_t token = 0;
    State state = State::Live;
    bool has_deadline = false;
  };
  struct Deadline {
    TimePoint when;
    CallId id = 0;
  };
  static bool later(const Deadline& left, const Deadline& right);

  std::size_t home_of(CallId id) const;
  // Its slot; slots_.size() when it has none.
  std::size_t find(CallId id) const;
  // Its slot when it is Live; slots_.size() otherwise.
  std::size_t find_live(CallId id) const;
  void place(const Slot& slot);
  void erase(std::size_t index);
  // The call in the slot is not Live any more.
  void end(Slot& slot);
  void resize(std::size_t slot_count);
  void pop_deadline();
  void sweep_deadlines();

  std::size_t calls_max_;
  std::size_t late_calls_max_;
  CallId forgotten_below_ = 0;  // no number from here on was forgotten
  std::vector<Slot> slots_;     // a power of two, at most half of them used
  int home_shift_ = 0;          // leaves as many bits of a hash as there are slots
  std::size_t used_count_ = 0;
  std::size_t live_count_ = 0;
  std::size_t timed_count_ = 0;  // Live calls with a deadline; the rest of the heap is dead
  std::vector<Deadline> deadlines_;
  CallId next_id_ = 0;
};

// The timeout of a call, from what its program gave. Nothing and -1: the agent's default, which
// must not be negative. 0: never expires, answered by nothing. Otherwise whole milliseconds,
// rounded down, but at least one. Invalid for any other negative number and for what is none.
Result<std::optional<Duration>> call_timeout(std::optional<double> seconds, Duration by_default);

// An agent's default timeout, from seconds, by the same rules; 0: calls never expire.
Result<Duration> default_timeout(double seconds);

}  // namespace muster::rpc
