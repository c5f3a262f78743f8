#include "muster/process/proc.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <unistd.h>

namespace muster::process {
namespace {

using namespace std::string_literals;

TEST(Proc, ReadsAStatLineWhoseNameContainsParenthesesAndBlanks) {
  const auto stat = parse_stat(
      "4711 (a) R (b c) D 12 34 56 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 10\n");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->pid, 4711);
  EXPECT_EQ(stat->name, "a) R (b c");
  EXPECT_EQ(stat->state, 'D');
  EXPECT_EQ(stat->parent, 12);
  EXPECT_EQ(stat->group, 34);
  EXPECT_EQ(stat->session, 56);
  EXPECT_EQ(stat->start_time, 987654U);
}

TEST(Proc, ReadsWhereTheEnvironmentLies) {
  const std::string middle =
      " 1 2 3 4 5 6 7 8 20 0 1 0 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 "
      "31 32 33 34 35 36 ";
  const auto process = parse_stat("1 (x) R 2 3 4 0 -1 4194304" + middle + "140736 140800 0\n");
  ASSERT_TRUE(process);
  EXPECT_EQ(process->environment_begin, 140736U);
  EXPECT_EQ(process->environment_end, 140800U);
  EXPECT_FALSE(process->is_kernel_thread);
  const auto thread = parse_stat("1 (x) I 2 3 4 0 -1 69238880" + middle + "0 0 0\n");
  ASSERT_TRUE(thread);
  EXPECT_TRUE(thread->is_kernel_thread);
}

TEST(Proc, RefusesAStatLineThatIsCutOff) {
  const std::string line =
      "4711 (name) S 12 34 56 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000";
  for (std::size_t bytes = 0; bytes < line.find(" 987654"); ++bytes) {
    EXPECT_FALSE(parse_stat(line.substr(0, bytes))) << bytes;
  }
}

TEST(Proc, KnowsThisProcess) {
  const auto stat = read_stat(::getpid());
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->parent, ::getppid());
  EXPECT_EQ(stat->group, ::getpgrp());
  EXPECT_EQ(stat->state, 'R');
  const auto all = all_processes();
  EXPECT_NE(std::find(all.begin(), all.end(), ::getpid()), all.end());
}

TEST(Proc, FindsAVariableOnlyByItsWholeName) {
  const std::string environment = "XTOKEN=no\0TOKEN2=no\0TOKEN=yes=1\0TOKEN=late\0"s;
  EXPECT_EQ(find_variable(environment, "TOKEN"), "yes=1");
  EXPECT_EQ(find_variable(environment, "OKEN"), "");
  EXPECT_EQ(find_variable("TOKEN=cut", "TOKEN"), "cut");
  EXPECT_EQ(find_variable("TOKEN", "TOKEN"), "");
  EXPECT_EQ(find_variable("", "TOKEN"), "");
  EXPECT_EQ(find_variable("\0\0\0TOKEN=x"s, "TOKEN"), "x");
}

TEST(Proc, FindsTokensOnlyWithinTheirAncestors) {
  EXPECT_TRUE(is_within("a.1", "a.1"));
  EXPECT_TRUE(is_within("a.1/b.2", "a.1"));
  EXPECT_TRUE(is_within("a.1", "a"));
  EXPECT_FALSE(is_within("a.10", "a.1"));
  EXPECT_FALSE(is_within("ab.1", "a"));
  EXPECT_FALSE(is_within("a", "a.1"));
  EXPECT_FALSE(is_within("", "a"));
  EXPECT_FALSE(is_within("a.1", ""));
}

TEST(Proc, SignalsNobodyWhoseStartTimeDiffers) {
  auto stat = read_stat(::getpid());
  ASSERT_TRUE(stat);
  EXPECT_TRUE(signal_exactly(*stat, 0));
  ++stat->start_time;
  EXPECT_FALSE(signal_exactly(*stat, SIGKILL));
}

TEST(Proc, DescribesAStuckProcessInOneLine) {
  EXPECT_EQ(describe(Stuck{4711, "python3", 'D', "nfs_wait < do_read"}),
            "process 4711 (python3) does not end after SIGKILL: state D (waits in the kernel), in "
            "nfs_wait < do_read");
  EXPECT_EQ(describe(Stuck{1, "x", 'R', ""}), "process 1 (x) does not end after SIGKILL: state R");
}

}  // namespace
}  // namespace muster::process
