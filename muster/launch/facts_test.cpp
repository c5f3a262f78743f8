#include "muster/launch/facts.h"

#include "muster/launch/cpu_quota.h"
#include "muster/launch/file_tree_test.h"
#include "muster/launch/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

namespace muster::launch {
namespace {

FactsRoots roots_of(const FileTree& tree) {
  return {tree.root() + "/proc", tree.root() + "/sys", tree.root() + "/dev"};
}

void add_gpu(FileTree& tree, int minor, const std::string& address, const std::string& uuid) {
  tree.write(fmt::format("proc/driver/nvidia/gpus/{}/information", address),
             fmt::format("Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nGPU UUID: \t {}\n"
                         "Bus Location: \t {}\nDevice Minor: \t {}\n",
                         uuid, address, minor));
}

std::vector<std::string> addresses(const std::vector<Gpu>& gpus) {
  std::vector<std::string> result;
  for (const Gpu& gpu : gpus) result.push_back(gpu.pci_address);
  return result;
}

using List = std::vector<std::string>;

TEST(Gpus, AreReadFromTheDriverInTheOrderOfTheirAddresses) {
  FileTree tree;
  EXPECT_TRUE(read_gpus(roots_of(tree)).empty());
  add_gpu(tree, 0, "0000:86:00.0", "GPU-bbbb");
  add_gpu(tree, 1, "0000:3b:00.0", "GPU-aaaa");
  EXPECT_EQ(read_gpus(roots_of(tree)),
            (std::vector<Gpu>{{"0000:3b:00.0", "GPU-aaaa"}, {"0000:86:00.0", "GPU-bbbb"}}));
}

TEST(Gpus, OfOtherContainersDoNotCount) {
  FileTree tree;
  for (int minor = 0; minor < 4; ++minor)
    add_gpu(tree, minor, fmt::format("0000:0{}:00.0", minor), fmt::format("GPU-{}", minor));
  tree.write("dev/nvidiactl", "");
  tree.write("dev/nvidia-uvm", "");
  tree.write("dev/nvidia2", "");
  EXPECT_EQ(addresses(read_gpus(roots_of(tree))), List{"0000:02:00.0"});
}

TEST(Gpus, ThatTheDriverLeavesOutDoNotCount) {
  FileTree tree;
  add_gpu(tree, 0, "0000:01:00.0", "GPU-a");
  tree.write("proc/driver/nvidia/gpus/0000:02:00.0/information",
             "GPU UUID: \t GPU-b\nDevice Minor: \t 1\nGPU Excluded:\t Yes\n");
  EXPECT_EQ(addresses(read_gpus(roots_of(tree))), List{"0000:01:00.0"});
}

TEST(Gpus, AreCountedByTheirDevicesWhereTheDriverIsHidden) {
  FileTree tree;
  tree.write("dev/nvidia0", "");
  tree.write("dev/nvidia1", "");
  EXPECT_TRUE(read_gpus(roots_of(tree)).empty());
  tree.write("dev/nvidiactl", "");
  EXPECT_EQ(read_gpus(roots_of(tree)).size(), 2U);
}

TEST(VisibleGpus, AreThoseOfTheList) {
  const std::vector<Gpu> gpus = {{"a", "GPU-1a"}, {"b", "GPU-1b"}, {"c", "GPU-2c"}};
  const auto visible = [&](std::string_view list) {
    return addresses(select_visible_gpus(gpus, list));
  };
  EXPECT_EQ(visible("2,0"), (List{"c", "a"}));
  EXPECT_EQ(visible(" 1 , 2 "), (List{"b", "c"}));
  EXPECT_EQ(visible("GPU-2,GPU-1b"), (List{"c", "b"}));
  EXPECT_EQ(visible("0,7,1"), List{"a"});
  EXPECT_EQ(visible("-1,0"), List{});
  EXPECT_EQ(visible("0,,1"), List{"a"});
  EXPECT_EQ(visible("0,1,0"), List{});
  EXPECT_EQ(visible(""), List{});
  EXPECT_EQ(visible("NoDevFiles"), List{});
  EXPECT_EQ(visible("GPU-9"), List{});
  EXPECT_EQ(visible("MIG-x,MIG-y"), (List{"", ""}));
  EXPECT_EQ(select_visible_gpus(std::vector<Gpu>(2), "GPU-1,GPU-2").size(), 2U);
}

TEST(Xpus, AreIntelDevicesThatAreNotPartOfTheProcessor) {
  FileTree tree;
  const auto add = [&](int number, const std::string& address, const std::string& vendor) {
    tree.write(fmt::format("sys/devices/{}/vendor", address), vendor + "\n");
    tree.link(fmt::format("sys/class/drm/renderD{}/device", number), "../../../devices/" + address);
  };
  EXPECT_EQ(read_xpu_count(roots_of(tree), {}), 0);
  add(128, "0000:00:02.0", "0x8086");
  add(129, "0000:3b:00.0", "0x8086");
  add(130, "0000:86:00.0", "0x8086");
  add(131, "0000:af:00.0", "0x1002");
  EXPECT_EQ(read_xpu_count(roots_of(tree), {}), 2);
  EXPECT_EQ(read_xpu_count(roots_of(tree), {{"ZE_AFFINITY_MASK", "1"}}), 1);
  EXPECT_EQ(read_xpu_count(roots_of(tree), {{"ZE_AFFINITY_MASK", "0.0,0.1,5"}}), 2);
}

class CpuQuota : public testing::Test {
 protected:
  void set_groups(const std::string& text) { tree_.write("proc/self/cgroup", text); }
  // One mount of the given kind at cg/, which shows the group `shown`.
  void mount(const std::string& type, const std::string& options, const std::string& shown = "/") {
    mounts_ += fmt::format("30 25 0:26 {} {}/cg/{} rw,nosuid shared:9 - {} cgroup rw,{}\n", shown,
                           tree_.root(), type, type, options);
    tree_.write("proc/self/mountinfo", "25 1 8:1 / / rw - ext4 /dev/sda rw\n" + mounts_);
  }
  std::optional<double> quota() { return read_cpu_quota(roots_of(tree_)); }

  FileTree tree_;
  std::string mounts_;
};

TEST_F(CpuQuota, IsNothingWithoutCgroups) { EXPECT_FALSE(quota()); }

TEST_F(CpuQuota, IsTheSmallestOfVersionTwo) {
  set_groups("0::/a/b\n");
  mount("cgroup2", "nsdelegate");
  EXPECT_FALSE(quota());
  tree_.write("cg/cgroup2/a/b/cpu.max", "max 100000\n");
  EXPECT_FALSE(quota());
  tree_.write("cg/cgroup2/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(quota(), 2.5);
  tree_.write("cg/cgroup2/a/b/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota(), 2.5);
  tree_.write("cg/cgroup2/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 0.5);
}

TEST_F(CpuQuota, IsReadFromVersionOne) {
  set_groups("5:cpuset:/\n4:cpu,cpuacct:/job\n0::/\n");
  mount("cgroup", "cpuacct,cpu");
  tree_.write("cg/cgroup/job/cpu.cfs_quota_us", "-1\n");
  tree_.write("cg/cgroup/job/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(quota());
  tree_.write("cg/cgroup/job/cpu.cfs_quota_us", "300000\n");
  EXPECT_EQ(quota(), 3.0);
}

TEST_F(CpuQuota, IsFoundWhereAContainerSeesOnlyItsOwnGroup) {
  set_groups("4:cpu:/docker/abc/sub\n");
  mount("cgroup", "cpu", "/docker/abc");
  tree_.write("cg/cgroup/cpu.cfs_quota_us", "100000\n");
  tree_.write("cg/cgroup/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 1.0);
  set_groups("4:cpu:/docker/abcd\n");
  EXPECT_EQ(quota(), 1.0);
  set_groups("4:cpu:/../other\n");
  EXPECT_EQ(quota(), 1.0);
}

TEST_F(CpuQuota, SurvivesNonsense) {
  set_groups("what\n::\n0:\n");
  mount("cgroup2", "x");
  tree_.write("proc/self/mountinfo", " - \na - b\n1 2 3 4 5 - cgroup2\n");
  EXPECT_FALSE(quota());
}

TEST(Facts, OfThisMachineAreSensible) {
  const Facts facts = read_facts({});
  EXPECT_FALSE(facts.cpus.empty());
  EXPECT_GE(usable_cpu_count(facts), 1);
  EXPECT_EQ(facts.look_at("/dev/null").kind, FileFacts::Kind::NullDevice);
  EXPECT_EQ(facts.look_at("/").kind, FileFacts::Kind::Folder);
  EXPECT_EQ(facts.look_at("/nowhere/at/all").kind, FileFacts::Kind::Missing);
  EXPECT_TRUE(facts.look_at("/bin/sh").executable);
  EXPECT_GE(facts.xpu_count(), 0);
}

TEST(Facts, MakeRunIdsThatAreRandomUuids) {
  const Facts facts = read_facts({});
  std::set<std::string> ids;
  for (int index = 0; index < 20; ++index) {
    const std::string id = facts.make_run_id();
    ids.insert(id);
    ASSERT_EQ(id.size(), 36U) << id;
    EXPECT_EQ(id[14], '4') << id;
    EXPECT_NE(std::string("89ab").find(id[19]), std::string::npos) << id;
    EXPECT_EQ(id[8], '-') << id;
  }
  EXPECT_EQ(ids.size(), 20U);
}

TEST(Files, ThatCannotBeReadAreNothing) {
  EXPECT_FALSE(read_small_file("/nowhere/at/all"));
  EXPECT_FALSE(read_small_file("/"));
  EXPECT_TRUE(list_folder("/nowhere/at/all").empty());
}

}  // namespace
}  // namespace muster::launch
