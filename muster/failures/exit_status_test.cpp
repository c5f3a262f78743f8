#include "muster/failures/exit_status.h"

#include <gtest/gtest.h>

#include <csignal>

namespace muster::failures {
namespace {

TEST(ExitStatus, IsZeroOnlyForSuccess) {
  EXPECT_EQ(exit_status({.outcome = Outcome::Succeeded}), 0);
  EXPECT_EQ(exit_status({.outcome = Outcome::Released}), 0);
  EXPECT_EQ(exit_status({.outcome = Outcome::Failed}), 1);
  EXPECT_EQ(exit_status({.outcome = Outcome::Refused}), 1);
  EXPECT_EQ(exit_status({.outcome = Outcome::Usage}), 2);
  EXPECT_EQ(exit_status({.outcome = Outcome::Signalled, .signal = SIGTERM}), 1);
  EXPECT_EQ(exit_status({.outcome = Outcome::Unconfirmed}), 3);
}

TEST(ExitStatus, HidesTheWorkersStatusUnlessAsked) {
  Failure root;
  for (const int code : {3, 255, -6, -9, -11, -15}) {
    root.exit_code = code;
    EXPECT_EQ(exit_status({.outcome = Outcome::Failed, .root = &root}), 1) << code;
  }
}

TEST(ExitStatus, PassesTheWorkersStatusOnWhenAsked) {
  struct Case {
    int code;
    int status;
  };
  Failure root;
  for (const Case& one : {Case{3, 3}, Case{255, 255}, Case{-6, 134}, Case{-9, 137}, Case{-11, 139},
                          Case{-15, 143}, Case{0, 1}, Case{256, 1}}) {
    root.exit_code = one.code;
    EXPECT_EQ(exit_status({.outcome = Outcome::Failed, .root = &root, .propagate_exit_code = true}),
              one.status)
        << one.code;
  }
  EXPECT_EQ(exit_status({.outcome = Outcome::Failed, .propagate_exit_code = true}), 1);
  EXPECT_EQ(
      exit_status({.outcome = Outcome::Signalled, .signal = SIGTERM, .propagate_exit_code = true}),
      143);
  EXPECT_EQ(exit_status({.outcome = Outcome::Succeeded, .propagate_exit_code = true}), 0);
}

TEST(ExitStatusDeathTest, LetsTheParentSeeTheSignal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto end_although_blocked = [](int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    ::signal(signal, SIG_IGN);
    end_by_signal(signal);
  };
  EXPECT_EXIT(end_although_blocked(SIGTERM), ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(end_although_blocked(SIGINT), ::testing::KilledBySignal(SIGINT), "");
  // Its default is to do nothing.
  EXPECT_EXIT(end_although_blocked(SIGCHLD), ::testing::ExitedWithCode(128 + SIGCHLD), "");
}

}  // namespace
}  // namespace muster::failures
