// Group: one run, hosted. Runs the rules for all of its nodes on one copy of the state and one
// clock, in the order in which they speak.
//
// A seat is a node's side of it: its pending join, its signs of life, its line (the conversation
// with it, while there is one). A join stays pending until its round completes; then all are
// answered at once. Nobody polls, nothing is written twice.
//
// Costs: O(log N) for a join or a leave, O(1) for a sign of life, O(N log N) when a round completes
// and O(N) when the members must be told something, which is at most once a turn of the server.
//
// Pure: no I/O, no clock; it only speaks into conversations. Owned by a Host, on its loop.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/rendezvous/driver.h"
#include "muster/rendezvous/host_protocol.h"
#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/snapshot.h"
#include "muster/rendezvous/state.h"
#include "muster/store/service.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace muster::rendezvous {

// Members hear at once that somebody waits; how many there are, no more often than this.
inline constexpr Duration kCountPushInterval = std::chrono::seconds(1);
// When one node has to be looked at, so are those that would have to be within this time.
inline constexpr Duration kLookAhead = std::chrono::milliseconds(500);
// When members leave their round to meet again, the others have most often heard of the same reason
// and come by themselves: to tell each of them would cost a message a node. So they are told when
// nobody has come for this long; or when it has gone on for that long.
inline constexpr Duration kRegroupPause = std::chrono::milliseconds(5);
inline constexpr Duration kRegroupMax = std::chrono::milliseconds(200);
// Observers hear of every change, but no more often than this.
inline constexpr Duration kObserverPushInterval = std::chrono::milliseconds(100);

class Group {
 public:
  struct Seat;

  // `birth` names this group if it is a new one.
  Group(std::string run_id, std::uint64_t birth);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // A node has opened a conversation: it takes its seat, or comes back to it. Invalid if it does
  // not fit in with the others. An older line of the same node is `replaced`, and the caller ends
  // it.
  struct Seated {
    Seat* seat = nullptr;  // until `lose`
    store::Conversation* replaced = nullptr;
  };
  Result<Seated> sit(store::Conversation& line, const Hello& hello, TimePoint now);
  // The node has said something.
  Result<> hear(Seat& seat, const Said& said, TimePoint now);
  // The line is gone. The node is, too, unless it comes back within its grace.
  void lose(Seat& seat, TimePoint now);

  // For good, and for everybody.
  void close(TimePoint now);

  void add_observer(store::Conversation& line);
  void remove_observer(store::Conversation& line);

  // Lets time pass.
  void tick(TimePoint now);
  // Whoever asks was deaf for a while: until then nobody is given up for silence, so that what they
  // have said meanwhile can be heard first.
  void excuse_silence(TimePoint until) { excused_until_ = std::max(excused_until_, until); }
  // When `tick` can next change anything; kNever if it cannot.
  TimePoint next_deadline() const;
  // Tells the members what has changed since the last time. To be called once a turn.
  void flush(TimePoint now);
  bool needs_flush(TimePoint now) const { return flush_at_ <= now; }

  const State& state() const { return state_; }
  Snapshot snapshot(TimePoint now) const;
  std::size_t seat_count() const { return seats_.size(); }

 private:
  // What the others react to.
  struct Mark {
    bool complete = false;
    bool closed = false;
    std::size_t size = 0;
  };
  // What members are told.
  struct News {
    std::uint64_t round = 0;
    bool closed = false;
    bool lost = false;
    std::int64_t waiting = 0;

    friend bool operator==(const News&, const News&) = default;
  };

  RoundId current() const { return {state_.birth, state_.round}; }
  Mark mark() const;
  News news() const;
  bool is_known(const Node& node) const;
  Seat* find(const Node& node);

  void join(Seat& seat, RoundId after, TimePoint now);
  void leave(Seat& seat, TimePoint now);
  void adopt(const Hello& hello, TimePoint now);
  void begin_from(const Hello& hello, TimePoint now);

  // Changes the state and notes who has to look at it.
  void act(Action action, const Seat& seat, TimePoint now);
  void remove(const Seat& seat, TimePoint now);
  void react(const Mark& before);
  void enqueue(Seat& seat);
  template <typename Nodes>
  void enqueue_all(const Nodes& nodes);
  // Decides for everybody who has to look, and for those who then have to.
  void settle(TimePoint now);
  void advance(Seat& seat, TimePoint now);
  void deliver(Seat& seat);
  void refuse_join(Seat& seat, ErrorKind kind, std::string_view message, TimePoint now);
  void tell_status(Seat& seat);
  bool is_regrouping(TimePoint now) const;
  void tell_members(TimePoint now);
  void tell_observers(TimePoint now);
  Status status_for(const Seat& seat) const;

  void watch_over(Seat& seat);
  TimePoint expiry_of(const Seat& seat) const;
  void expire(TimePoint now);

  const std::string run_id_;
  const std::uint64_t birth_;
  State state_;
  std::map<Node, std::unique_ptr<Seat>> seats_;
  std::set<store::Conversation*> observers_;
  std::deque<Seat*> to_decide_;

  // When seats may have been silent for too long. Signs of life do not touch it: a seat that turns
  // out to be alive is put in again for later.
  struct Expiry {
    TimePoint when;
    std::uint64_t seat_number = 0;
    friend bool operator>(const Expiry& left, const Expiry& right) {
      return std::pair(left.when, left.seat_number) > std::pair(right.when, right.seat_number);
    }
  };
  std::priority_queue<Expiry, std::vector<Expiry>, std::greater<>> expiries_;
  std::unordered_map<std::uint64_t, Seat*> seat_numbers_;
  std::uint64_t last_seat_number_ = 0;
  TimePoint excused_until_ = TimePoint::min();

  // After a restart of the server: members of the round it has taken over from them, by rank; and
  // when those that have not come back count as lost.
  std::uint64_t former_birth_ = 0;  // the name of the run before that
  std::set<std::int64_t> claimed_ranks_;
  std::optional<TimePoint> adoption_ends_;

  News told_;
  TimePoint told_at_ = TimePoint::min();
  TimePoint flush_at_ = kNever;
  // When members began to leave the present round to meet again, and when the last one did.
  std::optional<TimePoint> regroup_began_;
  TimePoint regrouped_at_;
  std::uint64_t change_count_ = 0;
  std::uint64_t observed_count_ = 0;
  TimePoint observed_at_ = TimePoint::min();
};

}  // namespace muster::rendezvous
