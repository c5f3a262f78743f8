// Device maps when a group comes together: all workers find the same, and nobody stays whose
// devices do not fit.
#include "muster/rpc/group.h"
#include "muster/sim/loop.h"
#include "tests/rpc/group_workers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::failed_with;
using testing::GroupWorker;
using testing::member;
using Names = std::vector<std::string>;
using Choose = std::function<void(DeviceOptions&)>;

class DeviceGroupsTest : public ::testing::Test {
 protected:
  // A worker with two accelerators.
  GroupWorker& add(std::string name, std::int64_t id, const Choose& choose) {
    Member self = member(std::move(name), id, ++incarnation_);
    EXPECT_TRUE(self.devices.set_device_count(2));
    if (choose) choose(self.devices);
    workers_.emplace_back(loop_, *store_, std::move(self));
    return workers_.back();
  }
  GroupWorker& start(std::int64_t rank, const Choose& choose = {}, std::int64_t world_size = 3) {
    GroupWorker& worker = add("worker" + std::to_string(rank), rank, choose);
    worker.join_static(world_size, loop_.now() + 2s);
    loop_.run_until_idle();
    return worker;
  }
  GroupWorker& join(std::string name, std::int64_t id, const Choose& choose = {}) {
    GroupWorker& worker = add(std::move(name), id, choose);
    worker.join_dynamic({}, loop_.now() + 1min);
    EXPECT_TRUE(loop_.run_until([&] { return worker.done(); }, loop_.now() + 2min));
    return worker;
  }
  // Three workers of which worker1 has such devices: all fail with the same text, which has `part`.
  void expect_all_fail(const Choose& choose, const std::string& part) {
    std::vector<GroupWorker*> all;
    for (const std::int64_t rank : {2, 0, 1}) {
      all.push_back(&start(rank, rank == 1 ? choose : Choose()));
    }
    for (GroupWorker* const worker : all) {
      EXPECT_TRUE(failed_with(worker->error, ErrorKind::Invalid, part));
      EXPECT_EQ(worker->told_count, 0) << "nobody may be called";
      ASSERT_TRUE(worker->error);
      EXPECT_EQ(worker->error->message, all[0]->error->message);
    }
  }

  sim::Loop loop_;
  std::unique_ptr<store::Store> store_ = store::make_memory_store(loop_);
  std::uint64_t incarnation_ = 0;
  std::deque<GroupWorker> workers_;
};

Choose map_to(std::string to, DeviceMap map) {
  return [to, map](DeviceOptions& options) { EXPECT_TRUE(options.set_device_map(to, map)); };
}

TEST_F(DeviceGroupsTest, AllWorkersOfAStaticGroupSeeTheSameThingThatIsWrong) {  // S184, S186
  expect_all_fail(map_to("worker9", {{cuda(0), cuda(0)}}),
                  "Node worker1 has invalid target node names in its device maps");
  expect_all_fail(map_to("worker0", {{cuda(2), cuda(0)}}),
                  "Node worker1 has source devices with invalid indices");
  expect_all_fail(map_to("worker0", {{cuda(0), cuda(2)}}),
                  "Node worker1 has target devices with invalid indices");
  expect_all_fail(
      [](DeviceOptions& options) {
        EXPECT_TRUE(options.set_device_map("worker0", {{cuda(0), cuda(0)}}));
        EXPECT_TRUE(options.set_device_map("worker0", {{cuda(1), cuda(0)}}));
      },
      "Node worker1 has duplicated target devices in its device map for worker0");
  expect_all_fail(
      [](DeviceOptions& options) {
        EXPECT_TRUE(options.set_devices({cuda(0), cuda(0)}));
      },
      "Node worker1 has duplicated devices");
  expect_all_fail([](DeviceOptions& options) { EXPECT_TRUE(options.set_devices({cuda(5)})); },
                  "Node worker1 has devices with invalid indices");
  expect_all_fail(
      [](DeviceOptions& options) {
        EXPECT_TRUE(options.set_devices({cuda(1)}));
        EXPECT_TRUE(options.set_device_map("worker0", {{cuda(0), cuda(0)}}));
      },
      "Node worker1 has unexpected source devices in its device map for worker0");
}

TEST_F(DeviceGroupsTest, AStaticGroupWhoseTargetsAreNotGivenFails) {  // S186
  std::vector<GroupWorker*> all;
  all.push_back(
      &start(0, [](DeviceOptions& options) { EXPECT_TRUE(options.set_devices({cuda(1)})); }));
  all.push_back(&start(1, map_to("worker0", {{cuda(0), cuda(0)}})));
  all.push_back(&start(2));
  for (GroupWorker* const worker : all) {
    EXPECT_TRUE(failed_with(worker->error, ErrorKind::Invalid,
                            "Node worker1 has unexpected target devices in its device map for "
                            "worker0"));
  }
}

TEST_F(DeviceGroupsTest, AfterAStartThatFailedTheSameWorkersMayComeAgain) {
  expect_all_fail(map_to("worker9", {{cuda(0), cuda(0)}}), "invalid target node names");
  GroupWorker& first = start(0);
  EXPECT_FALSE(first.done()) << "it waits for the others, and does not see what they were";
  start(1, map_to("worker0", {{cuda(0), cuda(1)}}));
  GroupWorker& last = start(2);
  for (GroupWorker* const worker : {&first, &last}) {
    ASSERT_NE(worker->group, nullptr) << worker->error->message;
    EXPECT_EQ(worker->members[1].devices.maps().at("worker0"), (DeviceMap{{cuda(0), cuda(1)}}));
  }
}

TEST_F(DeviceGroupsTest, AWorkerThatComesAgainWithOtherDevicesIsRefusedAndTheOthersGoOn) {
  GroupWorker& first = start(0);
  GroupWorker& before = start(1, map_to("worker0", {{cuda(0), cuda(1)}}));
  start(2);
  before.die();
  GroupWorker& again = start(1, map_to("worker0", {{cuda(0), cuda(2)}}));
  EXPECT_TRUE(failed_with(again.error, ErrorKind::Invalid, "target devices with invalid indices"));
  GroupWorker& better = start(1, map_to("worker0", {{cuda(1), cuda(0)}}));
  ASSERT_NE(better.group, nullptr) << better.error->message;
  const auto found = loop_.block_on(first.group->look_up("worker1"));
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->incarnation, better.self.incarnation);
  EXPECT_EQ(first.members[1].devices, better.self.devices);
}

TEST_F(DeviceGroupsTest, AMapOfADynamicGroupMayNameAWorkerThatHasNotCome) {
  GroupWorker& a = join("a", 0, map_to("b", {{cuda(0), cuda(1)}}));
  ASSERT_NE(a.group, nullptr) << a.error->message;
  GroupWorker& b = join("b", 1, map_to("c", {{cuda(0), cuda(0)}}));
  ASSERT_NE(b.group, nullptr) << b.error->message;
  EXPECT_EQ(b.members[0].devices, a.self.devices);
}

TEST_F(DeviceGroupsTest, ADynamicGroupRefusesWhoeverDoesNotFitAndGoesOn) {
  GroupWorker& a = join("a", 0, [](DeviceOptions& options) {
    EXPECT_TRUE(options.set_devices({cuda(0), cuda(1)}));
    EXPECT_TRUE(options.set_device_map("b", {{cuda(0), cuda(1)}}));
  });
  ASSERT_NE(a.group, nullptr);
  const int told_count = a.told_count;
  const auto list = [&] { return loop_.block_on(store_->try_get("members")).value().value(); };
  const auto expect_refused = [&](const Choose& choose, std::string_view part) {
    const std::string before = list();
    EXPECT_TRUE(failed_with(join("b", 1, choose).error, ErrorKind::Invalid, part));
    EXPECT_EQ(list(), before) << "it was in the list for a while";
  };
  expect_refused(map_to("a", {{cuda(0), cuda(7)}}),
                 "Node b has unexpected target devices in its device map for a");
  expect_refused(map_to("a", {{cuda(7), cuda(0)}}), "Node b has source devices with invalid");
  // What a member wants of it, and it does not have.
  expect_refused([](DeviceOptions& options) { EXPECT_TRUE(options.set_devices({cuda(0)})); },
                 "Node a has unexpected target devices in its device map for b");
  expect_refused([](DeviceOptions& options) { EXPECT_TRUE(options.set_device_count(1)); },
                 "Node a has target devices with invalid indices in its device map for b");
  EXPECT_EQ(a.told_count, told_count) << "nobody has noticed";
  GroupWorker& b = join("b", 1, map_to("a", {{cuda(0), cuda(1)}}));
  ASSERT_NE(b.group, nullptr) << b.error->message;
  EXPECT_EQ(b.names(), (Names{"a", "b"}));
}

TEST_F(DeviceGroupsTest, OfTwoThatDoNotFitTheSecondIsRefused) {
  GroupWorker& a = add("a", 0, map_to("b", {{cuda(0), cuda(2)}}));
  GroupWorker& b = add("b", 1, {});
  a.join_dynamic({}, loop_.now() + 1min);
  b.join_dynamic({}, loop_.now() + 1min);
  ASSERT_TRUE(loop_.run_until([&] { return a.done() && b.done(); }, loop_.now() + 2min));
  GroupWorker& refused = a.error ? a : b;
  EXPECT_TRUE(failed_with(refused.error, ErrorKind::Invalid, "target devices with invalid"));
  EXPECT_NE((a.error ? b : a).group, nullptr) << "one of them may stay";
}

}  // namespace
}  // namespace muster::rpc
