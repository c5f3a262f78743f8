#include "muster/logs/console.h"

#include "muster/base/log.h"
#include "muster/logs/files_test.h"

#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <sys/socket.h>
#include <thread>

namespace muster::logs {
namespace {

using namespace std::chrono_literals;

class ConsoleTest : public testing::Test {
 protected:
  ConsoleTest() { std::signal(SIGPIPE, SIG_IGN); }
  ~ConsoleTest() override { log::set_sink({}); }

  void open(int fd) {
    log::set_sink([this](log::Level, std::string_view, std::string_view) { ++told_; });
    console_.emplace(loop_, fd, "standard output", [this] {
      if (until_ && until_()) loop_.stop();
    });
  }
  void add(std::string_view text) {
    console_->queue() += text;
    console_->added();
  }
  // Runs the loop until the console has changed so that `condition` holds.
  void run_until(std::function<bool()> condition) {
    until_ = std::move(condition);
    Timer limit(loop_, [this] {
      ADD_FAILURE() << "the console did not change in time";
      loop_.stop();
    });
    limit.set(loop_.now() + 60s);
    loop_.run();
    until_ = nullptr;
  }
  void run_until_empty() {
    run_until([this] { return console_->is_empty(); });
  }

  net::EpollLoop loop_;
  std::optional<Console> console_;
  std::function<bool()> until_;
  int told_ = 0;
};

TEST_F(ConsoleTest, WritesToAFileAtTheEndOfTheTurn) {
  const TemporaryFolder folder;
  const Fd file(::open(folder.file("out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  open(file.get());
  add("one\n");
  add("two\n");
  EXPECT_EQ(text_of(folder.file("out")), "");
  EXPECT_FALSE(console_->is_empty());
  run_until_empty();
  EXPECT_EQ(text_of(folder.file("out")), "one\ntwo\n");
  EXPECT_EQ(console_->written_bytes(), 8U);
  EXPECT_FALSE(console_->is_terminal());
}

TEST_F(ConsoleTest, LeavesTheModeOfASharedDescriptorAlone) {
  PipeEnds pipe;
  const int before = ::fcntl(pipe.writer.get(), F_GETFL);
  open(pipe.writer.get());
  add("one\n");
  run_until_empty();
  EXPECT_EQ(::fcntl(pipe.writer.get(), F_GETFL), before);
}

TEST_F(ConsoleTest, IsFullAtItsLimitAndHasRoomWhenSomeoneReads) {
  PipeEnds pipe;
  open(pipe.writer.get());
  const std::string line = std::string(1023, 'x') + "\n";
  std::size_t count = 0;
  while (console_->unwritten_bytes() + line.size() < kConsoleBytesFull) {
    add(line);
    ++count;
  }
  EXPECT_FALSE(console_->is_full());
  add(line);
  EXPECT_TRUE(console_->is_full());
  std::string text;
  std::thread reader([&] { text = read_to_end(pipe.reader.get()); });
  run_until([this] { return console_->has_room(); });
  EXPECT_FALSE(console_->is_full());
  run_until_empty();
  console_.reset();
  pipe.writer.reset();
  reader.join();
  EXPECT_EQ(text.size(), (count + 1) * line.size());
}

TEST_F(ConsoleTest, DoesNotWaitForAReaderThatIsAsleep) {
  PipeEnds pipe;
  open(pipe.writer.get());
  const std::string line = std::string(99, 'x') + "\n";
  for (int index = 0; index < 5000; ++index) add(line);
  run_until([] { return true; });
  EXPECT_FALSE(console_->is_empty());
  EXPECT_GT(console_->written_bytes(), 0U);
}

TEST_F(ConsoleTest, KeepsItsLinesWholeBesideAnotherWriter) {
  PipeEnds pipe;
  open(pipe.writer.get());
  constexpr int kCount = 20000;
  const std::string own = "own " + std::string(95, 'x');
  std::thread other([&] {
    for (int index = 0; index < kCount; ++index) write_text(pipe.writer.get(), "other\n");
  });
  std::string text;
  std::thread reader([&] { text = read_to_end(pipe.reader.get()); });
  for (int index = 0; index < kCount; ++index) add(own + "\n");
  run_until_empty();
  other.join();
  console_.reset();
  pipe.writer.reset();
  reader.join();
  int own_count = 0;
  int other_count = 0;
  for (const std::string& line : lines_of(text)) {
    own_count += line == own ? 1 : 0;
    other_count += line == "other" ? 1 : 0;
  }
  EXPECT_EQ(own_count, kCount);
  EXPECT_EQ(other_count, kCount);
}

TEST_F(ConsoleTest, WritesLinesThatAreLongerThanAPipe) {
  PipeEnds pipe;
  open(pipe.writer.get());
  const std::string line = std::string(3'000'000, 'x') + "\n";
  std::string text;
  std::thread reader([&] { text = read_to_end(pipe.reader.get()); });
  add(line);
  run_until_empty();
  console_.reset();
  pipe.writer.reset();
  reader.join();
  EXPECT_TRUE(text == line);
}

TEST_F(ConsoleTest, WritesToASocket) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Fd near(ends[0]);
  Fd far(ends[1]);
  std::string line = std::string(99, 'x') + "\n";
  std::string all;
  for (int index = 0; index < 20000; ++index) all += line;
  open(near.get());
  std::string text;
  std::thread reader([&] {
    text.resize(all.size());
    EXPECT_EQ(::recv(far.get(), text.data(), text.size(), MSG_WAITALL),
              static_cast<ssize_t>(all.size()));
  });
  add(all);
  run_until_empty();
  reader.join();
  EXPECT_TRUE(text == all);
}

TEST_F(ConsoleTest, GivesUpOnceWhenItsReaderIsGone) {
  PipeEnds pipe;
  open(pipe.writer.get());
  pipe.reader.reset();
  add("one\n");
  run_until_empty();
  EXPECT_TRUE(console_->is_broken());
  EXPECT_FALSE(console_->is_full());
  EXPECT_EQ(told_, 1);
  add("two\n");
  EXPECT_TRUE(console_->is_empty());
}

TEST_F(ConsoleTest, GivesUpWhenItsReaderWasGoneFromTheBeginning) {
  PipeEnds pipe;
  pipe.reader.reset();
  open(pipe.writer.get());
  add("one\n");
  run_until_empty();
  EXPECT_TRUE(console_->is_broken());
  EXPECT_EQ(told_, 1);
}

TEST_F(ConsoleTest, IsSilentlyBrokenWhenItsDescriptorIsClosed) {
  open(-1);
  EXPECT_TRUE(console_->is_broken());
  EXPECT_EQ(told_, 0);
}

TEST_F(ConsoleTest, WritesToADeviceThatCannotBePolled) {
  const Fd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  open(null.get());
  add("one\n");
  run_until_empty();
  EXPECT_EQ(console_->written_bytes(), 4U);
}

}  // namespace
}  // namespace muster::logs
