#include "muster/failures/error_file.h"

#include "muster/failures/temporary_folder_test.h"
#include "muster/failures/text.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace muster::failures {
namespace {

constexpr std::string_view kStructured =
    R"({"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "Traceback:\n  x",)"
    R"( "timestamp": "1700000000"}}})";

TEST(ErrorFile, UnderstandsTheStructuredShape) {
  const ErrorDetails details = parse_error_file(kStructured);
  EXPECT_EQ(details.shape, ErrorFileShape::Structured);
  EXPECT_TRUE(details.complete);
  EXPECT_EQ(details.message, "ValueError: bad");
  EXPECT_EQ(details.traceback, "Traceback:\n  x");
  EXPECT_EQ(details.timestamp_nanoseconds, 1'700'000'000'000'000'000);
  EXPECT_EQ(details.problem, "");
}

TEST(ErrorFile, UnderstandsTheSimpleShape) {
  const ErrorDetails details =
      parse_error_file(R"({"message": "bad", "timestamp": 1700000000.25})");
  EXPECT_EQ(details.shape, ErrorFileShape::Simple);
  EXPECT_TRUE(details.complete);
  EXPECT_EQ(details.message, "bad");
  EXPECT_EQ(details.traceback, "");
  EXPECT_EQ(details.timestamp_nanoseconds, 1'700'000'000'250'000'000);
}

TEST(ErrorFile, TakesATimestampAsNumberOrText) {
  const auto timestamp = [](const std::string& text) {
    return parse_error_file(R"({"message": "m", "timestamp": )" + text + "}").timestamp_nanoseconds;
  };
  EXPECT_EQ(timestamp("12"), 12'000'000'000);
  EXPECT_EQ(timestamp("\"12\""), 12'000'000'000);
  EXPECT_EQ(timestamp("0.000000001"), 1);
  EXPECT_EQ(timestamp("0.0000000009"), 0);
  for (const char* wrong : {"-5", "1e9", "null", "\"soon\"", "99999999999999", "[1]", "\"1.x\""})
    EXPECT_EQ(timestamp(wrong), 0) << wrong;
  EXPECT_EQ(parse_error_file(R"({"message": "m"})").timestamp_nanoseconds, 0);
}

TEST(ErrorFile, AcceptsAnEmptyMessage) {
  EXPECT_EQ(parse_error_file(R"({"message": ""})").shape, ErrorFileShape::Simple);
  EXPECT_EQ(parse_error_file(R"({"message": {}})").shape, ErrorFileShape::Structured);
  EXPECT_EQ(parse_error_file(R"({"message": 7})").message, "7");
}

TEST(ErrorFile, KeepsWhatATruncatedFileSays) {
  const ErrorDetails details = parse_error_file(kStructured.substr(0, 81));
  EXPECT_EQ(details.shape, ErrorFileShape::Structured);
  EXPECT_FALSE(details.complete);
  EXPECT_EQ(details.message, "ValueError: bad");
  EXPECT_EQ(details.traceback, "Traceba");
  EXPECT_EQ(details.problem, "ends too early at byte 81");
}

TEST(ErrorFile, NeverFailsHoweverItIsTruncated) {
  for (std::size_t bytes = 0; bytes < kStructured.size(); ++bytes) {
    const ErrorDetails details = parse_error_file(kStructured.substr(0, bytes));
    EXPECT_FALSE(details.complete) << bytes;
    EXPECT_NE(details.problem, "") << bytes;
    EXPECT_NE(details.shape, ErrorFileShape::Missing) << bytes;
  }
}

TEST(ErrorFile, KeepsTheRawTextOfWhatMakesNoSense) {
  const ErrorDetails plain = parse_error_file("it broke\n");
  EXPECT_EQ(plain.shape, ErrorFileShape::Unreadable);
  EXPECT_FALSE(plain.complete);
  EXPECT_EQ(plain.raw, "it broke\n");
  EXPECT_EQ(plain.problem, "is not a JSON object");

  const ErrorDetails no_message = parse_error_file(R"({"error": "x"})");
  EXPECT_EQ(no_message.shape, ErrorFileShape::Unreadable);
  EXPECT_EQ(no_message.problem, "has no message");
  EXPECT_EQ(no_message.raw, R"({"error": "x"})");

  const ErrorDetails empty = parse_error_file("");
  EXPECT_EQ(empty.shape, ErrorFileShape::Unreadable);
  EXPECT_EQ(empty.problem, "is empty");
}

TEST(ErrorFile, MakesBinaryGarbagePrintableAndShort) {
  std::string garbage(100'000, '\0');
  for (std::size_t index = 0; index < garbage.size(); ++index)
    garbage[index] = static_cast<char>(index * 7919 >> 3);
  const ErrorDetails details = parse_error_file(garbage);
  EXPECT_EQ(details.shape, ErrorFileShape::Unreadable);
  EXPECT_LE(details.raw.size(), kErrorRawBytesMax * 4);
  EXPECT_EQ(details.raw, printable(details.raw));
}

TEST(ErrorFile, BoundsMessageAndTraceback) {
  const std::string text(kErrorTextBytesMax, 'a');
  EXPECT_EQ(parse_error_file(R"({"message": ")" + text + R"("})").message, text);
  const std::string longer = text + "the end";
  const ErrorDetails details = parse_error_file(R"({"message": ")" + longer + R"("})");
  EXPECT_TRUE(details.complete);
  EXPECT_TRUE(details.message.ends_with("the end"));
  EXPECT_NE(details.message.find("[... 7 bytes left out ...]"), std::string::npos);
}

TEST(ErrorFile, IsMissingWhereThereIsNone) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_error_file(folder / "none").shape, ErrorFileShape::Missing);
  EXPECT_EQ(read_error_file(folder / "none/deeper").shape, ErrorFileShape::Missing);
  EXPECT_EQ(read_error_file("").shape, ErrorFileShape::Missing);
}

TEST(ErrorFile, IsReadWithTheTimeOfItsLastChange) {
  const TemporaryFolder folder;
  folder.write("error.json", kStructured);
  const timespec times[] = {{0, 0}, {1'700'000'000, 123'456'789}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder / "error.json").c_str(), times, 0), 0);
  const ErrorDetails details = read_error_file(folder / "error.json");
  EXPECT_EQ(details.message, "ValueError: bad");
  EXPECT_EQ(details.modified_nanoseconds, 1'700'000'000'123'456'789);
}

TEST(ErrorFile, IsNotReadWhereSomethingElseIs) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_error_file(folder.path()).problem, "is a folder");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_error_file(folder / "pipe").problem, "is a pipe");
  EXPECT_EQ(read_error_file("/dev/zero").problem, "is a device");
  ASSERT_EQ(::symlink("circle", (folder / "circle").c_str()), 0);
  const ErrorDetails circle = read_error_file(folder / "circle");
  EXPECT_EQ(circle.shape, ErrorFileShape::Unreadable);
  EXPECT_TRUE(circle.problem.starts_with("cannot be read: ")) << circle.problem;
}

TEST(ErrorFile, IsUnreadableWithoutPermission) {
  const TemporaryFolder folder;
  folder.write("error.json", kStructured);
  ASSERT_EQ(::chmod((folder / "error.json").c_str(), 0), 0);
  // Nothing is forbidden to the superuser, so be somebody else for a moment.
  constexpr uid_t kNobody = 65534;
  const bool is_superuser = ::geteuid() == 0;
  if (is_superuser) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  const ErrorDetails details = read_error_file(folder / "error.json");
  if (is_superuser) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_EQ(details.shape, ErrorFileShape::Unreadable);
  EXPECT_EQ(details.problem, "cannot be read: permission denied");
}

TEST(ErrorFile, OfTenMegabytesIsUnderstoodAndKeptShort) {
  const TemporaryFolder folder;
  const std::string traceback(10'000'000, 't');
  folder.write("error.json", R"({"message": {"message": "Big", "extraInfo": {"py_callstack": ")" +
                                 traceback + R"("}}})");
  const ErrorDetails details = read_error_file(folder / "error.json");
  EXPECT_EQ(details.shape, ErrorFileShape::Structured);
  EXPECT_TRUE(details.complete);
  EXPECT_EQ(details.message, "Big");
  EXPECT_LT(details.traceback.size(), kErrorTextBytesMax + 100);
}

TEST(ErrorFile, BeyondTheLimitCountsAsTruncated) {
  const TemporaryFolder folder;
  const std::string start = R"({"message": "m", "x": ")";
  const std::string end = R"("})";
  const std::string fits(kErrorFileBytesMax - start.size() - end.size(), 'x');
  folder.write("fits", start + fits + end);
  EXPECT_TRUE(read_error_file(folder / "fits").complete);
  folder.write("longer", start + fits + "x" + end);
  const ErrorDetails details = read_error_file(folder / "longer");
  EXPECT_FALSE(details.complete);
  EXPECT_EQ(details.message, "m");
  EXPECT_EQ(details.problem, "is longer than 16777216 bytes");
}

TEST(ErrorFile, IsReadBackAsItWasWritten) {
  const TemporaryFolder folder;
  ErrorRecord record;
  record.message = "Type: \"quoted\" \\ \n \u00e4 \xff";
  record.traceback = "a\nb\t\x01";
  record.timestamp_seconds = 1'700'000'000;
  ASSERT_TRUE(write_error_file(folder / "error.json", record));
  const ErrorDetails details = read_error_file(folder / "error.json");
  EXPECT_EQ(details.shape, ErrorFileShape::Structured);
  EXPECT_EQ(details.message, "Type: \"quoted\" \\ \n \u00e4 \uFFFD");
  EXPECT_EQ(details.traceback, record.traceback);
  EXPECT_EQ(details.timestamp_nanoseconds, 1'700'000'000'000'000'000);
}

TEST(ErrorFile, IsReplacedInOneStepAndLeavesNothingBehind) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_whole_file(folder / "error.json", "one"));
  ASSERT_TRUE(write_whole_file(folder / "error.json", "two"));
  EXPECT_EQ(folder.read("error.json"), "two");
  EXPECT_EQ(folder.file_count(), 1U);

  ASSERT_EQ(::mkdir((folder / "busy").c_str(), 0700), 0);
  const auto refused = write_whole_file(folder / "busy", "three");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Unavailable);
  EXPECT_EQ(folder.file_count(), 2U);
  EXPECT_FALSE(write_whole_file(folder / "none/error.json", "four"));
}

TEST(ErrorFile, IsWrittenInTheShapeThatTorchrunReads) {
  ErrorRecord record;
  record.message = "E: x";
  record.traceback = "t";
  record.timestamp_seconds = 5;
  EXPECT_EQ(to_json(record),
            R"({"message":{"message":"E: x","extraInfo":{"py_callstack":"t","timestamp":"5"}}})");
  record.exit_code = -9;
  record.traceback.clear();
  EXPECT_EQ(to_json(record),
            R"({"message":{"message":"E: x","extraInfo":{"timestamp":"5"},"errorCode":-9}})");
}

}  // namespace
}  // namespace muster::failures
