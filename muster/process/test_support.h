// What the tests of this folder share: workers written in shell, and pipes that tell when nobody is
// left who could write into them.
#pragma once

#include "muster/base/fd.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/process/host.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace muster::process {

using namespace std::chrono_literals;

// Nothing in these tests takes that long; it only bounds a test that fails.
inline constexpr Duration kPatience = 60s;
inline constexpr int kPatienceMilliseconds = 60'000;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline std::vector<std::string> own_environment() {
  std::vector<std::string> variables;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  return variables;
}

inline Command shell(std::string script) {
  Command command;
  command.executable = "/bin/sh";
  command.arguments = {"sh", "-c", std::move(script)};
  command.environment = own_environment();
  return command;
}

inline bool is_alive(pid_t pid) {
  const auto stat = read_stat(pid);
  return stat && !stat->is_dead();
}

// A pipe whose writing end is given to workers. Whoever they start inherits it, so its end is the
// proof that all of them are gone.
class Pipe {
 public:
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    reader_ = Fd(ends[0]);
    writer_ = Fd(ends[1]);
  }
  int writer() const { return writer_.get(); }
  void close_writer() { writer_.reset(); }

  // The next line without its end; nothing at the end of the pipe, or when patience is lost.
  std::optional<std::string> line() {
    for (;;) {
      const std::size_t end = text_.find('\n');
      if (end != std::string::npos) {
        std::string found = text_.substr(0, end);
        text_.erase(0, end + 1);
        return found;
      }
      if (!read_some()) return std::nullopt;
    }
  }

  // Everything that is written until the last writer is gone. Closes our own writing end first.
  std::string rest() {
    close_writer();
    while (read_some()) {
    }
    EXPECT_TRUE(ended_) << "somebody still holds the pipe";
    return std::exchange(text_, {});
  }

 private:
  bool read_some() {
    pollfd ready{reader_.get(), POLLIN, 0};
    int count = 0;
    do count = ::poll(&ready, 1, kPatienceMilliseconds);
    while (count < 0 && errno == EINTR);
    if (count == 0) {
      ADD_FAILURE() << "nothing came through the pipe in time";
      return false;
    }
    std::array<char, 4096> buffer{};
    const ssize_t got = ::read(reader_.get(), buffer.data(), buffer.size());
    if (got <= 0) {
      ended_ = got == 0;
      return false;
    }
    text_.append(buffer.data(), static_cast<std::size_t>(got));
    return true;
  }

  Fd reader_;
  Fd writer_;
  std::string text_;
  bool ended_ = false;
};

struct Worker {
  explicit Worker(Loop& loop) : ended(loop) {}
  Oneshot<Result<Exit>> ended;
  std::unique_ptr<Process> process;
};

inline Task<Result<Exit>> end_of(Oneshot<Result<Exit>>& ended) { co_return co_await ended; }

class HostTest : public testing::Test {
 protected:
  HostTest() : host_(std::make_unique<Host>(loop_)) {}

  std::unique_ptr<Worker> start(const Command& command) {
    auto worker = std::make_unique<Worker>(loop_);
    auto process = host_->start(
        command, [place = worker.get()](Exit exit) { place->ended.set(Result<Exit>(exit)); });
    EXPECT_TRUE(process) << process.error().message;
    if (process) worker->process = std::move(*process);
    return worker;
  }
  // A worker that writes into `out_`, and the first line it wrote.
  std::unique_ptr<Worker> start_talking(std::string script) {
    Command command = shell(std::move(script));
    command.output = out_.writer();
    auto worker = start(command);
    EXPECT_EQ(out_.line(), "ready");
    return worker;
  }

  Exit wait(Worker& worker) {
    const TimePoint deadline = SystemClock().now() + kPatience;
    auto exit = loop_.block_on(
        with_deadline(loop_, deadline, end_of(worker.ended), std::string("the process lives on")));
    EXPECT_TRUE(exit) << exit.error().message;
    return exit ? *exit : Exit();
  }
  int code_of(const std::string& script) {
    auto worker = start(shell(script));
    return worker->process ? wait(*worker).code : -1000;
  }
  std::string output_of(Command command) {
    Pipe pipe;
    command.output = pipe.writer();
    auto worker = start(command);
    std::string text = pipe.rest();
    wait(*worker);
    return text;
  }
  std::vector<Stuck> stop(const std::vector<Worker*>& workers, StopOptions options) {
    std::vector<Process*> processes;
    for (Worker* worker : workers) processes.push_back(worker->process.get());
    return loop_.block_on(host_->stop(std::move(processes), options));
  }

  net::EpollLoop loop_;
  Pipe out_;
  std::unique_ptr<Host> host_;
};

}  // namespace muster::process
