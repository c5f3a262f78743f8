#include "muster/logs/layout.h"

#include "muster/logs/files_test.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sys/stat.h>

namespace muster::logs {
namespace {

std::size_t entry_count(const std::string& path) {
  const std::filesystem::directory_iterator entries(path);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

mode_t mode_of(const std::string& path) {
  struct stat facts {};
  EXPECT_EQ(::stat(path.c_str(), &facts), 0);
  return facts.st_mode & 0777U;
}

TEST(LogFolder, CreatesNothingBeforeTheFirstRound) {
  const TemporaryFolder base;
  LogFolder folder({.log_dir = base.file("a/b"), .run_id = "job"}, Random(1));
  EXPECT_TRUE(folder.path().starts_with(base.file("a/b/job_")));
  EXPECT_EQ(folder.path().size(), base.file("a/b/job_").size() + 8);
  EXPECT_TRUE(folder.check());
  EXPECT_EQ(entry_count(base.path()), 0U);
  folder.remove_if_empty();
}

TEST(LogFolder, CreatesTheLayoutThatTorchrunHas) {
  const TemporaryFolder base;
  LogFolder folder({.log_dir = base.file("a/b"), .run_id = "job"}, Random(1));
  const Result<AttemptFolder> attempt = folder.start_attempt(0, 1, 12);
  ASSERT_TRUE(attempt) << attempt.error().message;
  EXPECT_EQ(attempt->path, folder.path() + "/attempt_0");
  EXPECT_EQ(attempt->filtered_out(), attempt->path + "/filtered_stdout.log");
  EXPECT_EQ(attempt->filtered_err(), attempt->path + "/filtered_stderr.log");
  const WorkerPaths paths = attempt->worker(11);
  EXPECT_EQ(paths.folder, attempt->path + "/11");
  EXPECT_EQ(paths.out, paths.folder + "/stdout.log");
  EXPECT_EQ(paths.err, paths.folder + "/stderr.log");
  EXPECT_EQ(paths.error_file, paths.folder + "/error.json");
  EXPECT_EQ(entry_count(attempt->path), 12U);
  EXPECT_EQ(entry_count(paths.folder), 0U);
  EXPECT_EQ(mode_of(folder.path()), 0700U);
}

TEST(LogFolder, NeverReusesTheFolderOfAnEarlierRound) {
  const TemporaryFolder base;
  LogFolder folder({.log_dir = base.path(), .run_id = "job"}, Random(1));
  const AttemptFolder first = *folder.start_attempt(0, 1, 1);
  std::ofstream(first.worker(0).error_file) << "{}";
  const AttemptFolder second = *folder.start_attempt(0, 2, 1);
  EXPECT_EQ(second.path, folder.path() + "/attempt_0.round_2");
  const AttemptFolder third = *folder.start_attempt(1, 3, 1);
  EXPECT_EQ(third.path, folder.path() + "/attempt_1");
  // The round's number says nothing new, as with a store that begins again.
  const AttemptFolder fourth = *folder.start_attempt(0, 2, 1);
  EXPECT_EQ(fourth.path, folder.path() + "/attempt_0.round_2.1");
  EXPECT_EQ(text_of(first.worker(0).error_file), "{}");
  EXPECT_EQ(entry_count(folder.path()), 4U);
}

TEST(LogFolder, ChoosesAnotherNameWhenItsOwnIsTaken) {
  const TemporaryFolder base;
  LogFolder first({.log_dir = base.path(), .run_id = "job"}, Random(1));
  LogFolder second({.log_dir = base.path(), .run_id = "job"}, Random(1));
  EXPECT_EQ(first.path(), second.path());
  ASSERT_TRUE(first.start_attempt(0, 1, 1));
  ASSERT_TRUE(second.start_attempt(0, 1, 1));
  EXPECT_NE(first.path(), second.path());
}

TEST(LogFolder, LeavesNothingBehindInTheTemporaryFolderWhenNobodyWrote) {
  const TemporaryFolder base;
  LogFolder folder({.log_dir = "", .run_id = "none", .temporary = base.path()}, Random(1));
  const AttemptFolder attempt = *folder.start_attempt(0, 1, 4);
  EXPECT_TRUE(attempt.path.starts_with(base.file("torchelastic_")));
  EXPECT_TRUE(exists(attempt.worker(3).folder));
  folder.remove_if_empty();
  EXPECT_EQ(entry_count(base.path()), 0U);
}

TEST(LogFolder, KeepsWhatWasWrittenIntoTheTemporaryFolder) {
  const TemporaryFolder base;
  LogFolder folder({.log_dir = "", .run_id = "none", .temporary = base.path()}, Random(1));
  const AttemptFolder attempt = *folder.start_attempt(0, 1, 4);
  std::ofstream(attempt.worker(2).error_file) << "{}";
  folder.remove_if_empty();
  EXPECT_TRUE(exists(attempt.worker(2).error_file));
  EXPECT_FALSE(exists(attempt.worker(3).folder));
}

TEST(LogFolder, KeepsAFolderThatTheUserNamed) {
  const TemporaryFolder base;
  LogFolder folder({.log_dir = base.path(), .run_id = "job"}, Random(1));
  const AttemptFolder attempt = *folder.start_attempt(0, 1, 1);
  folder.remove_if_empty();
  EXPECT_TRUE(exists(attempt.worker(0).folder));
}

TEST(LogFolder, IsEmptyWithTheNullDevice) {
  LogFolder folder({.log_dir = kNullDevice, .run_id = "job"}, Random(1));
  EXPECT_TRUE(folder.is_null());
  EXPECT_TRUE(folder.check());
  EXPECT_EQ(folder.path(), "");
  const Result<AttemptFolder> attempt = folder.start_attempt(0, 1, 2);
  ASSERT_TRUE(attempt);
  EXPECT_EQ(attempt->path, "");
  EXPECT_EQ(attempt->worker(1).out, "");
  EXPECT_EQ(attempt->worker(1).error_file, "");
  EXPECT_EQ(attempt->filtered_out(), "");
  folder.remove_if_empty();
}

TEST(LogFolder, RefusesALogDirThatIsAFile) {
  const TemporaryFolder base;
  std::ofstream(base.file("plain")) << "text";
  LogFolder folder({.log_dir = base.file("plain"), .run_id = "job"}, Random(1));
  const Result<> checked = folder.check();
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().kind, ErrorKind::Invalid);
  EXPECT_NE(checked.error().message.find("not a directory"), std::string::npos);
  EXPECT_FALSE(folder.start_attempt(0, 1, 1));
  EXPECT_EQ(text_of(base.file("plain")), "text");
}

TEST(LogFolder, SaysWhyAFolderCannotBeCreated) {
  LogFolder folder({.log_dir = "/proc/muster/logs", .run_id = "job"}, Random(1));
  const Result<AttemptFolder> attempt = folder.start_attempt(0, 1, 1);
  ASSERT_FALSE(attempt);
  EXPECT_NE(attempt.error().message.find("/proc/muster/logs"), std::string::npos);
}

TEST(LogFolder, DoesNotLetARunIdLeaveTheLogDir) {
  const TemporaryFolder base;
  LogFolder folder({.log_dir = base.file("logs"), .run_id = "../up/" + std::string(500, 'x')},
                   Random(1));
  ASSERT_TRUE(folder.start_attempt(0, 1, 1));
  EXPECT_TRUE(folder.path().starts_with(base.file("logs/.._up_x")));
  EXPECT_EQ(entry_count(base.path()), 1U);
}

}  // namespace
}  // namespace muster::logs
