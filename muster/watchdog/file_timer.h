// PyTorch's file timers: workers write their deadlines into a named pipe, one JSON object a line.
//
// FileTimerServer is the reading side. It speaks exactly what torch's FileTimerClient speaks, and
// differs from torch's own server in what it does with it: a malformed line costs only itself, only
// processes of our workers are listened to, deadlines are monotonic from the moment they arrive, no
// thread waits in the pipe, nothing polls, and the agent is never a target.
//
// The pipe stays open for reading and writing, so a client never finds it without a reader, and
// its end never comes. Owned by the agent, on the agent's loop; removes the pipe when it goes.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/random.h"
#include "muster/net/epoll_loop.h"
#include "muster/watchdog/deadlines.h"
#include "muster/watchdog/lines.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace muster::watchdog {

// Twice what a client may send: its limit is the atomic size of a pipe, 4096.
inline constexpr std::size_t kFileTimerLineBytesMax = 8192;

// ---- Pure: names and messages.

inline constexpr const char* kFileTimerEnableVariable = "TORCHELASTIC_ENABLE_FILE_TIMER";
inline constexpr const char* kFileTimerPathVariable = "TORCHELASTIC_TIMER_FILE";

struct FileTimerEnvironment {
  std::string enable;            // TORCHELASTIC_ENABLE_FILE_TIMER; only "1" enables
  std::string path;              // TORCHELASTIC_TIMER_FILE; empty: none is given
  std::string temporary_folder;  // for a path of our own
};

// Where the pipe is to be; nothing if file timers are not enabled. A path that was not given is new
// at every call.
std::optional<std::string> file_timer_path(const FileTimerEnvironment& environment, Random& random);

struct FileTimerMessage {
  pid_t pid = 0;
  std::string scope;
  double expiration_time = 0;  // seconds since the epoch; negative: a release
  int signal = 0;              // 0 or less: the process is not killed

  bool is_release() const { return expiration_time < 0; }
  friend bool operator==(const FileTimerMessage&, const FileTimerMessage&) = default;
};

// Members that are not known are ignored, and so is `version`: torch's server does not look at it.
Result<FileTimerMessage> parse_file_timer(std::string_view line);

// When `expiration_time` will be on the monotonic time line, if it is `now` there and `wall_now` on
// the wall clock. Never earlier than `now`.
TimePoint monotonic_deadline(double expiration_time, double wall_now, TimePoint now);

// ---- The server.

struct FileTimerOptions {
  std::string path;
  // The wall clock in seconds since the epoch. Empty: the system's.
  std::function<double()> wall_clock;
};

class FileTimerServer {
 public:
  // Creates the pipe. An old pipe or an empty file of that name is removed first, other things are
  // left alone and make it an Invalid. If another process reads from that very pipe, the name gets
  // an addition: two agents on one host may have inherited the same TORCHELASTIC_TIMER_FILE. So
  // workers must be given `path()`. Requires: `loop` and `deadlines` outlive the server.
  static Result<std::unique_ptr<FileTimerServer>> create(net::EpollLoop& loop, Deadlines& deadlines,
                                                         FileTimerOptions options);
  ~FileTimerServer();
  FileTimerServer(const FileTimerServer&) = delete;
  FileTimerServer& operator=(const FileTimerServer&) = delete;

  // The value of TORCHELASTIC_TIMER_FILE for the workers.
  const std::string& path() const { return path_; }

  std::uint64_t message_count() const { return message_count_; }
  // Messages that were malformed, or came from a process that is not ours.
  std::uint64_t refused_count() const { return refused_count_; }
  // When the last good message arrived; nothing while no client has sent one.
  std::optional<TimePoint> last_message() const { return last_message_; }

 private:
  FileTimerServer(net::EpollLoop& loop, Deadlines& deadlines, FileTimerOptions options, Fd pipe);
  void read_some();
  void take(const LineReader::Line& line);
  void refuse(std::string_view line, std::string_view reason);

  net::EpollLoop& loop_;
  Deadlines& deadlines_;
  std::string path_;
  std::function<double()> wall_clock_;
  Fd pipe_;
  net::FdWatch watch_;
  LineReader lines_;
  std::uint64_t message_count_ = 0;
  std::uint64_t refused_count_ = 0;
  std::optional<TimePoint> last_message_;
};

}  // namespace muster::watchdog
