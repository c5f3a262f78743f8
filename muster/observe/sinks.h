// Event sinks by name, as `--event-log-handler` gives them:
//
//   null                discards
//   dynamic_rendezvous  discards; PyTorch has registered it
//   console             one line of JSON to standard error
//   file:PATH           appended, one line a record; several agents may share a file
//   unix:PATH           sent to a Unix socket: a stream (one line a record) or a datagram socket
//                       (one record each). It may be restarted or come later: records wait for it,
//                       as many as `kUnixBacklogBytesMax` holds, then the oldest are dropped.
#pragma once

#include "muster/base/error.h"
#include "muster/net/epoll_loop.h"
#include "muster/observe/event_log.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster::observe {

inline constexpr std::size_t kUnixBacklogBytesMax = std::size_t{1024} * 1024;

struct SinkOptions {
  // Who writes whole lines to the console (a newline is included); empty: one write(2) a line to
  // standard error.
  std::function<void(std::string_view line)> console = {};
  // Between two attempts to connect to a Unix socket.
  Duration unix_retry = std::chrono::seconds(1);
};

// Invalid for an unknown name (with a suggestion) or a path that cannot be; Unavailable for a file
// that cannot be opened. Requires: `loop` outlives the sink.
Result<std::unique_ptr<EventSink>> make_sink(net::EpollLoop& loop, std::string_view name,
                                             const SinkOptions& options);

// The same check without opening anything, for validation before a start.
Result<> check_sink_name(std::string_view name);

// The parts of `make_sink`.
std::unique_ptr<EventSink> make_null_sink();
std::unique_ptr<EventSink> make_console_sink(const SinkOptions& options);
Result<std::unique_ptr<EventSink>> open_file_sink(const std::string& path);
Result<std::unique_ptr<EventSink>> make_unix_sink(net::EpollLoop& loop, std::string path,
                                                  const SinkOptions& options);

}  // namespace muster::observe
