// Store: a key-value store shared by the processes of a job.
//
// Implementations: `TcpStore` (a Muster or PyTorch server), `MemoryStore` (one process),
// `FileStore` (a shared file), `PrefixStore` (a view of another store). One suite,
// tests/store/contract.h, runs against all of them.
//
// Every method is a task on the store's loop: await it, or destroy it to cancel it. Every wait has
// a deadline; kNever waits for ever. Keys and values are any bytes; an empty value is a value, not
// an absent one.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/task.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::store {

// What compare_set came to.
struct CompareSet {
  bool stored = false;
  // `desired` if stored; else the current value, or the caller's `expected` if the key is absent,
  // as in PyTorch.
  std::string value;

  friend bool operator==(const CompareSet&, const CompareSet&) = default;
};

// What a watch reports.
struct Change {
  enum class Kind {
    Present,  // the value when the watch began, or began again after a lost connection
    Absent,   // likewise: the key was not there; only for the watch of a single key
    Created,
    Updated,  // written, even if with an equal value
    Deleted,
  };
  Kind kind = Kind::Absent;
  std::string key;
  std::string value;  // empty for Absent and Deleted

  friend bool operator==(const Change&, const Change&) = default;
};
std::string_view name_of(Change::Kind kind);

// A stream of changes. Owned by the watcher; destroying it ends the watch. Must not outlive its
// store.
class Watch {
 public:
  virtual ~Watch() = default;
  // The next change. Timeout leaves the watch usable; any other error ends it. A watcher that falls
  // more than kWatchChangesMax behind is ended with Unavailable and should begin again.
  virtual Task<Result<Change>> next(TimePoint deadline) = 0;
};
inline constexpr std::size_t kWatchChangesMax = 4096;

struct KeyValue {
  std::string key;
  std::string value;

  friend bool operator==(const KeyValue&, const KeyValue&) = default;
};

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // Creates or overwrites; done when the store has it.
  virtual Task<Result<>> set(std::string key, std::string value) = 0;

  // Waits until the key exists.
  virtual Task<Result<std::string>> get(std::string key, TimePoint deadline) = 0;
  // Does not wait.
  virtual Task<Result<std::optional<std::string>>> try_get(std::string key) = 0;

  // Adds to a decimal counter and returns the sum; an absent key counts as 0. Invalid if the value
  // is not a number.
  virtual Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) = 0;

  // Stores `desired` if the value is `expected`; an empty `expected` also matches an absent key.
  virtual Task<Result<CompareSet>> compare_set(std::string key, std::string expected,
                                               std::string desired) = 0;

  // Whether every key exists (or has a non-empty queue).
  virtual Task<Result<bool>> check(std::vector<std::string> keys) = 0;
  // Waits until every key has existed since the call.
  virtual Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) = 0;

  // Whether there was such a key.
  virtual Task<Result<bool>> delete_key(std::string key) = 0;
  virtual Task<Result<std::int64_t>> num_keys() = 0;
  virtual Task<Result<>> append(std::string key, std::string data) = 0;

  // Waits until every key exists; values in the order of the keys.
  virtual Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys,
                                                           TimePoint deadline) = 0;
  virtual Task<Result<>> multi_set(std::vector<KeyValue> pairs) = 0;

  // Queues are first-in first-out and have names of their own: a key and a queue of one name do not
  // meet.
  virtual Task<Result<>> queue_push(std::string queue, std::string item) = 0;
  // Waits until there is an item; each item goes to exactly one caller.
  virtual Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) = 0;
  virtual Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) = 0;
  virtual Task<Result<std::int64_t>> queue_length(std::string queue) = 0;

  // Sorted.
  virtual Task<Result<std::vector<std::string>>> list_keys(std::string prefix) = 0;

  // Waits until `member_count` callers have come to the barrier `key`. For one use: later callers
  // pass at once.
  virtual Task<Result<>> barrier(std::string key, std::int64_t member_count,
                                 TimePoint deadline) = 0;

  // Begins with the present state, then reports every change, in order. A prefix watch reports
  // every key that starts with `key`.
  enum class WatchScope { Key, Prefix };
  virtual Task<Result<std::unique_ptr<Watch>>> watch(std::string key, WatchScope scope) = 0;
};

}  // namespace muster::store
