#include "muster/launch/numa.h"

#include "muster/launch/file_tree_test.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace muster::launch {
namespace {

using Cpus = std::vector<int>;

Cpus cpus(std::string_view text) { return *parse_cpu_list(text); }

// Two sockets of two nodes each. A node has four cores of two threads: node n has the cores
// 4n … 4n+3, whose threads are the CPUs c and c+16, and two caches, each shared by two cores.
Topology big() {
  Topology topology;
  for (int node = 0; node < 4; ++node) {
    const int first = 4 * node;
    topology.nodes.push_back(
        {node, cpus(fmt::format("{}-{},{}-{}", first, first + 3, first + 16, first + 19)), true});
  }
  for (int id = 0; id < 32; ++id) {
    const int core = id % 16;
    const int pair = core / 2 * 2;
    topology.cpus.push_back(
        {id, core / 8, {core, core + 16}, {pair, pair + 1, pair + 16, pair + 17}});
  }
  return topology;
}

std::vector<std::string> bound(NumaMode mode, int workers, std::vector<int> gpu_nodes = {},
                               std::string_view allowed = "0-31") {
  NumaRequest request;
  request.mode = mode;
  request.worker_count = workers;
  request.allowed_cpus = cpus(allowed);
  request.gpu_nodes = std::move(gpu_nodes);
  const auto bindings = bind_workers(request, big());
  if (!bindings) return {bindings.error().message};
  std::vector<std::string> lines;
  for (const Binding& binding : *bindings)
    lines.push_back(describe_cpus(binding.cpus) + " @" + describe_cpus(binding.nodes));
  return lines;
}

using Lines = std::vector<std::string>;

TEST(NodeBinding, GivesTheCpusOfTheGpusNode) {
  EXPECT_EQ(bound(NumaMode::Node, 2, {3, 0}), (Lines{"12-15,28-31 @3", "0-3,16-19 @0"}));
}

TEST(NodeBinding, KeepsToTheCpusThatWeMayUse) {
  EXPECT_EQ(bound(NumaMode::Node, 1, {1}, "4,20,31"), Lines{"4,20 @1"});
  const Lines none = bound(NumaMode::Node, 1, {1}, "0-3");
  EXPECT_NE(none[0].find("may use no CPU"), std::string::npos) << none[0];
}

TEST(SocketBinding, GivesTheCpusOfAllNodesOfTheSocket) {
  EXPECT_EQ(bound(NumaMode::Socket, 2, {0, 3}), (Lines{"0-7,16-23 @0-1", "8-15,24-31 @2-3"}));
}

TEST(ExclusiveBinding, DividesTheCoresOfANodeAmongItsGpus) {
  EXPECT_EQ(bound(NumaMode::Exclusive, 3, {0, 0, 0}),
            (Lines{"0-1,16-17 @0", "2,18 @0", "3,19 @0"}));
  EXPECT_EQ(bound(NumaMode::Exclusive, 2, {1, 0}), (Lines{"4-7,20-23 @1", "0-3,16-19 @0"}));
}

TEST(ExclusiveBinding, LeavesTheirShareToGpusThatAreNotInUse) {
  EXPECT_EQ(bound(NumaMode::Exclusive, 1, {0, 0}), Lines{"0-1,16-17 @0"});
}

TEST(ExclusiveBinding, NeedsACoreForEachGpu) {
  const Lines lines = bound(NumaMode::Exclusive, 2, {0, 0}, "0,16");
  EXPECT_NE(lines[0].find("exclusive"), std::string::npos) << lines[0];
}

TEST(CoreComplexBinding, GivesOneCacheInTurn) {
  EXPECT_EQ(bound(NumaMode::CoreComplex, 3, {0, 0, 0}),
            (Lines{"0-1,16-17 @0", "2-3,18-19 @0", "0-1,16-17 @0"}));
}

TEST(CoreComplexBinding, PrefersTheLargerOnes) {
  EXPECT_EQ(bound(NumaMode::CoreComplex, 2, {0, 0}, "0,2-3,18-19"),
            (Lines{"2-3,18-19 @0", "0 @0"}));
}

TEST(GpuBinding, NeedsAGpuForEachWorker) {
  const Lines lines = bound(NumaMode::Node, 3, {0, 1});
  EXPECT_NE(lines[0].find("3 workers and 2 GPUs"), std::string::npos) << lines[0];
}

TEST(BindingWithoutGpus, DividesTheNodesAmongTheWorkers) {
  EXPECT_EQ(bound(NumaMode::Node, 1), Lines{"0-31 @0-3"});
  EXPECT_EQ(bound(NumaMode::Node, 2), (Lines{"0-7,16-23 @0-1", "8-15,24-31 @2-3"}));
  EXPECT_EQ(bound(NumaMode::Node, 3), (Lines{"0-7,16-23 @0-1", "8-11,24-27 @2", "12-15,28-31 @3"}));
  EXPECT_EQ(bound(NumaMode::Node, 5), (Lines{"0-3,16-19 @0", "0-3,16-19 @0", "4-7,20-23 @1",
                                             "8-11,24-27 @2", "12-15,28-31 @3"}));
}

TEST(BindingWithoutGpus, DividesTheCoresOfANodeAmongItsWorkers) {
  EXPECT_EQ(bound(NumaMode::Exclusive, 8),
            (Lines{"0-1,16-17 @0", "2-3,18-19 @0", "4-5,20-21 @1", "6-7,22-23 @1", "8-9,24-25 @2",
                   "10-11,26-27 @2", "12-13,28-29 @3", "14-15,30-31 @3"}));
}

TEST(BindingWithoutGpus, SkipsNodesWithoutCpus) {
  EXPECT_EQ(bound(NumaMode::Node, 2, {}, "8-15"), (Lines{"8-11 @2", "12-15 @3"}));
  const Lines none = bound(NumaMode::Node, 1, {}, "64");
  EXPECT_NE(none[0].find("none of the CPUs"), std::string::npos) << none[0];
}

TEST(Binding, NamesOnlyNodesThatHaveMemory) {
  Topology topology = big();
  topology.nodes[1].has_memory = false;
  NumaRequest request{NumaMode::Socket, 1, cpus("0-31"), {0}};
  EXPECT_EQ(bind_workers(request, topology)->front().nodes, Cpus{0});
}

TEST(CpuList, IsReadAndWrittenAsTheKernelDoes) {
  EXPECT_EQ(cpus("0-3,8,10-11\n"), (Cpus{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(cpus("\n"), Cpus{});
  EXPECT_EQ(cpus("3,1,1"), (Cpus{1, 3}));
  EXPECT_EQ(describe_cpus({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(describe_cpus({}), "");
  for (const char* text : {"a", "1-", "-1", "3-1", "1,,2", "0-99999999"})
    EXPECT_FALSE(parse_cpu_list(text)) << text;
}

TEST(Names, AreThoseOfTheOptions) {
  for (const NumaMode mode :
       {NumaMode::Node, NumaMode::Socket, NumaMode::Exclusive, NumaMode::CoreComplex})
    EXPECT_EQ(parse_numa_mode(name_of(mode)), mode);
  for (const NumaMemory memory : {NumaMemory::Default, NumaMemory::Bind, NumaMemory::Prefer})
    EXPECT_EQ(parse_numa_memory(name_of(memory)), memory);
  EXPECT_FALSE(parse_numa_mode("nodes"));
}

class SysfsTopology : public testing::Test {
 protected:
  void add_cpu(int id, int package, const std::string& siblings, const std::string& last_cache) {
    const std::string cpu = fmt::format("devices/system/cpu/cpu{}/", id);
    tree_.write(cpu + "topology/physical_package_id", fmt::format("{}\n", package));
    tree_.write(cpu + "topology/thread_siblings_list", siblings + "\n");
    const auto add_cache = [&](int index, int level, const std::string& type,
                               const std::string& list) {
      const std::string cache = fmt::format("{}cache/index{}/", cpu, index);
      tree_.write(cache + "level", fmt::format("{}\n", level));
      tree_.write(cache + "type", type + "\n");
      tree_.write(cache + "shared_cpu_list", list + "\n");
    };
    add_cache(0, 1, "Data", siblings);
    add_cache(1, 1, "Instruction", siblings);
    add_cache(2, 2, "Unified", last_cache);
    add_cache(3, 3, "Instruction", "0-63");
  }

  FileTree tree_;
};

TEST_F(SysfsTopology, IsRead) {
  tree_.write("devices/system/cpu/online", "0-3\n");
  for (int id = 0; id < 4; ++id)
    add_cpu(id, id % 2, fmt::format("{},{}", id % 2, id % 2 + 2), "0-3");
  tree_.write("devices/system/node/node0/cpulist", "0,2\n");
  tree_.write("devices/system/node/node1/cpulist", "1,3\n");
  tree_.write("devices/system/node/node10/cpulist", "\n");
  tree_.write("devices/system/node/has_memory", "0-1\n");
  const auto topology = read_topology(tree_.root());
  ASSERT_TRUE(topology) << topology.error().message;
  ASSERT_EQ(topology->nodes.size(), 3U);
  EXPECT_EQ(topology->nodes[1].id, 1);
  EXPECT_EQ(topology->nodes[1].cpus, (Cpus{1, 3}));
  EXPECT_EQ(topology->nodes[2].id, 10);
  EXPECT_FALSE(topology->nodes[2].has_memory);
  ASSERT_EQ(topology->cpus.size(), 4U);
  EXPECT_EQ(topology->cpus[3].package, 1);
  EXPECT_EQ(topology->cpus[3].siblings, (Cpus{1, 3}));
  EXPECT_EQ(topology->cpus[3].cache_sharers, (Cpus{0, 1, 2, 3}));
}

TEST_F(SysfsTopology, HasOneNodeWhereTheKernelKnowsNone) {
  tree_.write("devices/system/cpu/online", "0-1\n");
  const auto topology = read_topology(tree_.root());
  ASSERT_TRUE(topology);
  ASSERT_EQ(topology->nodes.size(), 1U);
  EXPECT_EQ(topology->nodes[0].cpus, (Cpus{0, 1}));
  EXPECT_EQ(topology->cpus[1].siblings, Cpus{1});
  EXPECT_EQ(topology->cpus[1].cache_sharers, Cpus{1});
}

TEST_F(SysfsTopology, IsRefusedIfItCannotBeRead) {
  EXPECT_FALSE(read_topology(tree_.root()));
  tree_.write("devices/system/cpu/online", "0-1\n");
  tree_.write("devices/system/node/node0/cpulist", "many\n");
  const auto topology = read_topology(tree_.root());
  ASSERT_FALSE(topology);
  EXPECT_NE(topology.error().message.find("node0/cpulist"), std::string::npos);
}

TEST_F(SysfsTopology, TellsTheNodeOfADevice) {
  tree_.write("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  tree_.write("bus/pci/devices/0000:86:00.0/numa_node", "-1\n");
  EXPECT_EQ(*read_device_node(tree_.root(), "0000:3b:00.0"), 1);
  EXPECT_EQ(*read_device_node(tree_.root(), "0000:86:00.0"), 0);
  EXPECT_FALSE(read_device_node(tree_.root(), "0000:99:00.0"));
}

}  // namespace
}  // namespace muster::launch
