#include "muster/failures/upward.h"

#include "muster/failures/error_file.h"
#include "muster/failures/temporary_folder_test.h"

#include <gtest/gtest.h>

namespace muster::failures {
namespace {

using How = PassedUpward::How;

Failure root_with(const std::string& error_file) {
  Failure root;
  root.pid = 77;
  root.exit_code = 3;
  root.exited_nanoseconds = 9'000'000'000;
  root.error_file = error_file;
  root.message = "E: x";
  root.traceback = "trace";
  return root;
}

TEST(Upward, CopiesEverythingAndAddsTheExitCode) {
  const TemporaryFolder folder;
  folder.write("from", R"({"message":{"message":"E: x","extraInfo":{"a":"b"},"more":[1]},"z":2})");
  const auto passed = pass_upward(root_with(folder / "from"), folder / "to");
  ASSERT_TRUE(passed) << passed.error().message;
  EXPECT_EQ(*passed, (PassedUpward{How::Copied, false}));
  EXPECT_EQ(
      folder.read("to"),
      R"({"message":{"message":"E: x","extraInfo":{"a":"b"},"more":[1],"errorCode":3},"z":2})");
}

TEST(Upward, CopiesTheSimpleShapeUnchanged) {
  const TemporaryFolder folder;
  folder.write("from", R"({"message": "bad", "timestamp": 5, "extra": true})");
  ASSERT_TRUE(pass_upward(root_with(folder / "from"), folder / "to"));
  EXPECT_EQ(folder.read("to"), folder.read("from"));
}

TEST(Upward, SaysThatItReplacedAFile) {
  const TemporaryFolder folder;
  folder.write("from", R"({"message": "bad"})");
  folder.write("to", "old");
  const auto passed = pass_upward(root_with(folder / "from"), folder / "to");
  ASSERT_TRUE(passed);
  EXPECT_TRUE(passed->replaced);
  EXPECT_EQ(folder.read("to"), R"({"message": "bad"})");
}

TEST(Upward, WritesNothingWhenThereIsNothingToSayOrNobodyAsks) {
  const TemporaryFolder folder;
  EXPECT_EQ(*pass_upward(root_with(""), folder / "to"), PassedUpward());
  EXPECT_EQ(*pass_upward(root_with(folder / "from"), ""), PassedUpward());
  EXPECT_EQ(*pass_own_error_upward(Error{ErrorKind::Timeout, "x"}, ""), PassedUpward());
  EXPECT_EQ(folder.file_count(), 0U);
}

TEST(Upward, RebuildsWhatIsDamagedOrOnAnotherNode) {
  const TemporaryFolder folder;
  folder.write("truncated", R"({"message": {"message": "E)");
  folder.write("garbage", "\x01\x02");
  for (const char* from : {"truncated", "garbage", "on another node"}) {
    const auto passed = pass_upward(root_with(folder / from), folder / "to");
    ASSERT_TRUE(passed) << from;
    EXPECT_EQ(passed->how, How::Rebuilt) << from;
    EXPECT_EQ(folder.read("to"),
              R"({"message":{"message":"E: x","extraInfo":{"py_callstack":"trace",)"
              R"("timestamp":"9"},"errorCode":3}})");
  }
}

TEST(Upward, ReportsATargetThatCannotBeWritten) {
  const TemporaryFolder folder;
  folder.write("from", R"({"message": "bad"})");
  EXPECT_FALSE(pass_upward(root_with(folder / "from"), folder / "none/to"));
}

TEST(Upward, RecordsTheLaunchersOwnErrors) {
  const TemporaryFolder folder;
  ASSERT_TRUE(pass_own_error_upward(Error{ErrorKind::Timeout, "nobody came"}, folder / "to"));
  const ErrorDetails details = read_error_file(folder / "to");
  EXPECT_EQ(details.shape, ErrorFileShape::Structured);
  EXPECT_EQ(details.message, "timeout: nobody came");
  EXPECT_GT(details.timestamp_nanoseconds, 0);
}

}  // namespace
}  // namespace muster::failures
