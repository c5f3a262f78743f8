// Console: the agent's standard output or standard error as a queue of whole lines.
//
// Writing never blocks the loop, although the descriptor is shared with other processes and may
// therefore not be made non-blocking: pipes and terminals are opened a second time for that,
// sockets have a flag, and where neither works we ask before each small write. On pipes and
// terminals one write is at most PIPE_BUF bytes and ends with a line if it can, so that lines which
// other processes write to the same place do not land inside ours. Regular files are written
// directly.
//
// Nothing is dropped: whoever adds lines stops when `is_full` and goes on when told that there is
// room. Only when the reader is gone (EPIPE) or writing fails for good, the console is broken: that
// is logged once, and what is added from then on vanishes.
//
// Owned by Output, on its loop. Requires: SIGPIPE is ignored.
#pragma once

#include "muster/base/fd.h"
#include "muster/base/loop.h"
#include "muster/net/epoll_loop.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace muster::logs {

inline constexpr std::size_t kConsoleBytesFull = std::size_t{1} << 20;
inline constexpr std::size_t kConsoleBytesRoom = std::size_t{1} << 18;

class Console {
 public:
  // `fd` is borrowed and outlives the console. `changed` is called after each attempt to write:
  // there may be room again, the queue may be empty, or the console broken.
  Console(net::EpollLoop& loop, int fd, std::string name, std::function<void()> changed);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // The end of the queue: append whole lines, then call `added`, which sees to it that they are
  // written at the end of this turn.
  std::string& queue() { return queue_; }
  void added();

  bool is_full() const { return !broken_ && queue_.size() - written_ >= kConsoleBytesFull; }
  bool has_room() const { return broken_ || queue_.size() - written_ < kConsoleBytesRoom; }
  bool is_empty() const { return broken_ || written_ == queue_.size(); }
  bool is_broken() const { return broken_; }
  bool is_terminal() const { return is_terminal_; }
  std::size_t unwritten_bytes() const { return broken_ ? 0 : queue_.size() - written_; }
  std::uint64_t written_bytes() const { return total_bytes_; }

  // Writes what can be written now.
  void flush();

 private:
  enum class Kind {
    File,         // regular files and devices that cannot be polled: written directly
    Reopened,     // a pipe or terminal behind a non-blocking description of our own
    Socket,       // send with MSG_DONTWAIT
    AskedBefore,  // a pipe or terminal that could not be opened again: poll before each write
  };
  void open_own(int fd);
  std::size_t next_write_bytes() const;
  // Like write(2); -1 with EAGAIN when it would have blocked.
  std::ptrdiff_t write_some(const char* bytes, std::size_t count);
  void wait_until_writable(bool wanted);
  void break_off(int number);
  void forget_written();

  net::EpollLoop& loop_;
  int fd_;            // for files
  std::string name_;  // for messages
  std::function<void()> changed_;
  Kind kind_ = Kind::File;
  bool is_terminal_ = false;
  bool broken_ = false;
  bool waiting_ = false;  // for the descriptor to become writable
  Fd own_;  // for everything else: opened again or duplicated, so that it can be watched
  std::string queue_;
  std::size_t written_ = 0;  // how much of the queue's front is written already
  std::uint64_t total_bytes_ = 0;
  std::optional<net::FdWatch> watch_;  // nothing when the descriptor cannot be polled
  Ready flush_soon_;
};

}  // namespace muster::logs
