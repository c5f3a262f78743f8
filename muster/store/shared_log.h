// SharedLog is a FileLog that follows a file which other processes write, too, and the way to write
// to it oneself. FileStore's operations stand on it.
//
// Owned by one FileStore, on its loop. Locks are taken with patience and never held across an
// await, so nobody waits for our loop, and destroying a task never leaves a lock behind.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/store/change_signal.h"
#include "muster/store/file_log.h"
#include "muster/store/file_store.h"
#include "muster/store/log_file.h"

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::store {

class SharedLog;

// Someone who is told what every replayed record did, our own included, from its construction until
// its destruction or `leave`. While there is one, the file is looked at again and again.
class LogObserver {
 public:
  // Requires: `log` outlives the observer.
  explicit LogObserver(SharedLog& log);
  virtual ~LogObserver() { leave(); }
  LogObserver(const LogObserver&) = delete;
  LogObserver& operator=(const LogObserver&) = delete;

  // Both are called from the middle of other work, so they only take a note; they may call `leave`.
  virtual void observe(const FileChange& change) = 0;
  // The file cannot be followed. It is tried again as long as the observer stays.
  virtual void lost(const Error& error) = 0;

  void leave();

 private:
  SharedLog& log_;
  std::optional<std::list<LogObserver*>::iterator> place_;
};

class SharedLog {
 public:
  // Requires: `loop` and `random` outlive the log.
  SharedLog(Loop& loop, Random& random, FileStoreOptions options, LogFile file);
  SharedLog(const SharedLog&) = delete;
  SharedLog& operator=(const SharedLog&) = delete;

  Loop& loop() { return loop_; }

  // What was read so far.
  const FileLog& content() const { return content_; }

  // Brings the content up to date. Timeout at `deadline`, Unavailable when the patience with other
  // processes' locks ends.
  Task<Result<>> catch_up(TimePoint deadline);
  // Brings the content nearer to being up to date: by fewer changes than a watcher may fall behind.
  // True if there is more to come. Errors as above.
  Task<Result<bool>> read_piece(TimePoint deadline);

  // Brings the content up to date and keeps the lock, so that what is decided now can be written
  // with `commit`. Errors as above. Requires: the caller lets the lock go before it awaits.
  Task<Result<HeldLock>> begin_write(TimePoint deadline);
  // Requires: the lock of `begin_write`.
  Result<> commit(std::string_view records);

  // What a wait can be satisfied by.
  enum class Awaited { Key, Queue, Either };
  bool present(Awaited awaited, std::string_view name) const;

  // Waits until each name has been there: level-triggered in the content as it is, edge-triggered
  // from then on. So the caller has caught up, and has not awaited anything since.
  Task<Result<>> until_present(Awaited awaited, std::vector<std::string> names, TimePoint deadline);

  // Someone waits: look at the file soon.
  void hurry() { signal_->hurry(); }

 private:
  friend class LogObserver;

  enum class Amount { Everything, OnePiece };
  enum class Extent { Whole, MoreToCome, UnfinishedRecord };

  Task<Result<HeldLock>> lock(LogFile::Mode mode, TimePoint deadline);
  // Replays what was appended since the last time. Requires: a lock.
  Result<Extent> replay(Amount amount);
  // The size of the file, which is still the one we knew and has not lost what we have read.
  Result<std::uint64_t> checked_size();
  // Replays, and cuts off a record whose writer is gone if the lock can be made exclusive for it
  // without waiting. Requires: a lock.
  Result<Extent> replay_and_mend(Amount amount);
  // Requires: the exclusive lock, and an unfinished record at the end.
  Result<> mend();

  void tell_observers(const FileChange& change);
  void start_looking();
  Task<void> look();

  Loop& loop_;
  Random& random_;
  const FileStoreOptions options_;
  LogFile file_;
  FileLog content_;
  std::optional<Error> closed_;  // why the file is not the one we knew any more
  std::list<LogObserver*> observers_;
  std::unique_ptr<ChangeSignal> signal_;
  bool looking_ = false;
  TaskScope scope_;
};

}  // namespace muster::store
