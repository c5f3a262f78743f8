#include "muster/process/cgroup.h"

#include "muster/process/test_support.h"

#include <fmt/format.h>

#include <filesystem>

namespace muster::process {
namespace {

constexpr std::string_view kUnified =
    "25 30 0:23 / /sys rw,nosuid - sysfs sysfs rw\n"
    "36 25 0:31 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr std::string_view kHybrid =
    "36 25 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "37 25 0:32 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "38 25 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

TEST(Cgroup, FindsOurOwnGroup) {
  EXPECT_EQ(find_cgroup(kUnified, "0::/user.slice/session-3.scope\n").folder,
            "/sys/fs/cgroup/user.slice/session-3.scope");
  EXPECT_EQ(find_cgroup(kUnified, "0::/\n").folder, "/sys/fs/cgroup");
  EXPECT_EQ(find_cgroup(kHybrid, "4:memory:/m\n0::/a\n").folder, "/sys/fs/cgroup/unified/a");
}

TEST(Cgroup, FindsNothingWithoutVersionTwo) {
  EXPECT_EQ(find_cgroup("", "0::/\n").folder, "");
  EXPECT_EQ(find_cgroup(kUnified, "4:memory:/m\n").folder, "");
  EXPECT_EQ(find_cgroup(kUnified, "0::/../elsewhere\n").folder, "");
}

TEST(Cgroup, FindsItsGroupBelowTheFolderThatIsMounted) {
  constexpr std::string_view kPart = "36 25 0:31 /pod/7 /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
  EXPECT_EQ(find_cgroup(kPart, "0::/pod/7/main\n").folder, "/sys/fs/cgroup/main");
  EXPECT_EQ(find_cgroup(kPart, "0::/pod/7\n").folder, "/sys/fs/cgroup");
  EXPECT_EQ(find_cgroup(kPart, "0::/pod/77\n").folder, "");
}

TEST(Cgroup, UndoesTheEscapesOfMountPoints) {
  EXPECT_EQ(find_cgroup("1 2 3:4 / /my\\040groups rw - cgroup2 none rw\n", "0::/a\n").folder,
            "/my groups/a");
}

TEST(Cgroup, FindsTheMemoryGroupOfVersionOne) {
  EXPECT_EQ(find_memory_cgroup_v1(kHybrid, "5:cpu,cpuacct:/x\n4:memory:/m/n\n0::/\n"),
            "/sys/fs/cgroup/memory/m/n");
  EXPECT_EQ(find_memory_cgroup_v1(kUnified, "0::/\n"), "");
}

TEST(Cgroup, ReadsCountersByTheirWholeName) {
  constexpr std::string_view kEvents = "low 0\noom 4\noom_kill 12\noom_group_kill 1\n";
  EXPECT_EQ(read_counter(kEvents, "oom_kill"), 12U);
  EXPECT_EQ(read_counter(kEvents, "oom"), 4U);
  EXPECT_EQ(read_counter(kEvents, "high"), std::nullopt);
  EXPECT_EQ(read_counter("oom_kill x\n", "oom_kill"), std::nullopt);
  EXPECT_EQ(read_counter("", "oom_kill"), std::nullopt);
}

class RealCgroupTest : public HostTest {
 protected:
  void SetUp() override {
    auto made = Cgroup::create(fmt::format("muster-test-{}", ::getpid()));
    if (!made) GTEST_SKIP() << "SKIPPED, cgroups are not tested: " << made.error().message;
    cgroup_.emplace(std::move(*made));
  }
  std::optional<Cgroup> cgroup_;
};

TEST_F(RealCgroupTest, HoldsAWorkerAndAllItsDescendantsFromTheirBirth) {
  Command command = shell(
      "(setsid env -i /bin/sh -c 'cat /proc/self/cgroup; echo ready; "
      "exec /bin/sleep 1000' &); exec sleep 1000");
  command.cgroup = cgroup_->folder();
  command.output = out_.writer();
  auto worker = start(command);
  bool inside = false;
  for (auto line = out_.line(); line && line != "ready"; line = out_.line()) {
    if (line->starts_with("0::") && line->find("muster-test-") != std::string::npos) inside = true;
  }
  EXPECT_TRUE(inside);
  EXPECT_TRUE(cgroup_->is_populated());
  EXPECT_TRUE(cgroup_->kill());
  EXPECT_EQ(wait(*worker).code, -SIGKILL);
  out_.rest();
}

TEST_F(RealCgroupTest, EndsWhatIsInItAndGoesAway) {
  Command command = shell("echo ready; trap '' TERM; sleep 1000 & wait");
  command.cgroup = cgroup_->folder();
  command.output = out_.writer();
  auto worker = start(command);
  EXPECT_EQ(out_.line(), "ready");
  const std::string folder = cgroup_->folder();
  cgroup_.reset();
  out_.rest();
  EXPECT_FALSE(std::filesystem::exists(folder));
  EXPECT_EQ(wait(*worker).code, -SIGKILL);
}

TEST_F(RealCgroupTest, ExplainsAFailedStartInsideItAsWell) {
  Command command = shell("true");
  command.executable = "./no-such-program";
  command.cgroup = cgroup_->folder();
  const auto process = host_->start(command, [](Exit) {});
  ASSERT_FALSE(process);
  EXPECT_EQ(process.error().message,
            "cannot start \"./no-such-program\": no such file; check the path");
  EXPECT_FALSE(cgroup_->is_populated());
}

TEST_F(HostTest, StartsOutsideWhenTheCgroupCannotBeEntered) {
  Command command = shell("exit 5");
  command.cgroup = "/no/such/cgroup";
  auto worker = start(command);
  EXPECT_EQ(wait(*worker).code, 5);
  command.cgroup = "/proc";
  worker = start(command);
  EXPECT_EQ(wait(*worker).code, 5);
}

TEST(Cgroup, CountsVictimsOfMemoryShortageWhereSomebodyCounts) {
  const auto first = oom_kill_count("");
  if (!first) GTEST_SKIP() << "SKIPPED: nothing counts victims of memory shortage here";
  EXPECT_GE(oom_kill_count("/no/such/cgroup").value_or(0), *first);
}

}  // namespace
}  // namespace muster::process
