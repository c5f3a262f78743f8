// A fixture for tests of Output: a console of two files, a folder for logs, workers that are the
// test itself.
#pragma once

#include "muster/base/log.h"
#include "muster/logs/files_test.h"
#include "muster/logs/output.h"

#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::logs {

inline Task<void> let_pass(Loop& loop, Duration length) {
  const TimePoint when = loop.now() + length;
  co_await sleep_until(loop, when);
}

class OutputTest : public testing::Test {
 protected:
  OutputTest() {
    std::signal(SIGPIPE, SIG_IGN);
    log::set_sink([this](log::Level, std::string_view, std::string_view message) {
      told_.emplace_back(message);
    });
    out_ = open_console("console_out");
    err_ = open_console("console_err");
    options_.out = out_.get();
    options_.err = err_.get();
  }
  ~OutputTest() override { log::set_sink({}); }

  Fd open_console(std::string_view name) const {
    return Fd(::open(folder_.file(name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }

  // Makes the Output and its first round.
  void start(int round = 1) {
    output_.emplace(loop_, options_);
    start_round(round);
  }
  void start_round(int round) {
    attempt_.path = folder_.file("round_" + std::to_string(round));
    std::filesystem::create_directories(attempt_.path);
    const Result<> started = output_->start_round(round, attempt_);
    ASSERT_TRUE(started) << started.error().message;
  }

  WorkerFds open_worker(int local_rank, Target out, Target err = Target::Null) {
    WorkerStreams streams{.role = "default",
                          .rank = local_rank + 100,
                          .local_rank = local_rank,
                          .folder = attempt_.worker(local_rank).folder,
                          .out = out,
                          .err = err};
    if (!streams.folder.empty()) std::filesystem::create_directories(streams.folder);
    Result<WorkerFds> fds = output_->open_worker(std::move(streams));
    EXPECT_TRUE(fds) << fds.error().message;
    return fds ? std::move(*fds) : WorkerFds();
  }

  // Lets everything that is in the pipes now be read and written.
  void run_turns(int count = 4) {
    for (int turn = 0; turn < count; ++turn) {
      loop_.post([this] { loop_.stop(); });
      loop_.run();
    }
  }
  Result<> drain(Duration limit = std::chrono::seconds(60)) {
    return loop_.block_on(output_->drain(loop_.now() + limit));
  }
  void drain_fully() {
    const Result<> drained = drain();
    ASSERT_TRUE(drained) << drained.error().message;
    EXPECT_TRUE(output_->is_idle());
  }

  std::string console_out() const { return text_of(folder_.file("console_out")); }
  std::string console_err() const { return text_of(folder_.file("console_err")); }

  TemporaryFolder folder_;
  net::EpollLoop loop_;
  Fd out_;
  Fd err_;
  OutputOptions options_;
  std::optional<Output> output_;
  AttemptFolder attempt_;
  std::vector<std::string> told_;  // what was logged
};

}  // namespace muster::logs
