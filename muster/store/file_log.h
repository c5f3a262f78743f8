// FileLog is what a FileStore's file means: records to bytes and back, and the keys and queues that
// the records replayed so far amount to.
//
// Pure: no I/O, no clock. Owned by one FileStore, which feeds it what processes appended to the
// file and appends what the `append_…` functions below encode.
//
// The file is PyTorch's FileStore format: nothing but records, each
//
//     u32 key bytes, key, u32 value bytes, value          (little-endian)
//
// and the first byte of a record's key says what the record does:
//
//     /KEY      sets the user's KEY
//     -/KEY     deletes it; the value is empty
//     -<QUEUE   pushes the value on QUEUE
//     ->QUEUE   pops the oldest item of QUEUE; the value is empty
//     NAME      sets one of PyTorch's own keys ("cleanup/", "refcount/"), which users cannot reach
//     but which count
//
// To PyTorch the queue records are deletions of keys that never existed, so they neither show nor
// count there.
//
// Invariants:
//  1. `position()` is always the end of a whole record.
//  2. The state is a function of the records up to `position()`, however they were cut into pieces
//  on the way.
#pragma once

#include "muster/base/error.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::store {

// A user's key or a queue's name; in a record there are at most two more bytes in front of it.
inline constexpr std::size_t kFileKeyBytesMax = 8192;
inline constexpr std::size_t kFileRecordKeyBytesMax = kFileKeyBytesMax + 1 + 1;
inline constexpr std::size_t kFileValueBytesMax = 8u << 20;
inline constexpr std::size_t kFileRecordBytesMax =
    4 + kFileRecordKeyBytesMax + 4 + kFileValueBytesMax;

// Each appends one record to `out`. Requires: the sizes are within the bounds above.
void append_set(std::string_view key, std::string_view value, std::string& out);
void append_delete(std::string_view key, std::string& out);
void append_push(std::string_view queue, std::string_view item, std::string& out);
void append_pop(std::string_view queue, std::string& out);

// The views are into the bytes that were decoded.
struct FileRecord {
  std::string_view key;
  std::string_view value;
  std::size_t bytes = 0;  // of the whole record

  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};

// The record that `bytes` begin with; nothing if they are only the beginning of one (or empty).
// Invalid, saying what is wrong, as soon as they cannot be the beginning of any record.
Result<std::optional<FileRecord>> decode_record(std::string_view bytes);

// What one replayed record did. The views live as long as the call that reports it.
struct FileChange {
  enum class Kind { Created, Updated, Deleted, Pushed };
  Kind kind = Kind::Updated;
  std::string_view name;   // the user's key, or the queue for Pushed
  std::string_view value;  // empty for Deleted
};

class FileLog {
 public:
  using Observer = std::function<void(const FileChange&)>;

  // How far in the file the log has been replayed.
  std::uint64_t position() const { return position_; }

  // Applies the whole records at the start of `bytes`, which were read at `position()`, and moves
  // the position. Returns how many bytes that were; what is left over is the beginning of a record.
  // Invalid if what is at `position()` after the call cannot be a record; the records before it
  // have been applied. `observer` may be empty.
  Result<std::size_t> replay(std::string_view bytes, const Observer& observer);

  // Null if there is no such key.
  const std::string* find(std::string_view key) const;
  // What adding `delta` to the counter `key` makes, wrapping in 64 bits. As in PyTorch's FileStore
  // an empty value counts as 0. Invalid if the value is not a number.
  Result<std::int64_t> sum(std::string_view key, std::int64_t delta) const;
  // Users' keys and PyTorch's own, as PyTorch counts; queues do not count.
  std::size_t key_count() const { return entries_.size(); }
  // The users' keys that start with `prefix`, sorted.
  std::vector<std::string> keys(std::string_view prefix) const;

  // The oldest item; null if the queue is empty.
  const std::string* front(std::string_view queue) const;
  std::size_t queue_length(std::string_view queue) const;

 private:
  void apply(const FileRecord& record, const Observer& observer);
  void apply_marked(std::string_view mark_and_name, std::string_view value,
                    const Observer& observer);

  std::map<std::string, std::string, std::less<>> entries_;  // by record key, "/" and all
  std::map<std::string, std::deque<std::string>, std::less<>> queues_;  // none of them empty
  std::uint64_t position_ = 0;
};

}  // namespace muster::store
