// Table is the key space of one namespace: keys, queues, who waits for what, who watches what.
//
// Pure: no I/O, no clock, no threads. The caller applies one request at a time and carries out the
// Outcome: answers the released waiters, sends the changes. Owned by one Server (one for each
// namespace) or one MemoryStore, on its loop.
//
// Invariants:
//  1. A waiter is level-triggered when it begins and edge-triggered afterwards: it remembers only
//     the keys missing then, and each is struck off when it is written. It is released once, when
//     none is left.
//  2. A push to a queue releases at most one waiter, the oldest, who then has a claim on an item.
//     If that waiter leaves without popping, the next one gets its turn, as long as the queue holds
//     an item that nobody else has a claim on. Claims end with the last item, and they keep nobody
//     from popping who came without waiting.
//  3. `bytes()` counts what the content costs, so that the caller can keep it bounded.
#pragma once

#include "muster/base/error.h"
#include "muster/store/store.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace muster::store {

// Chosen by the caller; unique among those waiting (or watching) at one time.
using WaiterId = std::uint64_t;
using WatcherId = std::uint64_t;

// What a watcher must be told.
struct Notice {
  WatcherId watcher = 0;
  Change::Kind kind = Change::Kind::Updated;
  std::string key;
  std::string old_value;
  std::string new_value;
};

// What a request did to others. Reused between requests, so `clear` keeps the capacity.
struct Outcome {
  std::vector<WaiterId> released;
  std::vector<Notice> notices;

  void clear() {
    released.clear();
    notices.clear();
  }
};

class Table {
 public:
  // What one key, queue or queue item costs beyond its bytes, roughly.
  static constexpr std::size_t kEntryOverheadBytes = 96;

  Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  void set(std::string_view key, std::string_view value, Outcome& outcome);
  const std::string* find(std::string_view key) const;
  // Invalid, and nothing changed, if the value does not begin with an integer of 64 bits.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta, Outcome& outcome);
  CompareSet compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                         Outcome& outcome);
  bool erase(std::string_view key, Outcome& outcome);
  void append(std::string_view key, std::string_view data, Outcome& outcome);
  std::size_t key_count() const { return entries_.size(); }
  // Sorted.
  std::vector<std::string> keys(std::string_view prefix) const;

  void push(std::string_view queue, std::string_view item, Outcome& outcome);
  // `waiter` is the caller's own id if it may have been released for this queue (invariant 2),
  // else 0.
  std::optional<std::string> pop(std::string_view queue, WaiterId waiter);
  std::size_t queue_length(std::string_view queue) const;

  // The key exists or its queue is not empty.
  bool present(std::string_view key) const;

  // What a waiter takes for the presence of a name. PyTorch's WAIT takes either; a get that waits
  // needs the key itself, and a pop that waits the queue.
  enum class Need { Any, Key, Queue };

  // True if every key is there already: then nothing is remembered. Otherwise `waiter` will be
  // released. Requires: `waiter` is not waiting; 0 is not an id.
  bool wait(WaiterId waiter, std::span<const std::string_view> keys, Need need = Need::Any);
  // Counts the caller in. True if the barrier is complete: others are in `outcome`, not the caller.
  Result<bool> barrier(WaiterId waiter, std::string_view key, std::int64_t member_count,
                       Outcome& outcome);
  // The waiter gives up or is gone; also ends its claims on queue items. Harmless if it does not
  // wait.
  void forget(WaiterId waiter, Outcome& outcome);

  // One watcher may watch several keys and prefixes; it is told once of each change. Notices of one
  // change are in the order of the watchers' ids.
  void watch_key(WatcherId watcher, std::string_view key);
  void watch_prefix(WatcherId watcher, std::string_view prefix);
  void unwatch(WatcherId watcher);

  std::size_t bytes() const { return bytes_; }
  // Those who wait now, at barriers too.
  std::size_t waiter_count() const { return waiting_count_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  template <typename T>
  using ByName = std::unordered_map<std::string, T, Hash, std::equal_to<>>;
  using Entries = ByName<std::string>;

  struct Waiter;
  struct Line;

  // A waiter's place in the line for one key. Both are linked by address, so that giving up one
  // place among ten thousand costs no more than giving up the only one.
  struct Place {
    Waiter* waiter = nullptr;
    Line* line = nullptr;  // nullptr once the key has been struck off
    Place* previous = nullptr;
    Place* next = nullptr;
  };
  // Those who wait for one key, in the order of arrival. Never empty: it goes with its last place.
  struct Line {
    const std::string* name = nullptr;
    Place* first = nullptr;
    Place* last = nullptr;
  };
  using Lines = ByName<Line>;

  // One who waits (missing_count > 0), or was released and has claims left.
  struct Waiter {
    WaiterId id = 0;
    Need need = Need::Any;
    std::uint64_t arrival = 0;
    std::size_t missing_count = 0;
    std::vector<Place> places;                  // never grows while a place is linked
    std::set<std::string, std::less<>> claims;  // mirrors Queue::claims
  };

  // Never empty: it goes with its last item.
  struct Queue {
    std::list<std::string> items;  // not a deque, which takes 600 bytes for a single item
    // Who was told of an item and has not popped yet. As long as someone stands in line for this
    // queue there are no fewer claims than items, or that someone would have been told.
    std::set<WaiterId> claims;
  };

  Lines& lines(Need need) { return lines_[static_cast<std::size_t>(need)]; }
  bool is_there(std::string_view key, Need need) const;
  void put(Entries::iterator found, std::string_view key, std::string_view value, Outcome& outcome);
  void put_number(Entries::iterator found, std::string_view key, std::int64_t number,
                  Outcome& outcome);
  Waiter& enrol(WaiterId waiter, Need need, std::size_t places_max);
  void stand_in_line(Waiter& waiter, std::string_view key);
  void leave_line(Place& place);
  // The first place of the line for `key`, or nullptr.
  Place* first_in_line(Need need, std::string_view key);
  // Likewise, and the line is no more: the places are still linked to one another.
  Place* take_line(Need need, std::string_view key);
  // Nobody comes after everybody. Requires: not both are nullptr.
  static bool earlier(const Place* left, const Place* right);
  void release_all(std::string_view key, Outcome& outcome);
  void release_one(std::string_view queue, Outcome& outcome);
  void strike(Waiter& waiter, Outcome& outcome);
  void drop_if_idle(Waiter& waiter);
  // Fills told_; false if nobody watches the key.
  bool anyone_told(std::string_view key);
  void tell(Change::Kind kind, std::string_view key, std::string_view old_value,
            std::string_view new_value, Outcome& outcome) const;

  struct Watched {
    std::set<std::string> keys;
    std::set<std::string> prefixes;
  };

  Entries entries_;
  ByName<Queue> queues_;
  std::array<Lines, 3> lines_;  // by Need; those at a barrier need the Key
  std::unordered_map<WaiterId, Waiter> waiters_;
  std::size_t waiting_count_ = 0;
  std::uint64_t arrivals_ = 0;

  ByName<std::set<WatcherId>> key_watchers_;
  ByName<std::set<WatcherId>> prefix_watchers_;
  // How many watched prefixes have this length: a key is looked up once a length, not once a
  // watcher.
  std::map<std::size_t, std::size_t> prefix_lengths_;
  std::unordered_map<WatcherId, Watched> watchers_;
  std::vector<WatcherId> told_;  // scratch

  std::size_t bytes_ = 0;
};

// The number a counter's text stands for, read as C's strtoll does in base 10: leading white space
// and one sign are allowed, what follows the digits is ignored. Nothing if there is no digit or it
// does not fit 64 bits.
std::optional<std::int64_t> parse_counter(std::string_view text);

}  // namespace muster::store
