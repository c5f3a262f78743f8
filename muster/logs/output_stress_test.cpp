// Output under load: many lines from many ranks, slow and missing readers, odd bytes. Each test
// looks at every byte that came out.
#include "muster/base/random.h"
#include "muster/logs/output.h"
#include "muster/logs/output_test.h"
#include "muster/logs/record.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

namespace muster::logs {
namespace {

using namespace std::chrono_literals;

// Writes in pieces of random sizes, as a program that flushes now and then.
void write_in_pieces(int fd, std::string_view text, std::uint64_t seed) {
  Random random(seed);
  while (!text.empty()) {
    const std::size_t count =
        std::min<std::size_t>(text.size(), 1 + random.below(std::uint64_t{1} << random.below(17)));
    write_text(fd, text.substr(0, count));
    text.remove_prefix(count);
  }
}

// What each rank has written according to the console, with pieces of lines joined again and a
// newline after the last line.
std::map<int, std::string> by_rank(const std::string& console) {
  std::map<int, std::string> ranks;
  for (std::string line : lines_of(console)) {
    constexpr std::string_view kBegin = "[default";
    const std::size_t end = line.find("]:");
    EXPECT_TRUE(line.starts_with(kBegin) && end != std::string::npos) << "a torn line";
    if (end == std::string::npos) break;
    std::string& text = ranks[std::stoi(line.substr(kBegin.size(), end - kBegin.size()))];
    line.erase(0, end + 2);
    if (line.starts_with(kResumedMarker)) line.erase(0, kResumedMarker.size());
    const bool unfinished = line.ends_with(kUnfinishedMarker);
    if (unfinished) line.erase(line.size() - kUnfinishedMarker.size());
    text += line;
    if (!unfinished) text += '\n';
  }
  return ranks;
}

std::string numbered_lines(int rank, int count) {
  std::string text;
  for (int index = 0; index < count; ++index) {
    text += fmt::format("rank {} line {} {}\n", rank, index,
                        std::string(static_cast<std::size_t>(index % 80), '.'));
  }
  return text;
}

// Lines of any bytes, some of them empty, two of them longer than what one line may have.
std::string odd_lines(std::uint64_t seed) {
  Random random(seed);
  std::string block;
  while (block.size() < 10007) {
    const auto byte = static_cast<char>(random.below(256));
    block += byte == '\n' ? ' ' : byte;
  }
  std::string text;
  for (std::size_t line = 0; line < 300; ++line) {
    const std::size_t begin = random.below(block.size());
    text.append(block, begin, line % 10 == 0 ? 0 : random.below(line * 10));
    if (line % 150 == 75) {
      for (std::size_t length = 0; length < line * 20000; length += block.size()) text += block;
    }
    text += '\n';
  }
  return text + "the end";
}

class OutputStressTest : public OutputTest {
 protected:
  // Lets one thread for each text write it as a worker with that local rank, drains, and compares
  // files and console with what was written.
  void pump(const std::vector<std::string>& texts) {
    std::vector<std::thread> writers;
    for (std::size_t index = 0; index < texts.size(); ++index) {
      WorkerFds fds = open_worker(static_cast<int>(index), Target::Tee);
      writers.emplace_back([out = std::move(fds.out), &text = texts[index], index] {
        write_in_pieces(out.get(), text, index);
      });
    }
    drain_fully();
    for (std::thread& writer : writers) writer.join();
    for (std::size_t index = 0; index < texts.size(); ++index) {
      EXPECT_TRUE(text_of(attempt_.worker(static_cast<int>(index)).out) == texts[index])
          << "the file of rank " << index;
    }
  }
  static void expect_on_console(const std::string& console, const std::vector<std::string>& texts) {
    const std::map<int, std::string> seen = by_rank(console);
    ASSERT_EQ(seen.size(), texts.size());
    for (const auto& [rank, text] : seen) {
      std::string expected = texts.at(static_cast<std::size_t>(rank));
      if (!expected.ends_with('\n')) expected += '\n';
      EXPECT_TRUE(text == expected) << "the console's lines of rank " << rank;
    }
  }
};

TEST_F(OutputStressTest, KeepsEveryByteOfManyRanksInOrder) {
  start();
  std::vector<std::string> texts;
  for (int rank = 0; rank < 12; ++rank) texts.push_back(numbered_lines(rank, 10000));
  pump(texts);
  expect_on_console(console_out(), texts);
}

TEST_F(OutputStressTest, KeepsOddBytesAndVeryLongLines) {
  // Nothing but the length may split a line here, however slow the machine is.
  options_.lines.hold = 1h;
  start();
  std::vector<std::string> texts;
  for (std::uint64_t rank = 0; rank < 3; ++rank) texts.push_back(odd_lines(rank));
  pump(texts);
  expect_on_console(console_out(), texts);
  EXPECT_GT(output_->counts().unfinished, 0U);
}

TEST_F(OutputStressTest, SplitsLinesByTimeWithoutLosingAnything) {
  options_.lines.hold = 1us;
  start();
  std::vector<std::string> texts;
  for (int rank = 0; rank < 4; ++rank) texts.push_back(numbered_lines(rank, 2000));
  pump(texts);
  expect_on_console(console_out(), texts);
}

TEST_F(OutputStressTest, MakesWorkersWaitForASlowConsoleAndDropsNothing) {
  PipeEnds console;
  options_.out = console.writer.get();
  start();
  std::vector<std::string> texts;
  for (int rank = 0; rank < 4; ++rank) texts.push_back(numbered_lines(rank, 40000));
  std::string seen;
  std::thread reader([&] {
    // Small reads: the console is the slowest part by far.
    char buffer[512];
    ssize_t count = 0;
    while ((count = ::read(console.reader.get(), buffer, sizeof buffer)) > 0) {
      seen.append(buffer, static_cast<std::size_t>(count));
    }
  });
  pump(texts);
  const std::uint64_t pauses = output_->counts().pauses;
  output_.reset();
  console.writer.reset();
  reader.join();
  EXPECT_GT(pauses, 0U);
  expect_on_console(seen, texts);
}

TEST_F(OutputStressTest, ReadsNoFurtherThanTheConsoleAllows) {
  PipeEnds console;  // which nobody reads
  options_.out = console.writer.get();
  options_.lines.hold = 1ms;
  start();
  const WorkerFds fds = open_worker(0, Target::Tee);
  ASSERT_EQ(::fcntl(fds.out.get(), F_SETFL, O_NONBLOCK), 0);
  const std::string lines = numbered_lines(0, 100);
  std::uint64_t written = 0;
  for (bool moved = true; moved; run_turns()) {
    moved = false;
    ssize_t count = 0;
    while ((count = ::write(fds.out.get(), lines.data(), lines.size())) > 0) {
      written += static_cast<std::uint64_t>(count);
      moved = true;
    }
    ASSERT_LT(written, 4 * kConsoleBytesFull);
  }
  EXPECT_EQ(output_->counts().pauses, 1U);
  EXPECT_LT(output_->counts().bytes, written);
  // A line whose rest we do not read is not unfinished, however long that takes.
  const std::uint64_t unfinished = output_->counts().unfinished;
  loop_.block_on(let_pass(loop_, 2ms));
  EXPECT_EQ(output_->counts().unfinished, unfinished);
  // At the deadline the pipe is emptied and given up; what the console did not take stays queued.
  const Result<> drained = drain(1ms);
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().kind, ErrorKind::Timeout);
  EXPECT_EQ(output_->counts().bytes, written);
  EXPECT_EQ(text_of(attempt_.worker(0).out).size(), written);
  output_.reset();
}

TEST_F(OutputStressTest, StoresEverythingWhenTheConsoleIsGone) {
  PipeEnds console;
  options_.out = console.writer.get();
  start();
  console.reader.reset();
  pump({numbered_lines(0, 20000), numbered_lines(1, 20000)});
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_NE(told_[0].find("standard output"), std::string::npos);
}

TEST_F(OutputStressTest, WritesParsableObjectsUnderLoad) {
  options_.format = Format::Json;
  start();
  pump({numbered_lines(0, 5000), numbered_lines(1, 5000)});
  const std::vector<std::string> lines = lines_of(console_out());
  ASSERT_EQ(lines.size(), 10000U);
  for (const std::string& line : lines) {
    ASSERT_TRUE(line.starts_with("{\"time\":\"") && line.ends_with("\"}")) << line;
  }
}

}  // namespace
}  // namespace muster::logs
