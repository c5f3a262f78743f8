#include "muster/failures/report.h"

#include <gtest/gtest.h>

#include <csignal>
#include <stdlib.h>
#include <string>
#include <time.h>

namespace muster::failures {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// 2026-01-02 03:04:05 UTC.
constexpr std::int64_t kMoment = 1'767'323'045;

class Report : public ::testing::Test {
 protected:
  Report() {
    ::setenv("TZ", "UTC", 1);
    ::tzset();
    root_.global_rank = 4;
    root_.local_rank = 0;
    root_.host = "node7.example";
    root_.pid = 4711;
    root_.exit_code = 1;
    root_.exited_nanoseconds = kMoment * kSecond;
    root_.order = 1;
    root_.error_file = "/logs/job_ab12cd34/attempt_0/0/error.json";
    root_.message = "ValueError: bad";
    root_.traceback =
        "Traceback (most recent call last):\n"
        "  File \"train.py\", line 12, in a function with quite a long name\n"
        "ValueError: bad";

    other_.global_rank = 5;
    other_.local_rank = 1;
    other_.host = "node7.example";
    other_.pid = 4712;
    other_.exit_code = -SIGTERM;
    other_.exited_nanoseconds = kMoment * kSecond + 1;
    other_.order = 2;
    other_.collateral = true;
  }

  Failure root_;
  Failure other_;
  ReportOptions options_{.job_name = "train.py", .log_folder = "", .others_max = 64};
};

TEST_F(Report, HasTheLayoutOfTorchrun) {
  EXPECT_EQ(report({root_, other_}, options_),
            "\n"
            "============================================================\n"
            "train.py FAILED\n"
            "------------------------------------------------------------\n"
            "Failures:\n"
            "[1]:\n"
            "  time      : 2026-01-02_03:04:05\n"
            "  host      : node7.example\n"
            "  rank      : 5 (local_rank: 1)\n"
            "  exitcode  : -15 (pid: 4712)  (SIGTERM)\n"
            "  error_file: <N/A>\n"
            "  traceback : Signal 15 (SIGTERM) received by PID 4712\n"
            "------------------------------------------------------------\n"
            "Root Cause (first observed failure):\n"
            "[0]:\n"
            "  time      : 2026-01-02_03:04:05\n"
            "  host      : node7.example\n"
            "  rank      : 4 (local_rank: 0)\n"
            "  exitcode  : 1 (pid: 4711) \n"
            "  error_file: /logs/job_ab12cd34/attempt_0/0/error.json\n"
            "  traceback : Traceback (most recent call last):\n"
            "    File \"train.py\", line 12, in a function with quite a long name\n"
            "  ValueError: bad\n"
            "============================================================\n"
            "1 other worker was stopped because of this failure.\n");
}

TEST_F(Report, IsAsWideAsItsLongestLine) {
  root_.error_file.clear();
  root_.traceback.clear();
  root_.message = "\u00e4\u00e4";  // counted in characters
  EXPECT_EQ(report({root_}, options_),
            "\n"
            "=================================\n"
            "train.py FAILED\n"
            "---------------------------------\n"
            "Failures:\n"
            "  <NO_OTHER_FAILURES>\n"
            "---------------------------------\n"
            "Root Cause (first observed failure):\n"
            "[0]:\n"
            "  time      : 2026-01-02_03:04:05\n"
            "  host      : node7.example\n"
            "  rank      : 4 (local_rank: 0)\n"
            "  exitcode  : 1 (pid: 4711) \n"
            "  error_file: <N/A>\n"
            "  traceback : \u00e4\u00e4\n"
            "=================================\n");
}

TEST_F(Report, ShowsASimpleMessageAsItIs) {
  root_.traceback.clear();
  root_.message = "one\ntwo";
  EXPECT_NE(report({root_}, options_).find("  traceback : one\ntwo\n"), std::string::npos);
}

TEST_F(Report, ShowsEachKindOfEnd) {
  struct Case {
    int exit_code;
    const char* line;
  };
  for (const Case& one :
       {Case{3, "  exitcode  : 3 (pid: 4711) \n"}, Case{255, "  exitcode  : 255 (pid: 4711) \n"},
        Case{-6, "  exitcode  : -6 (pid: 4711)  (SIGABRT)\n"},
        Case{-9, "  exitcode  : -9 (pid: 4711)  (SIGKILL)\n"},
        Case{-11, "  exitcode  : -11 (pid: 4711)  (SIGSEGV)\n"},
        Case{-15, "  exitcode  : -15 (pid: 4711)  (SIGTERM)\n"}}) {
    root_.exit_code = one.exit_code;
    EXPECT_NE(report({root_}, options_).find(one.line), std::string::npos) << one.exit_code;
  }
}

TEST_F(Report, IsEmptyWithoutFailures) { EXPECT_EQ(report({}, options_), ""); }

TEST_F(Report, AddsWhatMusterKnowsBelowTheClosingRule) {
  root_.exit_code = -SIGKILL;
  root_.out_of_memory = true;
  root_.note = "no sign of life for 30s";
  root_.last_lines = {"loading", "epoch 3"};
  options_.log_folder = "/logs/job_ab12cd34";
  const std::string text = report({root_, other_, other_}, options_);
  const std::string rule(60, '=');
  EXPECT_EQ(text.substr(text.rfind(rule) + rule.size()),
            "\n"
            "Rank 4: no sign of life for 30s\n"
            "Rank 4 was killed by the kernel because memory ran out: give the job more memory, or "
            "run fewer workers on a node.\n"
            "Last lines of rank 4 on stderr:\n"
            "  | loading\n"
            "  | epoch 3\n"
            "2 other workers were stopped because of this failure.\n"
            "Logs: /logs/job_ab12cd34\n");
}

TEST_F(Report, SaysThatAKillCameFromOutside) {
  root_.exit_code = -SIGKILL;
  EXPECT_NE(report({root_}, options_).find("not by Muster"), std::string::npos);
  root_.note = "watchdog timer 'step' ran out";
  EXPECT_EQ(report({root_}, options_).find("not by Muster"), std::string::npos);
}

TEST_F(Report, AdmitsThatTheRootCauseIsElsewhere) {
  const std::string text = report({other_}, options_);
  EXPECT_NE(text.find("Failures:\n[0]:\n"), std::string::npos);
  EXPECT_NE(text.find("Root Cause (first observed failure):\n  <N/A> ("), std::string::npos);
}

TEST_F(Report, CountsWhatItDoesNotShow) {
  options_.others_max = 2;
  Failure real = other_;
  real.collateral = false;
  real.exited_nanoseconds += kSecond;
  // Real failures are shown before collateral ones, and all in their order.
  const std::string text = report({other_, other_, root_, real, other_}, options_);
  EXPECT_NE(text.find("Failures:\n[0]:"), std::string::npos);
  EXPECT_EQ(text.find("[1]:"), std::string::npos);
  EXPECT_NE(text.find("[3]:"), std::string::npos);
  EXPECT_NE(text.find("  ... and 2 more\n---"), std::string::npos);
  EXPECT_NE(text.find("failure):\n[2]:"), std::string::npos);
  options_.others_max = 4;
  EXPECT_EQ(report({other_, other_, root_, real, other_}, options_).find("... and"),
            std::string::npos);
}

TEST_F(Report, ShowsTheTimeOfTheErrorFileInLocalTime) {
  ::setenv("TZ", "XYZ-2", 1);
  ::tzset();
  EXPECT_EQ(report_time(kMoment * kSecond), "2026-01-02_05:04:05");
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  root_.recorded_nanoseconds = (kMoment - 60) * kSecond;
  EXPECT_NE(report({root_}, options_).find("  time      : 2026-01-02_03:03:05\n"),
            std::string::npos);
}

}  // namespace
}  // namespace muster::failures
