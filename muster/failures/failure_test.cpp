#include "muster/failures/failure.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

namespace muster::failures {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

Failure ended(int exit_code) {
  Failure failure;
  failure.global_rank = 5;
  failure.local_rank = 1;
  failure.node_rank = 2;
  failure.role = "trainer";
  failure.host = "node7.example";
  failure.pid = 4712;
  failure.exit_code = exit_code;
  failure.exited_nanoseconds = 1'700'000'000 * kSecond;
  failure.order = 3;
  return failure;
}

ErrorDetails file(std::string message, std::int64_t modified) {
  ErrorDetails details;
  details.shape = ErrorFileShape::Structured;
  details.message = std::move(message);
  details.traceback = "Traceback";
  details.modified_nanoseconds = modified;
  return details;
}

TEST(Failure, NamesTheSignalThatEndedASilentWorker) {
  EXPECT_EQ(message_of(ended(-SIGTERM)), "Signal 15 (SIGTERM) received by PID 4712");
  EXPECT_EQ(message_of(ended(-SIGKILL)), "Signal 9 (SIGKILL) received by PID 4712");
  EXPECT_EQ(message_of(ended(-SIGSEGV)), "Signal 11 (SIGSEGV) received by PID 4712");
  EXPECT_EQ(message_of(ended(-SIGABRT)), "Signal 6 (SIGABRT) received by PID 4712");
  EXPECT_EQ(message_of(ended(-199)), "Signal 199 (<N/A>) received by PID 4712");
}

TEST(Failure, PointsASilentWorkerToTheRecorder) {
  EXPECT_NE(message_of(ended(3)).find("recorder"), std::string::npos);
  EXPECT_NE(message_of(ended(3)).find("TORCHELASTIC_ERROR_FILE"), std::string::npos);
}

TEST(Failure, DescribesHowTheWorkerEnded) {
  EXPECT_EQ(describe_exit(ended(255)), "exit status 255");
  EXPECT_EQ(describe_exit(ended(-SIGSEGV)), "signal 11 (SIGSEGV)");
  Failure killed = ended(-SIGKILL);
  killed.out_of_memory = true;
  EXPECT_EQ(describe_exit(killed), "signal 9 (SIGKILL), out of memory");
}

TEST(Failure, IsSummedUpInOneLine) {
  Failure failure = ended(3);
  EXPECT_EQ(summary(failure), "rank 5 (local rank 1, pid 4712) on node7.example: exit status 3");
  failure.message = "\nValueError: bad\x1b shape\nand more";
  failure.note = "no sign of life for 30s";
  EXPECT_EQ(summary(failure),
            "rank 5 (local rank 1, pid 4712) on node7.example: exit status 3: no sign of life for "
            "30s: ValueError: bad\\x1b shape");
  failure.message = std::string(10'000, 'x');
  EXPECT_LT(summary(failure).size(), 500U);
}

TEST(Failure, TakesMessageTracebackAndTimeFromTheErrorFile) {
  Failure failure = ended(1);
  const std::int64_t modified = failure.exited_nanoseconds - 5'000'000;
  add_details(failure, "/logs/error.json", file("ValueError: bad", modified), 0);
  EXPECT_EQ(failure.error_file, "/logs/error.json");
  EXPECT_EQ(message_of(failure), "ValueError: bad");
  EXPECT_EQ(failure.traceback, "Traceback");
  EXPECT_EQ(failed_nanoseconds(failure), modified);
}

TEST(Failure, ShowsAStructuredMessageWhereThereIsNoTraceback) {
  ErrorDetails details = file("two\nlines", 0);
  details.traceback.clear();
  Failure failure = ended(1);
  add_details(failure, "f", details, 0);
  EXPECT_EQ(failure.traceback, "two\nlines");
  details.shape = ErrorFileShape::Simple;
  add_details(failure, "f", details, 0);
  EXPECT_EQ(failure.traceback, "");
}

TEST(Failure, KeepsItsOwnTimeWithoutAFile) {
  Failure failure = ended(1);
  add_details(failure, "/logs/error.json", ErrorDetails(), 0);
  EXPECT_EQ(failure, ended(1));
  EXPECT_EQ(failed_nanoseconds(failure), failure.exited_nanoseconds);
}

TEST(Failure, IgnoresTheTimeOfAFileThatChangedAfterTheEnd) {
  Failure failure = ended(1);
  add_details(failure, "f", file("m", failure.exited_nanoseconds + 1), 0);
  EXPECT_EQ(failure.message, "m");
  EXPECT_EQ(failed_nanoseconds(failure), failure.exited_nanoseconds);
}

TEST(Failure, IgnoresAFileThatIsOlderThanTheWorker) {
  Failure failure = ended(1);
  const std::int64_t started = failure.exited_nanoseconds - 100 * kSecond;
  add_details(failure, "f", file("old", started - kSecond), started);
  EXPECT_EQ(failure, ended(1));
  // File systems tick more slowly than clocks do.
  add_details(failure, "f", file("new", started - 4'000'000), started);
  EXPECT_EQ(failure.message, "new");
}

TEST(Failure, SurvivesAFileThatMakesNoSense) {
  ErrorDetails details;
  details.shape = ErrorFileShape::Unreadable;
  details.complete = false;
  details.problem = "is not a JSON object";
  details.raw = "it broke";
  Failure failure = ended(-SIGKILL);
  add_details(failure, "f", details, 0);
  EXPECT_EQ(failure.error_file, "f");
  EXPECT_EQ(message_of(failure), "Signal 9 (SIGKILL) received by PID 4712");
  EXPECT_EQ(failure.traceback,
            "Signal 9 (SIGKILL) received by PID 4712\nThe error file is not a JSON object. It "
            "begins:\nit broke");
}

TEST(Failure, SaysThatATruncatedFileIsTruncated) {
  ErrorDetails details = file("ValueError: bad", 0);
  details.complete = false;
  details.problem = "ends too early at byte 40";
  Failure failure = ended(1);
  add_details(failure, "f", details, 0);
  EXPECT_EQ(failure.message, "ValueError: bad");
  EXPECT_EQ(failure.traceback, "Traceback\n[the error file ends too early at byte 40]");
}

TEST(Failure, IsShownToEventsAsErrorFileData) {
  Failure failure = ended(1);
  EXPECT_EQ(raw_error(failure), R"({"message":"<NONE>"})");
  failure.message = "E: x";
  EXPECT_EQ(raw_error(failure),
            R"({"message":{"message":"E: x","extraInfo":{"timestamp":"1700000000"}}})");
}

TEST(Failure, TravelsAsJson) {
  Failure failure = ended(-SIGSEGV);
  failure.recorded_nanoseconds = failure.exited_nanoseconds - 7;
  failure.order = UINT64_MAX;
  failure.out_of_memory = true;
  failure.collateral = true;
  failure.error_file = "/logs/error.json";
  failure.message = "E: \"x\"\n\u00e4";
  failure.traceback = "t";
  failure.note = "n";
  failure.last_lines = {"one", "", "three\t"};
  const auto back = failure_from_json(to_json(failure));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(*back, failure);

  const std::vector<Failure> list = {failure, ended(1), Failure()};
  const auto list_back = failures_from_json(to_json(list));
  ASSERT_TRUE(list_back) << list_back.error().message;
  EXPECT_EQ(*list_back, list);
  EXPECT_TRUE(failures_from_json("[]")->empty());
}

TEST(Failure, TravelsEvenIfItsTextIsNotUtf8OrVeryLong) {
  Failure failure = ended(1);
  failure.last_lines = {"\xff\xfe line"};
  failure.traceback = std::string(1'000'000, '\xe4');
  const std::string text = to_json(failure);
  EXPECT_LT(text.size(), kErrorTextBytesMax * 4);
  const auto back = failure_from_json(text);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->last_lines, std::vector<std::string>{"\uFFFD\uFFFD line"});
}

TEST(Failure, UnderstandsOlderAndNewerAgents) {
  const auto failure = failure_from_json(R"({"global_rank": 4, "colour": "red"})");
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->global_rank, 4);
  EXPECT_EQ(failure->local_rank, -1);
}

TEST(Failure, RefusesWhatIsNoFailure) {
  for (const char* text :
       {"", "{", "[]", "7", R"({"pid": "x"})", R"({"pid": 1.5})", R"({"pid": 99999999999})",
        R"({"host": 1})", R"({"collateral": 0})", R"({"last_lines": "x"})",
        R"({"last_lines": [1]})", R"({"order": -1})"}) {
    const auto failure = failure_from_json(text);
    ASSERT_FALSE(failure) << text;
    EXPECT_EQ(failure.error().kind, ErrorKind::Corrupt) << text;
  }
  for (const char* text : {"", "{}", "[1]", R"([{"pid": true}])"})
    EXPECT_FALSE(failures_from_json(text)) << text;
}

TEST(Failure, BoundsTheLengthOfAList) {
  std::vector<Failure> failures(kFailuresMax + 1);
  for (std::size_t index = 0; index < failures.size(); ++index) {
    failures[index].global_rank = static_cast<int>(index);
    failures[index].collateral = index != kFailuresMax;
  }
  const auto kept = failures_from_json(to_json(failures));
  ASSERT_TRUE(kept) << kept.error().message;
  ASSERT_EQ(kept->size(), kFailuresMax);
  EXPECT_EQ(kept->front().global_rank, static_cast<int>(kFailuresMax));  // the real one stays

  std::string longer = "[";
  for (std::size_t index = 0; index < kFailuresMax; ++index) longer += "{},";
  EXPECT_TRUE(failures_from_json(longer.substr(0, longer.size() - 1) + "]"));
  EXPECT_FALSE(failures_from_json(longer + "{}]"));
}

}  // namespace
}  // namespace muster::failures
