// What the tests here share: a process that does nothing, a folder, a loop that cannot hang.
#pragma once

#include "muster/base/loop.h"
#include "muster/net/epoll_loop.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace muster::watchdog {

// Far beyond what is ever needed: passing it means "hangs".
inline constexpr Duration kPatience = std::chrono::seconds(60);

// Runs the loop until something stops it.
inline void run_until_stopped(net::EpollLoop& loop) {
  bool has_waited = false;
  Timer patience(loop, [&] {
    has_waited = true;
    loop.stop();
  });
  patience.set(loop.now() + kPatience);
  loop.run();
  EXPECT_FALSE(has_waited) << "the loop was not stopped";
}

// Runs the loop for what is waiting already: descriptors that are ready, timers that are due.
inline void run_what_is_due(net::EpollLoop& loop) {
  // The first turn may still find old timers; what becomes ready in it runs in the second.
  for (int turns = 0; turns < 2; ++turns) {
    loop.post([&] { loop.stop(); });
    loop.run();
  }
}

// A child process that waits to be killed. It dies with the test.
class Sleeper {
 public:
  Sleeper() : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::signal(SIGTERM, SIG_DFL);
      while (true) ::pause();
    }
    EXPECT_GT(pid_, 0);
  }
  ~Sleeper() { end(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  pid_t pid() const { return pid_; }

  // Kills it and waits for its end; it stays as a zombie until `end` or `wait`.
  void kill() const {
    ::kill(pid_, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }

  // The signal that ended it; 0 if it ended by itself.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

  void end() {
    if (pid_ <= 0) return;
    kill();
    wait();
  }

 private:
  pid_t pid_;
};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "muster-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace muster::watchdog
