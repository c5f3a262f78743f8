#include "muster/logs/log_file.h"

#include "muster/base/log.h"
#include "muster/logs/files_test.h"
#include "muster/logs/lines.h"

#include <gtest/gtest.h>

#include <csignal>
#include <sys/resource.h>

namespace muster::logs {
namespace {

std::unique_ptr<LogFile> open_file(const std::string& path, FileLimits limits = {}) {
  Result<std::unique_ptr<LogFile>> file = LogFile::open(path, limits);
  EXPECT_TRUE(file);
  return file ? std::move(*file) : nullptr;
}

TEST(LogFile, HoldsExactlyTheBytesItWasGiven) {
  const TemporaryFolder folder;
  const std::string path = folder.file("stdout.log");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const auto file = open_file(path);
  file->write(all);
  file->write("");
  file->write(all);
  EXPECT_EQ(text_of(path), all + all);
}

TEST(LogFile, SaysWhyItCannotBeOpened) {
  const TemporaryFolder folder;
  const auto file = LogFile::open(folder.file("missing/stdout.log"), {});
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().message.find("missing/stdout.log"), std::string::npos);
}

TEST(LogFile, RotatesBetweenLines) {
  const TemporaryFolder folder;
  const std::string path = folder.file("stdout.log");
  const auto file = open_file(path, {.rotate_bytes = 10, .keep = 2});
  file->write("1234\n5678\n");
  EXPECT_EQ(text_of(path), "1234\n5678\n");
  EXPECT_FALSE(exists(path + ".1"));
  file->write("a\n");
  EXPECT_EQ(text_of(path + ".1"), "1234\n5678\n");
  EXPECT_EQ(text_of(path), "a\n");
  file->write("bcdefgh\ni\n");
  EXPECT_EQ(text_of(path + ".1"), "a\nbcdefgh\n");
  EXPECT_EQ(text_of(path + ".2"), "1234\n5678\n");
  EXPECT_EQ(text_of(path), "i\n");
  file->write("jklmnopqr\n");
  EXPECT_EQ(text_of(path + ".2"), "a\nbcdefgh\n");
  EXPECT_FALSE(exists(path + ".3"));
}

TEST(LogFile, KeepsALineTogetherThatComesInPiecesOrIsLongerThanAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("stdout.log");
  const auto file = open_file(path, {.rotate_bytes = 10, .keep = 9});
  file->write("one\ntwo");
  file->write("-still-two\nthree\n");
  EXPECT_EQ(text_of(path + ".1"), "one\ntwo-still-two\n");
  EXPECT_EQ(text_of(path), "three\n");
  file->write("a line longer than a file\nx\n");
  EXPECT_EQ(text_of(path + ".1"), "a line longer than a file\n");
  EXPECT_EQ(text_of(path), "x\n");
}

TEST(LogFile, CutsALineThatNeverEnds) {
  const TemporaryFolder folder;
  const std::string path = folder.file("stdout.log");
  const auto file = open_file(path, {.rotate_bytes = 1000, .keep = 9});
  const std::string endless(3 * kLineBytesMax, 'x');
  file->write(endless);
  EXPECT_EQ(text_of(path + ".2") + text_of(path + ".1") + text_of(path), endless);
  EXPECT_EQ(text_of(path + ".2").size(), kLineBytesMax + 1000);
}

TEST(LogFile, KeepsNoOldFileIfNoneIsWanted) {
  const TemporaryFolder folder;
  const std::string path = folder.file("stdout.log");
  const auto file = open_file(path, {.rotate_bytes = 4, .keep = 0});
  file->write("1\n2\n3\n");
  EXPECT_EQ(text_of(path), "3\n");
  EXPECT_FALSE(exists(path + ".1"));
}

TEST(LogFile, StoresNoMoreThanItsLimitAndSaysSoOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.file("stdout.log");
  const auto file = open_file(path, {.max_bytes = 10});
  file->write("1234\n");
  file->write("5678\n");
  EXPECT_EQ(text_of(path), "1234\n5678\n");
  file->write("9\n");
  file->write("10\n");
  const std::vector<std::string> lines = lines_of(text_of(path));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1], "5678");
  EXPECT_EQ(lines[2],
            "[muster] the limit of 10 bytes is reached: the rest of this stream is not stored");
}

TEST(LogFile, PutsTheRemarkAboutTheLimitOnALineOfItsOwn) {
  const TemporaryFolder folder;
  const std::string path = folder.file("stdout.log");
  const auto file = open_file(path, {.max_bytes = 10});
  file->write("12345678");
  file->write("9abcdef\n");
  EXPECT_TRUE(text_of(path).starts_with("123456789a\n[muster] the limit"));
}

// The largest file that this process may write, as a disk that is full; put back in the end.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(LogFile, SaysHowMuchIsMissingWhenTheDiskWasFull) {
  int told = 0;
  log::set_sink([&](log::Level, std::string_view, std::string_view) { ++told; });
  const TemporaryFolder folder;
  const std::string path = folder.file("stdout.log");
  const auto file = open_file(path);
  {
    const FileSizeLimit full(8);
    file->write("first\nsecond\n");
    file->write("third\n");
  }
  file->write("fourth\n");
  log::set_sink({});
  EXPECT_EQ(text_of(path), "first\nse\n[muster] 11 bytes are missing here\nfourth\n");
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace muster::logs
