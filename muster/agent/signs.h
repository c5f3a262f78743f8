// Signs: what the workers of this node let the agent know while they run: that they are ready, that
// they get on, by when they promise to be through with something. Says who is late.
//
// Both ways to say it end here: Muster's own socket, which any language can use, and the pipe of
// PyTorch's FileTimerClient where that is enabled.
//
// Owned by an Agent; lives on its loop.
#pragma once

#include "muster/agent/crew.h"
#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/net/epoll_loop.h"
#include "muster/observe/event.h"
#include "muster/watchdog/deadlines.h"
#include "muster/watchdog/file_timer.h"
#include "muster/watchdog/progress.h"
#include "muster/watchdog/socket.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace muster::agent {

struct SignsOptions {
  std::string temporary_folder;  // where the socket's own folder is made
  // Gets the name of that folder before it is there, so that somebody can remove it even if we are
  // killed just then. May be empty.
  std::function<void(const std::string& folder)> announce;
  bool file_timer = false;
  std::string timer_file;  // where its pipe is to be; empty: a new name
  watchdog::ProgressOptions progress;

  // A worker is late: it is to get `signal`, for the reason `note`. `kind`: "timer", "hang",
  // "start".
  std::function<void(Worker&, int signal, std::string_view kind, std::string note)> late;
  std::function<void(observe::WatchdogMoment, const std::optional<observe::WatchdogTimer>&)> record;
};

class Signs {
 public:
  // Makes the socket and the pipe. Requires: `loop` and `random` outlive it.
  static Result<std::unique_ptr<Signs>> create(net::EpollLoop& loop, Random& random,
                                               SignsOptions options);
  ~Signs();
  Signs(const Signs&) = delete;
  Signs& operator=(const Signs&) = delete;

  // For the workers' environment; the second is empty without file timers.
  const std::string& socket_path() const { return socket_->path(); }
  std::string timer_path() const { return file_timer_ ? file_timer_->path() : std::string(); }

  // Ours alone; with all that is in it, gone when this goes.
  const std::string& folder() const { return folder_; }

  // From the start of a crew until its stop.
  void begin(Crew& crew);
  void end();
  void exited(const Worker& worker);
  // One worker was started again alone.
  void restarted(const Worker& worker);

  bool all_ready() const { return progress_ && progress_->all_ready(); }
  bool is_ready(int local_rank) const { return progress_ && progress_->is_ready(local_rank); }
  std::optional<TimePoint> last_alive(int local_rank) const;
  // How long the most silent of the workers that give signs of life has been silent.
  Duration silence(TimePoint now) const { return progress_ ? progress_->silence(now) : Duration{}; }

 private:
  Signs(net::EpollLoop& loop, SignsOptions options);
  Result<> handle(pid_t sender, const watchdog::Message& message);
  Result<> expired(const watchdog::Timeout& late);
  void check_progress();

  net::EpollLoop& loop_;
  SignsOptions options_;
  std::string folder_;  // of the socket; ours
  Crew* crew_ = nullptr;
  std::optional<watchdog::Progress> progress_;
  Timer progress_timer_;
  std::unique_ptr<watchdog::Deadlines> deadlines_;
  std::unique_ptr<watchdog::FileTimerServer> file_timer_;
  std::unique_ptr<watchdog::AgentSocket> socket_;
};

}  // namespace muster::agent
