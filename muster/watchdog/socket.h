// AgentSocket: the local socket on which workers tell their agent how they are.
//
// A Unix stream socket whose path workers find in MUSTER_AGENT_SOCKET. The kernel says who is at
// the other end, so nobody can speak for another process. One line is one message (message.h), and
// each is answered with one line, `ok` or `error TEXT`. A connection may be kept or used once:
//
//   muster alive                                                   # from a shell script
//   printf 'alive\n' | socat - "UNIX-CONNECT:$MUSTER_AGENT_SOCKET"    # without muster
//
// Owned by the agent, on the agent's loop; removes the path when it goes.
#pragma once

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/loop.h"
#include "muster/net/epoll_loop.h"
#include "muster/watchdog/message.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace muster::watchdog {

inline constexpr const char* kAgentSocketVariable = "MUSTER_AGENT_SOCKET";

// Those beyond are told so and closed.
inline constexpr std::size_t kAgentConnectionsMax = 4096;
// How far answers that nobody reads may pile up before the connection is closed.
inline constexpr std::size_t kAgentAnswerBytesMax = 64 * 1024;

struct AgentSocketOptions {
  // At most about a hundred bytes: the system allows no more.
  std::string path;
  std::size_t connections_max = kAgentConnectionsMax;
};

class AgentSocket {
 public:
  // An error becomes the answer's text. `sender` is the process that made the connection; a shell's
  // `muster alive` is a child of the worker that it speaks for (see lineage.h), and has ended soon
  // after. Called on the loop, where anything may be done but destroy the socket.
  using Handler = std::function<Result<>(pid_t sender, const Message& message)>;

  // A socket that is left at `path` is removed if nobody listens on it any more; anything else
  // there makes it a Conflict. Only this user can connect. Requires: `loop` outlives the socket.
  static Result<std::unique_ptr<AgentSocket>> create(net::EpollLoop& loop,
                                                     AgentSocketOptions options, Handler handler);
  ~AgentSocket();
  AgentSocket(const AgentSocket&) = delete;
  AgentSocket& operator=(const AgentSocket&) = delete;

  const std::string& path() const { return options_.path; }
  std::size_t connection_count() const { return connections_.size(); }
  std::uint64_t message_count() const { return message_count_; }

 private:
  struct Connection;
  using Connections = std::list<std::unique_ptr<Connection>>;

  AgentSocket(net::EpollLoop& loop, AgentSocketOptions options, Handler handler, Fd listener);
  void accept_some();
  void serve(Connection& connection, std::uint32_t events);
  bool read_some(Connection& connection);
  bool answer(Connection& connection, std::string_view line, bool too_long);
  bool flush(Connection& connection);
  void remove(Connection& connection);

  net::EpollLoop& loop_;
  AgentSocketOptions options_;
  Handler handler_;
  Fd listener_;
  net::FdWatch watch_;
  Timer rest_;  // runs while we are out of descriptors
  Connections connections_;
  std::uint64_t message_count_ = 0;
};

// Sends one line to the agent at `path` and waits for its answer, blocking: for programs that have
// no loop. Unavailable: nobody listens there. Timeout, Closed: no answer came. Invalid: the agent
// refused, in its words.
Result<> tell_agent(const std::string& path, std::string_view line, Duration timeout);

}  // namespace muster::watchdog
