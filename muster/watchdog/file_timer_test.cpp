#include "muster/watchdog/file_timer.h"

#include "muster/base/log.h"
#include "muster/watchdog/watchdog_test.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace muster::watchdog {
namespace {

using namespace std::chrono_literals;

TEST(FileTimerPath, IsGivenOrNew) {
  Random random(7);
  EXPECT_EQ(file_timer_path({"1", "/run/timer", "/var/tmp"}, random), "/run/timer");
  const auto first = file_timer_path({"1", "", "/var/tmp/"}, random);
  const auto second = file_timer_path({"1", "", "/var/tmp/"}, random);
  ASSERT_TRUE(first && second);
  EXPECT_NE(*first, *second);
  const std::string start = "/var/tmp/watchdog_timer_";
  ASSERT_TRUE(first->starts_with(start)) << *first;
  const std::string uuid = first->substr(start.size());
  ASSERT_EQ(uuid.size(), 36U) << uuid;
  for (const std::size_t place : {8U, 13U, 18U, 23U}) EXPECT_EQ(uuid[place], '-') << uuid;
  EXPECT_EQ(uuid[14], '4') << uuid;
  EXPECT_NE(std::string("89ab").find(uuid[19]), std::string::npos) << uuid;
  EXPECT_TRUE(file_timer_path({"1", "", "/"}, random)->starts_with("/watchdog_timer_"));
}

TEST(FileTimerPath, IsNothingUnlessEnabledExactly) {
  Random random(7);
  for (const char* enable : {"", "0", "true", "1 ", "01"})
    EXPECT_FALSE(file_timer_path({enable, "/run/timer", "/var/tmp"}, random)) << enable;
}

TEST(FileTimerMessage, IsReadAsPyTorchWritesIt) {
  const auto acquire =
      parse_file_timer(R"({"version": 1, "pid": 42, "scope_id": "train.py#12 \u00fc", )"
                       R"("expiration_time": 1700000000.25, "signal": 9})");
  ASSERT_TRUE(acquire);
  EXPECT_EQ(*acquire, (FileTimerMessage{42, "train.py#12 \xC3\xBC", 1700000000.25, 9}));
  EXPECT_FALSE(acquire->is_release());
  const auto release = parse_file_timer(
      R"({"version": 1, "pid": 42, "scope_id": "s", "expiration_time": -1, "signal": 0})");
  ASSERT_TRUE(release);
  EXPECT_TRUE(release->is_release());
}

TEST(FileTimerMessage, MayExpireNever) {
  const auto endless =
      parse_file_timer(R"({"pid": 42, "scope_id": "s", "expiration_time": Infinity, "signal": 9})");
  ASSERT_TRUE(endless);
  EXPECT_EQ(monotonic_deadline(endless->expiration_time, 1e9, TimePoint(1s)), kNever);
  // As part of a scope it is only text.
  const auto scope = parse_file_timer(
      R"({"pid": 42, "scope_id": "\"expiration_time\": Infinity", "expiration_time": 5, "signal": 9})");
  ASSERT_TRUE(scope);
  EXPECT_EQ(scope->scope, "\"expiration_time\": Infinity");
}

TEST(FileTimerMessage, IsRefusedWhenSomethingIsMissingOrOdd) {
  const char* bad[] = {
      "",
      "nonsense",
      "[]",
      "42",
      "{",
      R"({})",
      R"({"scope_id": "s", "expiration_time": 1, "signal": 9})",
      R"({"pid": "42", "scope_id": "s", "expiration_time": 1, "signal": 9})",
      R"({"pid": 0, "scope_id": "s", "expiration_time": 1, "signal": 9})",
      R"({"pid": -42, "scope_id": "s", "expiration_time": 1, "signal": 9})",
      R"({"pid": 4294967338, "scope_id": "s", "expiration_time": 1, "signal": 9})",
      R"({"pid": 18446744073709551615, "scope_id": "s", "expiration_time": 1, "signal": 9})",
      R"({"pid": 42.5, "scope_id": "s", "expiration_time": 1, "signal": 9})",
      R"({"pid": 42, "expiration_time": 1, "signal": 9})",
      R"({"pid": 42, "scope_id": 3, "expiration_time": 1, "signal": 9})",
      R"({"pid": 42, "scope_id": "s", "signal": 9})",
      R"({"pid": 42, "scope_id": "s", "expiration_time": "soon", "signal": 9})",
      R"({"pid": 42, "scope_id": "s", "expiration_time": NaN, "signal": 9})",
      R"({"pid": 42, "scope_id": "s", "expiration_time": 1})",
      R"({"pid": 42, "scope_id": "s", "expiration_time": 1, "signal": null})",
      R"({"pid": 42, "scope_id": "s", "expiration_time": 1, "signal": 9} {})",
  };
  for (const char* line : bad) {
    const auto message = parse_file_timer(line);
    ASSERT_FALSE(message) << line;
    EXPECT_EQ(message.error().kind, ErrorKind::Invalid);
    EXPECT_FALSE(message.error().message.empty());
  }
  EXPECT_FALSE(parse_file_timer(std::string(kFileTimerLineBytesMax, '[')));
}

TEST(FileTimerMessage, IsConvertedToMonotonicTimeOnArrival) {
  const TimePoint now = TimePoint(100s);
  EXPECT_EQ(monotonic_deadline(1002.5, 1000, now), TimePoint(102500ms));
  EXPECT_EQ(monotonic_deadline(1000, 1000, now), now);
  EXPECT_EQ(monotonic_deadline(5, 1000, now), now);
  EXPECT_EQ(monotonic_deadline(1e300, 1000, now), kNever);
}

class FileTimerServerTest : public testing::Test {
 protected:
  std::unique_ptr<FileTimerServer> start(const std::string& path) {
    auto server = FileTimerServer::create(loop_, deadlines_, options(path));
    EXPECT_TRUE(server) << server.error().message;
    return server ? std::move(*server) : nullptr;
  }
  FileTimerOptions options(const std::string& path) {
    return {.path = path, .wall_clock = [this] { return wall_clock_; }};
  }

  // As a client does it.
  static void write(const std::string& path, const std::string& text) {
    const Fd pipe(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    ASSERT_TRUE(pipe.is_open());
    ASSERT_EQ(::write(pipe.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  static std::string message(pid_t pid, const std::string& scope, double expiration, int signal) {
    return fmt::format(
        "{{\"version\": 1, \"pid\": {}, \"scope_id\": \"{}\", \"expiration_time\": {}, "
        "\"signal\": {}}}\n",
        pid, scope, expiration, signal);
  }

  void SetUp() override {
    log::set_sink(
        [this](log::Level, std::string_view, std::string_view text) { log_.emplace_back(text); });
  }
  void TearDown() override { log::set_sink({}); }

  net::EpollLoop loop_;
  TemporaryFolder folder_;
  double wall_clock_ = 1000;
  std::vector<Timeout> late_;
  std::vector<std::string> log_;
  Sleeper worker_;
  Deadlines deadlines_{loop_,
                       {.belongs = [this](pid_t pid) { return pid == worker_.pid(); },
                        .expired = [this](const Timeout& late) -> Result<> {
                          late_.push_back(late);
                          return {};
                        }}};
};

TEST_F(FileTimerServerTest, SetsMovesAndReleasesTimers) {
  const auto server = start(folder_ / "timer");
  EXPECT_FALSE(server->last_message());
  write(server->path(), message(worker_.pid(), "step", 2000, 9));
  write(server->path(), message(worker_.pid(), "load", 2000, 9));
  write(server->path(), message(worker_.pid(), "step", 3000, 9));
  run_what_is_due(loop_);
  EXPECT_EQ(deadlines_.timer_count(), 2U);
  EXPECT_EQ(server->message_count(), 3U);
  EXPECT_TRUE(server->last_message());
  write(server->path(), message(worker_.pid(), "step", -1, 0));
  write(server->path(), message(worker_.pid(), "load", -1, 0));
  write(server->path(), message(worker_.pid(), "unknown", -1, 0));
  run_what_is_due(loop_);
  EXPECT_EQ(deadlines_.timer_count(), 0U);
  EXPECT_EQ(server->refused_count(), 0U);
  EXPECT_TRUE(late_.empty());
}

TEST_F(FileTimerServerTest, ReportsWhatTheClientStated) {
  const auto server = start(folder_ / "timer");
  write(server->path(), message(worker_.pid(), "step", 999.5, 15));
  run_what_is_due(loop_);
  ASSERT_EQ(late_.size(), 1U);
  EXPECT_EQ(late_[0].pid, worker_.pid());
  EXPECT_EQ(late_[0].scope, "step");
  EXPECT_EQ(late_[0].signal, 15);
  EXPECT_EQ(late_[0].expiration_time, 999.5);
}

TEST_F(FileTimerServerTest, SeesAReleaseBeforeItEnforcesTheDeadline) {
  const auto server = start(folder_ / "timer");
  write(server->path(),
        message(worker_.pid(), "step", 999, 9) + message(worker_.pid(), "step", -1, 0));
  run_what_is_due(loop_);
  EXPECT_TRUE(late_.empty());
}

TEST_F(FileTimerServerTest, DoesNotKillWithoutASignal) {
  const auto server = start(folder_ / "timer");
  write(server->path(),
        message(worker_.pid(), "zero", 998, 0) + message(worker_.pid(), "negative", 999, -1));
  run_what_is_due(loop_);
  ASSERT_EQ(late_.size(), 2U);
  EXPECT_EQ(late_[0].signal, 0);
  EXPECT_EQ(late_[1].signal, 0);
}

TEST_F(FileTimerServerTest, ReadsOnAfterMalformedLines) {
  const auto server = start(folder_ / "timer");
  const std::string good = message(worker_.pid(), "step", 2000, 9);
  write(server->path(), "nonsense\n" + good + "\n{\"pid\": 1}\n" +
                            std::string(kFileTimerLineBytesMax + 1, 'x') + "\n" +
                            message(worker_.pid(), "after", 2000, 9));
  run_what_is_due(loop_);
  EXPECT_EQ(deadlines_.timer_count(), 2U);
  EXPECT_EQ(server->message_count(), 2U);
  EXPECT_EQ(server->refused_count(), 4U);
  EXPECT_EQ(log_.size(), 4U);
}

TEST_F(FileTimerServerTest, PutsLinesTogetherThatArriveInPieces) {
  const auto server = start(folder_ / "timer");
  const std::string text = message(worker_.pid(), "step", 2000, 9);
  write(server->path(), text.substr(0, 10));
  run_what_is_due(loop_);
  EXPECT_EQ(server->message_count(), 0U);
  write(server->path(), text.substr(10));
  run_what_is_due(loop_);
  EXPECT_EQ(deadlines_.timer_count(), 1U);
}

TEST_F(FileTimerServerTest, DoesNotFillTheLogWithNonsense) {
  const auto server = start(folder_ / "timer");
  for (int count = 0; count < 100; ++count) write(server->path(), "nonsense\n");
  run_what_is_due(loop_);
  EXPECT_EQ(server->refused_count(), 100U);
  ASSERT_EQ(log_.size(), 5U);
  EXPECT_NE(log_.back().find("further ones are not reported"), std::string::npos);
}

TEST_F(FileTimerServerTest, ListensOnlyToProcessesOfWorkers) {
  const auto server = start(folder_ / "timer");
  Sleeper stranger;
  write(server->path(), message(stranger.pid(), "step", 999, 9));
  write(server->path(), message(::getpid(), "step", 999, 9));
  write(server->path(), message(1, "step", 999, 9));
  run_what_is_due(loop_);
  EXPECT_TRUE(late_.empty());
  EXPECT_EQ(server->refused_count(), 3U);
}

TEST_F(FileTimerServerTest, HasNoTimersForProcessesThatHaveEnded) {
  const auto server = start(folder_ / "timer");
  write(server->path(), message(worker_.pid(), "step", 999, 9));
  worker_.end();
  run_what_is_due(loop_);
  EXPECT_TRUE(late_.empty());
  EXPECT_EQ(server->refused_count(), 0U);
  EXPECT_EQ(deadlines_.timer_count(), 0U);
}

TEST_F(FileTimerServerTest, HoldsAThousandMessagesWhileTheAgentIsBusy) {
  const auto server = start(folder_ / "timer");
  for (int count = 0; count < 1000; ++count)
    write(server->path(), message(worker_.pid(), fmt::format("step {}", count), 2000, 9));
  run_what_is_due(loop_);
  EXPECT_EQ(deadlines_.timer_count(), 1000U);
}

TEST_F(FileTimerServerTest, RemovesItsPipeAndCanBeStartedAgain) {
  const std::string path = folder_ / "timer";
  for (int round = 0; round < 3; ++round) {
    const auto server = start(path);
    EXPECT_EQ(server->path(), path);
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_TRUE(S_ISFIFO(info.st_mode));
    EXPECT_EQ(info.st_mode & 0777U, 0600U & info.st_mode);
    write(path, message(worker_.pid(), "step", 2000, 9));
    run_what_is_due(loop_);
    EXPECT_EQ(server->message_count(), 1U);
    deadlines_.clear();
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(FileTimerServerTest, ReplacesAPipeThatWasLeftBehindAndAnEmptyFile) {
  const std::string path = folder_ / "timer";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(start(path)->path(), path);
  std::ofstream(path).close();
  EXPECT_EQ(start(path)->path(), path);
}

TEST_F(FileTimerServerTest, LeavesOtherFilesAlone) {
  const std::string path = folder_ / "timer";
  std::ofstream(path) << "precious";
  auto refused = FileTimerServer::create(loop_, deadlines_, options(path));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Invalid);
  EXPECT_EQ(std::filesystem::file_size(path), 8U);
  std::filesystem::create_directory(folder_ / "folder");
  refused = FileTimerServer::create(loop_, deadlines_, options(folder_ / "folder"));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(std::filesystem::is_directory(folder_ / "folder"));
}

TEST_F(FileTimerServerTest, SaysWhyThereCanBeNoPipe) {
  const auto refused =
      FileTimerServer::create(loop_, deadlines_, options(folder_ / "missing/timer"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            fmt::format("cannot make the timer pipe {}: no such file or directory",
                        folder_ / "missing/timer"));
}

TEST_F(FileTimerServerTest, TakesAnotherNameIfThePipeIsInUse) {
  const std::string path = folder_ / "timer";
  const auto first = start(path);
  {
    const auto second = start(path);
    EXPECT_NE(second->path(), path);
    write(second->path(), message(worker_.pid(), "second", 2000, 9));
    write(first->path(), message(worker_.pid(), "first", 2000, 9));
    run_what_is_due(loop_);
    EXPECT_EQ(first->message_count(), 1U);
    EXPECT_EQ(second->message_count(), 1U);
  }
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(FileTimerServerTest, DoesNotRemoveThePipeOfItsSuccessor) {
  const std::string path = folder_ / "timer";
  auto first = start(path);
  std::filesystem::remove(path);
  const auto second = start(path);
  EXPECT_EQ(second->path(), path);
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace muster::watchdog
