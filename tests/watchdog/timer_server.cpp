// Runs what an agent runs to hear from its workers, so that a test in another language can be the
// workers:
//
//   timer_server TIMER_PIPE AGENT_SOCKET
//
// Workers are the processes that descend from our parent, except ourselves. What happens is said on
// standard output, a line of JSON each:
//
//   {"event": "listening", "timers": PATH, "socket": PATH}
//   {"event": "expired", "pid": PID, "scope": SCOPE, "signal": NUMBER}    and it gets the signal
//   {"event": "told", "pid": PID, "kind": NUMBER, "text": TEXT}          by way of the socket
//   {"event": "state", "timers": N, "messages": N, "refused": N}         for a line on our input
//
// Ends, and removes pipe and socket, when its input ends.

#include "muster/base/log.h"
#include "muster/net/epoll_loop.h"
#include "muster/watchdog/deadlines.h"
#include "muster/watchdog/file_timer.h"
#include "muster/watchdog/lineage.h"
#include "muster/watchdog/socket.h"

#include <boost/json.hpp>

#include <cstdio>
#include <memory>
#include <string>
#include <sys/epoll.h>
#include <unistd.h>

namespace muster::watchdog {
namespace {

namespace json = boost::json;

void say(const json::object& event) {
  const std::string line = json::serialize(event);
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

class TimerServer {
 public:
  Result<> start(const std::string& timer_path, const std::string& socket_path) {
    auto timers =
        FileTimerServer::create(loop_, deadlines_, {.path = timer_path, .wall_clock = {}});
    if (!timers) return fail(timers.error());
    timers_ = std::move(*timers);
    auto socket = AgentSocket::create(
        loop_, {.path = socket_path},
        [this](pid_t sender, const Message& message) { return told(sender, message); });
    if (!socket) return fail(socket.error());
    socket_ = std::move(*socket);
    say({{"event", "listening"}, {"timers", timers_->path()}, {"socket", socket_->path()}});
    input_.want(EPOLLIN);
    return {};
  }

  void run() { loop_.run(); }

 private:
  static bool belongs(pid_t pid) {
    const pid_t parent = ::getppid();
    const auto is_parent = [&](pid_t ancestor) { return ancestor == parent; };
    return pid != parent && nearest_ancestor(pid, ::getpid(), is_parent);
  }

  Result<> expired(const Timeout& late) {
    say({{"event", "expired"}, {"pid", late.pid}, {"scope", late.scope}, {"signal", late.signal}});
    return late.signal == 0 ? Result<>() : deadlines_.signal(late.pid, late.signal);
  }

  Result<> told(pid_t sender, const Message& message) {
    if (!belongs(sender)) return fail(ErrorKind::Invalid, "you are no worker");
    say({{"event", "told"},
         {"pid", sender},
         {"kind", static_cast<int>(message.kind)},
         {"text", message.text}});
    if (message.kind == MessageKind::Release) deadlines_.release(sender, message.scope);
    if (message.kind != MessageKind::Expires) return {};
    Timeout timeout;
    timeout.pid = sender;
    timeout.scope = message.scope;
    timeout.deadline = after(loop_.now(), message.length);
    timeout.signal = message.signal;
    return deadlines_.set(std::move(timeout));
  }

  void asked() {
    char buffer[256];
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got <= 0) return loop_.stop();
    // Whatever happened before the question is dealt with before the answer.
    loop_.post([this] { say_state(); });
  }

  void say_state() {
    say({{"event", "state"},
         {"timers", deadlines_.timer_count()},
         {"messages", timers_->message_count()},
         {"refused", timers_->refused_count()}});
  }

  net::EpollLoop loop_;
  DeadlinesOptions options_{.belongs = belongs,
                            .expired = [this](const Timeout& late) { return expired(late); }};
  Deadlines deadlines_{loop_, options_};
  std::unique_ptr<FileTimerServer> timers_;
  std::unique_ptr<AgentSocket> socket_;
  net::FdWatch input_{loop_, STDIN_FILENO, [this](std::uint32_t) { asked(); }};
};

}  // namespace
}  // namespace muster::watchdog

int main(int count, char** words) {
  if (count != 3) {
    std::fprintf(stderr, "usage: timer_server TIMER_PIPE AGENT_SOCKET\n");
    return 2;
  }
  muster::watchdog::TimerServer server;
  const auto started = server.start(words[1], words[2]);
  if (!started) {
    std::fprintf(stderr, "%s\n", started.error().message.c_str());
    return 1;
  }
  server.run();
  return 0;
}
