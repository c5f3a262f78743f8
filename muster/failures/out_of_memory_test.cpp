#include "muster/failures/out_of_memory.h"

#include "muster/failures/temporary_folder_test.h"

#include <gtest/gtest.h>

#include <csignal>

namespace muster::failures {
namespace {

constexpr const char* kEvents = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n";

OutOfMemoryCounts counts_in(const TemporaryFolder& root) {
  return read_out_of_memory_counts({.root = root.path(), .group_folder = ""});
}

TEST(OutOfMemory, ReadsTheCountOfOurGroup) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/user.slice/job\n");
  root.write("sys/fs/cgroup/user.slice/job/memory.events", kEvents);
  root.write("proc/vmstat", "nr_free_pages 5\noom_kill 40\noom_killer 1\n");
  EXPECT_EQ(counts_in(root), (OutOfMemoryCounts{2, 40}));
}

TEST(OutOfMemory, ReadsTheGroupOfAContainer) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/../../kubepods/x\n");
  root.write("sys/fs/cgroup/memory.events", kEvents);
  EXPECT_EQ(counts_in(root).group, 2U);
}

TEST(OutOfMemory, ReadsTheFirstVersionOfControlGroups) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "9:cpu,cpuacct:/a\n8:memory:/job:1\n0::/\n");
  root.write("sys/fs/cgroup/memory/job:1/memory.oom_control",
             "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
  EXPECT_EQ(counts_in(root).group, 7U);
}

TEST(OutOfMemory, ReadsTheGroupItIsTold) {
  const TemporaryFolder root;
  root.write("group/memory.events", "oom_kill 5\n");
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/memory.events", kEvents);
  const auto counts =
      read_out_of_memory_counts({.root = root.path(), .group_folder = root / "group"});
  EXPECT_EQ(counts.group, 5U);
}

TEST(OutOfMemory, KnowsNothingWhereNothingCanBeRead) {
  const TemporaryFolder root;
  EXPECT_EQ(counts_in(root), OutOfMemoryCounts());
  root.write("proc/self/cgroup", "garbage\n:\n0:\n0::/a\n");
  root.write("sys/fs/cgroup/a/memory.events", "oom_kill\noom_kill x\noom_kill 5x\n");
  root.write("proc/vmstat", "oom_kill");
  EXPECT_EQ(counts_in(root), OutOfMemoryCounts());
}

TEST(OutOfMemory, ReadsTheRealMachine) {
  // Whether the counters are there depends on the kernel; that they are read without harm does not.
  const auto counts = read_out_of_memory_counts({});
  if (counts.machine) {
    EXPECT_GE(read_out_of_memory_counts({}).machine, counts.machine);
  }
}

TEST(OutOfMemory, IsTheReasonWhenTheCountOfTheGroupMoved) {
  const OutOfMemoryWindow moved = {{2, 40}, {3, 41}};
  EXPECT_TRUE(ran_out_of_memory(-SIGKILL, moved));
  EXPECT_TRUE(ran_out_of_memory(137, moved));
  for (const int code : {0, 1, -SIGTERM, -SIGSEGV}) EXPECT_FALSE(ran_out_of_memory(code, moved));
}

TEST(OutOfMemory, IsNotTheReasonWhenOnlyOthersWereKilled) {
  EXPECT_FALSE(ran_out_of_memory(-SIGKILL, {{2, 40}, {2, 41}}));
  EXPECT_FALSE(ran_out_of_memory(-SIGKILL, {{2, 40}, {2, 40}}));
}

TEST(OutOfMemory, IsJudgedByTheMachineWhereTheGroupIsUnknown) {
  EXPECT_TRUE(ran_out_of_memory(-SIGKILL, {{std::nullopt, 40}, {std::nullopt, 41}}));
  EXPECT_TRUE(ran_out_of_memory(-SIGKILL, {{2, 40}, {std::nullopt, 41}}));
  EXPECT_FALSE(ran_out_of_memory(-SIGKILL, {{std::nullopt, 40}, {std::nullopt, 40}}));
  EXPECT_FALSE(ran_out_of_memory(-SIGKILL, {}));
}

}  // namespace
}  // namespace muster::failures
