// LogFile is the file under a FileStore: its lock, its size, reads, appends and cuts. No decisions.
//
// Owned by one FileStore, on its loop. Nothing here waits for another process; like all access to
// files, reading and writing may wait for the disk.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace muster::store {

class LogFile {
 public:
  enum class Mode { Shared, Exclusive };

  // Creates the file if needed.
  static Result<LogFile> open(std::string path);

  const std::string& path() const { return path_; }
  int descriptor() const { return fd_.get(); }

  // False if others hold the lock. One that we hold already changes its mode, or is lost if it
  // cannot.
  Result<bool> try_lock(Mode mode);
  void unlock();

  // How long the file is; Closed if the path leads to another file by now, or to none.
  Result<std::uint64_t> size() const;

  // Appends to `out` what is in the file from `offset` on, at most `bytes_max` and possibly less.
  Result<> read(std::uint64_t offset, std::size_t bytes_max, std::string& out) const;

  // Writes `bytes` at `end`, the end of the file. When that fails, what was written is cut off
  // again.
  Result<> append(std::uint64_t end, std::string_view bytes);

  Result<> cut(std::uint64_t end);

 private:
  LogFile(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  Fd fd_;
};

// Unlocks when it goes. Never lives across an await except the one that hands it over, so that
// nobody waits for our loop.
class HeldLock {
 public:
  // Requires: the lock is held, and `file` outlives this.
  explicit HeldLock(LogFile& file) : file_(&file) {}
  HeldLock(HeldLock&& other) noexcept : file_(std::exchange(other.file_, nullptr)) {}
  HeldLock& operator=(HeldLock&&) = delete;
  ~HeldLock() {
    if (file_ != nullptr) file_->unlock();
  }

 private:
  LogFile* file_;
};

}  // namespace muster::store
