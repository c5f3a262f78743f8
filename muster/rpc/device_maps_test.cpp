#include "muster/rpc/device_maps.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {
namespace {

using Devices = std::vector<Device>;

::testing::AssertionResult refused(const Result<>& outcome, std::string_view part) {
  if (outcome) return ::testing::AssertionFailure() << "it was taken";
  if (outcome.error().kind == ErrorKind::Invalid &&
      outcome.error().message.find(part) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << outcome.error().message;
}

// The workers of a group, each with two accelerators if nothing else is said.
class DeviceMapsTest : public ::testing::Test {
 protected:
  DeviceOptions& add(std::string name, std::int32_t device_count = 2) {
    names_.push_back(std::move(name));
    options_.emplace_back();
    EXPECT_TRUE(options_.back().set_device_count(device_count));
    return options_.back();
  }
  DeviceRows rows() const {
    DeviceRows all;
    for (std::size_t i = 0; i < names_.size(); ++i) all.push_back({names_[i], &options_[i]});
    return all;
  }
  Result<> check(Attendance attendance = Attendance::Complete) const {
    return check_devices(rows(), attendance);
  }

 private:
  std::deque<std::string> names_;
  std::deque<DeviceOptions> options_;
};

// ---- what is refused when it is set

TEST(DeviceOptionsTest, RefuseAMapThatSendsTwoDevicesToOne) {
  DeviceOptions options;
  EXPECT_TRUE(refused(options.set_device_map("b", {{cuda(0), cuda(1)}, {cuda(1), cuda(1)}}),
                      "`device_map` only supports 1-to-1 mapping"));
  EXPECT_TRUE(options.maps().empty());
}

TEST(DeviceOptionsTest, RefuseToSendADeviceElsewhereThanBefore) {  // S185
  DeviceOptions options;
  ASSERT_TRUE(options.set_device_map("b", {{cuda(0), cuda(1)}}));
  EXPECT_TRUE(refused(options.set_device_map("b", {{cuda(0), cuda(0)}}),
                      "`set_device_map` only supports 1-to-1 mapping"));
  EXPECT_EQ(options.maps().at("b"), (DeviceMap{{cuda(0), cuda(1)}}));
  EXPECT_TRUE(options.set_device_map("b", {{cuda(0), cuda(1)}})) << "the same once more";
  EXPECT_TRUE(options.set_device_map("c", {{cuda(0), cuda(0)}})) << "to somebody else";
}

TEST(DeviceOptionsTest, AddToWhatWasSetBefore) {
  DeviceOptions options;
  ASSERT_TRUE(options.set_device_map("b", {{cuda(0), cuda(1)}}));
  ASSERT_TRUE(options.set_device_map("b", {{cuda(1), cuda(0)}}));
  EXPECT_EQ(options.maps().at("b"), (DeviceMap{{cuda(0), cuda(1)}, {cuda(1), cuda(0)}}));
}

TEST(DeviceOptionsTest, RefuseANegativeIndex) {  // S184
  DeviceOptions options;
  constexpr std::string_view kText = "Device index must not be negative";
  EXPECT_TRUE(refused(options.set_device_map("b", {{cuda(-1), cuda(0)}}), kText));
  EXPECT_TRUE(refused(options.set_device_map("b", {{cuda(0), cuda(-1)}}), kText));
  EXPECT_TRUE(refused(options.set_devices({cuda(-1)}), kText));
  EXPECT_TRUE(options.maps().empty());
  EXPECT_TRUE(options.devices().empty());
}

TEST(DeviceOptionsTest, RefuseDevicesThatAreNoAccelerators) {
  DeviceOptions options;
  constexpr std::string_view kText = "`set_devices` expect a list of CUDA devices";
  EXPECT_TRUE(refused(options.set_devices({cuda(0), Device{}}), kText));
  EXPECT_TRUE(refused(options.set_devices({{DeviceKind::CudaHost, 0}}), kText));
  EXPECT_TRUE(options.set_devices({cuda(0), {DeviceKind::Rocm, 1}}));
}

TEST(DeviceOptionsTest, RefuseNamesThatNoWorkerCanHave) {
  DeviceOptions options;
  EXPECT_FALSE(options.set_device_map("", {{cuda(0), cuda(0)}}));
  EXPECT_FALSE(options.set_device_map("a b", {{cuda(0), cuda(0)}}));
}

TEST(DeviceOptionsTest, TakeAsManyDevicesAsTheLimitAndNoMore) {
  DeviceMap map;
  Devices devices;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(kDevicesMax); ++i) {
    map.emplace(cuda(i), cuda(i));
    devices.push_back(cuda(i));
  }
  DeviceOptions options;
  EXPECT_TRUE(options.set_device_map("b", map));
  EXPECT_TRUE(options.set_devices(devices));
  const Device more = cuda(static_cast<std::int32_t>(kDevicesMax));
  devices.push_back(more);
  EXPECT_FALSE(options.set_device_map("b", {{more, more}}));
  EXPECT_FALSE(options.set_devices(devices));
}

TEST(DeviceOptionsTest, TakeMapsForAsManyWorkersAsTheLimitAndNoMore) {
  DeviceOptions options;
  for (std::size_t i = 0; i < kDeviceMapsMax; ++i) {
    ASSERT_TRUE(options.set_device_map("w" + std::to_string(i), {{cuda(0), cuda(0)}}));
  }
  EXPECT_FALSE(options.set_device_map("more", {{cuda(0), cuda(0)}}));
  EXPECT_TRUE(options.set_device_map("w0", {{cuda(1), cuda(1)}}));
}

TEST(DeviceOptionsTest, HoldPinnedMemoryForTheCpu) {
  DeviceOptions options;
  ASSERT_TRUE(options.set_device_map("b", {{{DeviceKind::CudaHost, 1}, cuda(0)}}));
  EXPECT_EQ(options.maps().at("b"), (DeviceMap{{Device{}, cuda(0)}}));
}

// ---- what is refused when the group has come

TEST_F(DeviceMapsTest, FitWhenEveryDeviceIsThere) {
  DeviceOptions& a = add("a");
  DeviceOptions& b = add("b");
  ASSERT_TRUE(a.set_device_map("b", {{cuda(0), cuda(1)}, {cuda(1), cuda(0)}}));
  ASSERT_TRUE(a.set_device_map("a", {{cuda(0), cuda(1)}}));
  ASSERT_TRUE(b.set_device_map("a", {{cuda(1), cuda(1)}, {Device{}, cuda(0)}}));
  ASSERT_TRUE(b.set_devices({cuda(1), cuda(0)}));
  EXPECT_TRUE(check());
}

TEST_F(DeviceMapsTest, NameOnlyWorkersThatAreThere) {  // S184
  ASSERT_TRUE(add("a").set_device_map("none", {{cuda(0), cuda(0)}}));
  add("b");
  EXPECT_TRUE(refused(check(), "Node a has invalid target node names in its device maps"));
  EXPECT_TRUE(check(Attendance::Open)) << "it may still come";
}

TEST_F(DeviceMapsTest, SendNoTwoDevicesToOneAfterTheyAreMerged) {  // S184
  DeviceOptions& a = add("a");
  add("b");
  ASSERT_TRUE(a.set_device_map("b", {{cuda(0), cuda(1)}}));
  ASSERT_TRUE(a.set_device_map("b", {{cuda(1), cuda(1)}}));
  EXPECT_TRUE(refused(check(), "Node a has duplicated target devices in its device map for b"));
  EXPECT_TRUE(refused(check(Attendance::Open), "duplicated target devices"));
}

TEST_F(DeviceMapsTest, HaveSourcesThatExist) {  // S184
  ASSERT_TRUE(add("a").set_device_map("b", {{cuda(2), cuda(0)}}));
  add("b", 3);
  EXPECT_TRUE(
      refused(check(), "Node a has source devices with invalid indices in its device map for b"));
}

TEST_F(DeviceMapsTest, HaveTargetsThatExistOverThere) {  // S184
  ASSERT_TRUE(add("a", 3).set_device_map("b", {{cuda(0), cuda(2)}}));
  add("b");
  EXPECT_TRUE(
      refused(check(), "Node a has target devices with invalid indices in its device map for b"));
}

TEST_F(DeviceMapsTest, HaveNoAcceleratorsWhereThereAreNone) {
  ASSERT_TRUE(add("a", 0).set_device_map("b", {{cuda(0), cuda(0)}}));
  add("b", 0);
  EXPECT_TRUE(refused(check(), "source devices with invalid indices"));
}

TEST_F(DeviceMapsTest, HaveSourcesAmongTheDevicesThatWereGiven) {  // S186
  DeviceOptions& a = add("a");
  add("b");
  ASSERT_TRUE(a.set_devices({cuda(1)}));
  ASSERT_TRUE(a.set_device_map("b", {{cuda(0), cuda(0)}}));
  EXPECT_TRUE(refused(check(), "Node a has unexpected source devices in its device map for b"));
}

TEST_F(DeviceMapsTest, HaveTargetsAmongTheDevicesThatWereGivenOverThere) {  // S186
  ASSERT_TRUE(add("a").set_device_map("b", {{cuda(0), cuda(0)}}));
  ASSERT_TRUE(add("b").set_devices({cuda(1)}));
  EXPECT_TRUE(refused(check(), "Node a has unexpected target devices in its device map for b"));
}

TEST_F(DeviceMapsTest, TakeTheCpuForADeviceThatEverybodyHas) {
  DeviceOptions& a = add("a");
  ASSERT_TRUE(a.set_devices({cuda(0)}));
  ASSERT_TRUE(a.set_device_map("b", {{Device{}, cuda(0)}, {cuda(0), Device{}}}));
  ASSERT_TRUE(add("b").set_devices({cuda(0)}));
  EXPECT_TRUE(check());
}

TEST_F(DeviceMapsTest, HaveDevicesOnlyOnce) {
  ASSERT_TRUE(add("a").set_devices({cuda(1), cuda(1)}));
  EXPECT_TRUE(refused(check(), "Node a has duplicated devices"));
}

TEST_F(DeviceMapsTest, HaveDevicesThatExist) {
  ASSERT_TRUE(add("a").set_devices({cuda(0), cuda(2)}));
  EXPECT_TRUE(refused(check(), "Node a has devices with invalid indices"));
}

// ---- what follows from them

TEST_F(DeviceMapsTest, NameTheDevicesOfAWorkerThatGaveNone) {
  ASSERT_TRUE(add("a", 4).set_device_map("b", {{cuda(3), cuda(1)}, {Device{}, cuda(0)}}));
  ASSERT_TRUE(add("b", 4).set_device_map("a", {{cuda(2), Device{}}, {cuda(1), cuda(0)}}));
  add("c", 4);
  EXPECT_EQ(devices_of(rows(), "a"), (Devices{cuda(0), cuda(3)}));
  EXPECT_EQ(devices_of(rows(), "b"), (Devices{cuda(0), cuda(1), cuda(2)}));
  EXPECT_EQ(devices_of(rows(), "c"), Devices{});
  EXPECT_EQ(devices_of(rows(), "d"), Devices{});
}

TEST_F(DeviceMapsTest, LeaveTheDevicesThatWereGivenAsTheyAre) {
  DeviceOptions& a = add("a", 4);
  ASSERT_TRUE(a.set_devices({cuda(3), cuda(1)}));
  ASSERT_TRUE(a.set_device_map("a", {{cuda(3), cuda(1)}}));
  EXPECT_EQ(devices_of(rows(), "a"), (Devices{cuda(3), cuda(1)}));
}

TEST_F(DeviceMapsTest, SendAnswersBackThroughTheMapOfWhoAsked) {
  ASSERT_TRUE(add("a").set_device_map("b", {{cuda(0), cuda(1)}, {cuda(1), Device{}}}));
  add("b");
  const DeviceTable here(rows(), "a");
  const DeviceTable there(rows(), "b");
  ASSERT_NE(here.request_map("b"), nullptr);
  EXPECT_EQ(*here.request_map("b"), (DeviceMap{{cuda(0), cuda(1)}, {cuda(1), Device{}}}));
  ASSERT_NE(there.response_map("a"), nullptr);
  EXPECT_EQ(*there.response_map("a"), (DeviceMap{{cuda(1), cuda(0)}, {Device{}, cuda(1)}}));
  EXPECT_EQ(here.response_map("b"), nullptr);
  EXPECT_EQ(there.request_map("a"), nullptr);
  EXPECT_TRUE(there.has_maps());
  EXPECT_FALSE(DeviceTable().has_maps());
}

}  // namespace
}  // namespace muster::rpc
