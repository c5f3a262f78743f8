#include "muster/logs/output.h"

#include "muster/logs/output_test.h"

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>

namespace muster::logs {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

Task<void> drain_in_vain(Output& output, TimePoint deadline) {
  const Result<> ignored = co_await output.drain(deadline);
  ADD_FAILURE() << "this should have been cancelled " << ignored.has_value();
}

TEST_F(OutputTest, TeesBytesToTheFileAndLinesToTheConsole) {
  start();
  WorkerFds fds = open_worker(0, Target::Tee, Target::Tee);
  write_text(fds.out.get(), "one\ntwo");
  write_text(fds.err.get(), "oops\n");
  fds = {};
  drain_fully();
  EXPECT_EQ(text_of(attempt_.worker(0).out), "one\ntwo");
  EXPECT_EQ(text_of(attempt_.worker(0).err), "oops\n");
  EXPECT_EQ(console_out(), "[default0]:one\n[default0]:two\n");
  EXPECT_EQ(console_err(), "[default0]:oops\n");
  EXPECT_EQ(output_->counts().lines, 3U);
  EXPECT_EQ(output_->counts().bytes, 12U);
}

TEST_F(OutputTest, DoesNotMixUnfinishedLinesOfDifferentRanks) {
  start();
  WorkerFds first = open_worker(0, Target::Tee);
  WorkerFds second = open_worker(11, Target::Tee);
  write_text(first.out.get(), "par");
  run_turns();
  write_text(second.out.get(), "whole\n");
  run_turns();
  write_text(first.out.get(), "tial\n");
  run_turns();
  EXPECT_EQ(console_out(), "[default11]:whole\n[default0]:partial\n");
}

TEST_F(OutputTest, ShowsALineThatDoesNotEndAfterAWhile) {
  options_.lines.hold = 1ms;
  start();
  const WorkerFds fds = open_worker(0, Target::Tee);
  write_text(fds.out.get(), "Working...");
  run_turns();
  loop_.block_on(let_pass(loop_, 2ms));
  run_turns();
  EXPECT_EQ(console_out(), "[default0]:Working... <unfinished ...>\n");
  write_text(fds.out.get(), " done\n");
  run_turns();
  EXPECT_EQ(console_out(),
            "[default0]:Working... <unfinished ...>\n[default0]:<... resumed>  done\n");
  EXPECT_EQ(text_of(attempt_.worker(0).out), "Working... done\n");
  EXPECT_EQ(output_->counts().unfinished, 1U);
}

TEST_F(OutputTest, UsesTemplateHostAndColour) {
  options_.prefix_template = "${hostname}/${rank}/${local_rank} ";
  options_.hostname = "node-3";
  options_.colour = Colour::Always;
  start();
  WorkerFds fds = open_worker(2, Target::Tee);
  write_text(fds.out.get(), "hello\n");
  fds = {};
  drain_fully();
  EXPECT_EQ(console_out(), "\x1b[0;32mnode-3/102/2 \x1b[0mhello\n");
}

TEST_F(OutputTest, ColoursPrefixesOnATerminal) {
  const Fd terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal.is_open());
  ASSERT_EQ(::grantpt(terminal.get()), 0);
  ASSERT_EQ(::unlockpt(terminal.get()), 0);
  char name[64] = {};
  ASSERT_EQ(::ptsname_r(terminal.get(), name, sizeof name), 0);
  const Fd screen(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  options_.out = screen.get();
  start();
  // More than the terminal takes at once, so that writing must wait for the reader.
  constexpr std::size_t kCount = 2000;
  const std::string shown = "\x1b[0;36m[default0]:\x1b[0mhello\r\n";
  std::string seen;
  std::thread reader([&] {
    char buffer[4096];
    while (seen.size() < kCount * shown.size()) {
      const ssize_t count = ::read(terminal.get(), buffer, sizeof buffer);
      if (count <= 0) break;
      seen.append(buffer, static_cast<std::size_t>(count));
    }
  });
  WorkerFds fds = open_worker(0, Target::Tee);
  for (std::size_t index = 0; index < kCount; ++index) write_text(fds.out.get(), "hello\n");
  fds = {};
  drain_fully();
  reader.join();
  std::string expected;
  for (std::size_t index = 0; index < kCount; ++index) expected += shown;
  EXPECT_EQ(seen, expected);
  output_.reset();
}

TEST_F(OutputTest, LetsAWorkerWriteItsFileItself) {
  start();
  const WorkerFds fds = open_worker(0, Target::File, Target::File);
  write_text(fds.out.get(), "straight\n");
  EXPECT_EQ(text_of(attempt_.worker(0).out), "straight\n");
  struct stat facts {};
  ASSERT_EQ(::fstat(fds.out.get(), &facts), 0);
  EXPECT_TRUE(S_ISREG(facts.st_mode));
  EXPECT_TRUE(output_->is_idle());
  drain_fully();
  EXPECT_EQ(console_out(), "");
}

TEST_F(OutputTest, LeavesInheritedStreamsToTheWorkerAndThrowsOthersAway) {
  start();
  const WorkerFds fds = open_worker(0, Target::Inherit, Target::Null);
  EXPECT_FALSE(fds.out.is_open());
  struct stat facts {};
  ASSERT_EQ(::fstat(fds.err.get(), &facts), 0);
  EXPECT_TRUE(S_ISCHR(facts.st_mode));
  EXPECT_FALSE(exists(attempt_.worker(0).out));
  EXPECT_FALSE(exists(attempt_.worker(0).err));
}

TEST_F(OutputTest, RotatesRedirectedAndTeedFiles) {
  options_.files = {.rotate_bytes = 20, .keep = 100};
  start();
  WorkerFds fds = open_worker(0, Target::File, Target::Tee);
  std::string all;
  for (int index = 0; index < 50; ++index) all += "line " + std::to_string(index) + "\n";
  write_text(fds.out.get(), all);
  write_text(fds.err.get(), all);
  fds = {};
  drain_fully();
  for (const std::string& path : {attempt_.worker(0).out, attempt_.worker(0).err}) {
    std::string together = text_of(path);
    for (int index = 1; exists(path + "." + std::to_string(index)); ++index) {
      together = text_of(path + "." + std::to_string(index)) + together;
    }
    EXPECT_EQ(together, all);
    EXPECT_LE(text_of(path).size(), 20U);
  }
  EXPECT_EQ(console_out(), "");
  EXPECT_EQ(lines_of(console_err()).size(), 50U);
}

TEST_F(OutputTest, CapsTheFileAndNotTheConsole) {
  options_.files = {.max_bytes = 12};
  start();
  WorkerFds fds = open_worker(0, Target::Tee);
  write_text(fds.out.get(), "first\nsecond\nthird\n");
  fds = {};
  drain_fully();
  EXPECT_EQ(lines_of(console_out()).size(), 3U);
  EXPECT_TRUE(text_of(attempt_.worker(0).out).starts_with("first\n[muster] the limit of 12"));
}

TEST_F(OutputTest, CopiesMatchingLinesOfTeedStreams) {
  options_.out_filters = {"loss", "acc"};
  options_.err_filters = {""};
  start();
  WorkerFds first = open_worker(0, Target::Tee, Target::Tee);
  WorkerFds second = open_worker(1, Target::File, Target::Tee);
  write_text(first.out.get(), "loss 1\nother\nacc 2\n");
  write_text(second.out.get(), "loss 3\n");
  write_text(first.err.get(), "first\n");
  run_turns();
  write_text(second.err.get(), "second");
  first = {};
  second = {};
  drain_fully();
  EXPECT_EQ(text_of(attempt_.filtered_out()), "[default0]:loss 1\n[default0]:acc 2\n");
  EXPECT_EQ(text_of(attempt_.filtered_err()), "[default0]:first\n[default1]:second\n");
  EXPECT_EQ(output_->counts().filtered_lines, 4U);
}

TEST_F(OutputTest, HasNoFilteredFileWithoutAFilter) {
  options_.err_filters = {"x"};
  start();
  EXPECT_FALSE(exists(attempt_.filtered_out()));
  EXPECT_TRUE(exists(attempt_.filtered_err()));
}

TEST_F(OutputTest, ShowsTeedLinesAndStoresNothingWithTheNullDevice) {
  options_.out_filters = {"x"};
  output_.emplace(loop_, options_);
  ASSERT_TRUE(output_->start_round(1, AttemptFolder()));
  attempt_ = AttemptFolder();
  WorkerFds fds = open_worker(0, Target::Tee, Target::File);
  write_text(fds.out.get(), "x y\n");
  write_text(fds.err.get(), "gone\n");
  fds = {};
  drain_fully();
  EXPECT_EQ(console_out(), "[default0]:x y\n");
  EXPECT_EQ(console_err(), "");
}

TEST_F(OutputTest, WritesObjectsForInheritedStreamsToo) {
  options_.format = Format::Json;
  start(4);
  WorkerFds fds = open_worker(1, Target::Inherit, Target::Tee);
  write_text(fds.out.get(), "plain \xFF\n");
  write_text(fds.err.get(), "teed");
  fds = {};
  drain_fully();
  output_->say(Stream::Err, "the agent");
  drain_fully();
  const boost::json::object out = boost::json::parse(console_out()).as_object();
  EXPECT_EQ(out.at("line"), "plain \uFFFD");
  EXPECT_EQ(out.at("rank"), 101);
  EXPECT_EQ(out.at("round"), 4);
  EXPECT_EQ(out.at("stream"), "stdout");
  const Lines err = lines_of(console_err());
  ASSERT_EQ(err.size(), 2U);
  EXPECT_EQ(boost::json::parse(err[0]).as_object().at("line"), "teed");
  EXPECT_EQ(boost::json::parse(err[1]).as_object().at("line"), "the agent");
  EXPECT_FALSE(exists(attempt_.worker(1).out));
  EXPECT_EQ(text_of(attempt_.worker(1).err), "teed");
}

TEST_F(OutputTest, PutsTheAgentsOwnLinesInOrder) {
  start();
  WorkerFds fds = open_worker(0, Target::Null, Target::Tee);
  output_->say(Stream::Err, "before");
  write_text(fds.err.get(), "worker\n");
  run_turns();
  output_->say(Stream::Err, "after\n");
  fds = {};
  drain_fully();
  EXPECT_EQ(console_err(), "before\n[default0]:worker\nafter\n");
}

TEST_F(OutputTest, KeepsRoundsApart) {
  options_.out_filters = {""};
  start(1);
  WorkerFds fds = open_worker(0, Target::Tee);
  write_text(fds.out.get(), "first\n");
  fds = {};
  drain_fully();
  const AttemptFolder first = attempt_;
  start_round(2);
  fds = open_worker(0, Target::Tee);
  write_text(fds.out.get(), "second\n");
  fds = {};
  drain_fully();
  EXPECT_EQ(text_of(first.worker(0).out), "first\n");
  EXPECT_EQ(text_of(first.filtered_out()), "[default0]:first\n");
  EXPECT_EQ(text_of(attempt_.worker(0).out), "second\n");
  EXPECT_EQ(text_of(attempt_.filtered_out()), "[default0]:second\n");
}

TEST_F(OutputTest, RemembersTheLastLinesOfEveryStreamItCanSee) {
  start();
  WorkerFds teed = open_worker(0, Target::File, Target::Tee);
  WorkerFds stored = open_worker(1, Target::Tee, Target::File);
  WorkerFds hidden = open_worker(2, Target::Null, Target::Inherit);
  for (int index = 0; index < 100; ++index) {
    const std::string line = "line " + std::to_string(index) + "\n";
    write_text(teed.err.get(), line);
    write_text(stored.err.get(), line);
  }
  teed = {};
  stored = {};
  hidden = {};
  drain_fully();
  EXPECT_EQ(output_->recent_lines(0).size(), kRecentLines);
  EXPECT_EQ(output_->recent_lines(0).back(), "line 99");
  EXPECT_EQ(output_->recent_lines(1, Stream::Err, 2), (Lines{"line 98", "line 99"}));
  EXPECT_TRUE(output_->recent_lines(2).empty());
  EXPECT_TRUE(output_->recent_lines(3).empty());
}

TEST_F(OutputTest, RemembersTheLastLinesWhenFilesAreRotatedOrMissing) {
  options_.files = {.rotate_bytes = 5};
  start();
  WorkerFds rotated = open_worker(0, Target::Null, Target::File);
  attempt_.path.clear();
  WorkerFds unstored = open_worker(1, Target::Null, Target::Tee);
  write_text(rotated.err.get(), "one\ntwo\nthree\n");
  write_text(unstored.err.get(), "one\ntwo\nthree\n");
  rotated = {};
  unstored = {};
  drain_fully();
  EXPECT_EQ(output_->recent_lines(0), (Lines{"one", "two", "three"}));
  EXPECT_EQ(output_->recent_lines(1), (Lines{"one", "two", "three"}));
}

TEST_F(OutputTest, GivesUpPipesThatOthersHoldOpenAndSaysSoOnce) {
  start();
  WorkerFds first = open_worker(0, Target::Tee, Target::Tee);
  WorkerFds second = open_worker(1, Target::Tee);
  write_text(first.out.get(), "whole\nlast words");
  second = {};
  const Result<> drained = drain(1ms);
  ASSERT_TRUE(drained) << drained.error().message;
  EXPECT_EQ(console_out(), "[default0]:whole\n[default0]:last words\n");
  EXPECT_EQ(text_of(attempt_.worker(0).out), "whole\nlast words");
  EXPECT_EQ(output_->counts().abandoned_pipes, 2U);
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_TRUE(told_[0].ends_with("ranks=100")) << told_[0];
  // Whoever held it learns that nobody listens.
  EXPECT_EQ(::write(first.out.get(), "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_TRUE(output_->is_idle());
}

TEST_F(OutputTest, CanStopDrainingAndBeginAgain) {
  start();
  WorkerFds fds = open_worker(0, Target::Tee);
  {
    TaskScope scope;
    scope.start(drain_in_vain(*output_, loop_.now() + 60s));
    run_turns();
  }
  write_text(fds.out.get(), "still here\n");
  fds = {};
  drain_fully();
  EXPECT_EQ(console_out(), "[default0]:still here\n");
}

TEST_F(OutputTest, LosesNothingThatIsWrittenRightBeforeTheExit) {
  start();
  constexpr int kWorkers = 50;
  std::vector<pid_t> children;
  for (int rank = 0; rank < kWorkers; ++rank) {
    WorkerFds fds = open_worker(rank, Target::Tee);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const ssize_t written = ::write(fds.out.get(), "begin\nlast", 10);
      ::_exit(written == 10 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  drain_fully();
  EXPECT_EQ(lines_of(console_out()).size(), 2U * kWorkers);
  for (int rank = 0; rank < kWorkers; ++rank) {
    EXPECT_EQ(text_of(attempt_.worker(rank).out), "begin\nlast");
  }
}

TEST_F(OutputTest, SaysWhatToDoWhenDescriptorsRunOut) {
  start();
  WorkerStreams streams;
  streams.out = Target::Tee;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const Fd highest(::fcntl(out_.get(), F_DUPFD_CLOEXEC, 0));
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(highest.get()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const Result<WorkerFds> fds = output_->open_worker(std::move(streams));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(fds);
  EXPECT_NE(fds.error().message.find("ulimit -n"), std::string::npos) << fds.error().message;
  EXPECT_TRUE(output_->is_idle());
}

TEST_F(OutputTest, LeaksNoDescriptors) {
  start();
  const auto count = [] {
    const std::filesystem::directory_iterator entries("/proc/self/fd");
    return std::distance(begin(entries), end(entries));
  };
  const auto before = count();
  for (int round = 2; round < 20; ++round) {
    start_round(round);
    for (int rank = 0; rank < 8; ++rank) {
      const WorkerFds fds = open_worker(rank, Target::Tee, Target::File);
      write_text(fds.out.get(), "x");
    }
    drain_fully();
  }
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace muster::logs
