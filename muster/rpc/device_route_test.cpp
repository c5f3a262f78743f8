#include "muster/rpc/device_route.h"

#include "tests/rpc/fake_devices.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using testing::FakeDevices;
using Numbers = std::vector<float>;

constexpr int kMany = 4096;  // 16 KiB, beside the message

DeviceRoute route_with(DeviceMap map, DeviceSupport* support) {
  return {.peer = "worker1",
          .map = std::make_shared<const DeviceMap>(std::move(map)),
          .support = support};
}

// What becomes of a tensor that is sent.
Result<Tensor> sent(const Tensor& tensor, const DeviceRoute& route, DeviceSupport* receiver) {
  Writer writer;
  writer.set_route(route);
  writer.write(tensor);
  if (auto written = writer.finish(); !written) return fail(written.error());
  return decode<Tensor>(writer.control(), writer.buffers(), {.device_support = receiver});
}

::testing::AssertionResult has_failed(const Result<Tensor>& outcome, std::string_view part) {
  if (outcome) return ::testing::AssertionFailure() << describe(*outcome) << " came";
  if (outcome.error().message.find(part) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << outcome.error().message;
}

TEST(DeviceRouteTest, BringsATensorFromOneAcceleratorToAnother) {
  FakeDevices here(1);
  FakeDevices there(4);
  for (const int count : {3, kMany}) {
    const Tensor tensor = FakeDevices::counting(cuda(0), count);
    const auto came = sent(tensor, route_with({{cuda(0), cuda(3)}}, &here), &there);
    ASSERT_TRUE(came) << came.error().message;
    EXPECT_EQ(came->device(), cuda(3));
    EXPECT_EQ(FakeDevices::numbers(*came), FakeDevices::numbers(tensor));
  }
  EXPECT_EQ(here.move_count(), 2);
  EXPECT_EQ(there.move_count(), 2);
}

TEST(DeviceRouteTest, KeepsStridesAndMovesOnlyWhatIsUsed) {
  FakeDevices here(1);
  FakeDevices there(2);
  const Tensor all = FakeDevices::counting(cuda(0), 16);
  // The elements 3, 5, 7, 4, 6, 8.
  TensorLayout layout{.dtype = DType::F32,
                      .shape = {2, 3},
                      .strides = {1, 2},
                      .offset_bytes = 2 * sizeof(float),
                      .device = cuda(0)};
  const auto view = Tensor::create(layout, all.storage());
  ASSERT_TRUE(view);
  // The fake garbles every byte alike, so the part can be moved alone.
  const auto came = sent(*view, route_with({{cuda(0), cuda(1)}}, &here), &there);
  ASSERT_TRUE(came) << came.error().message;
  EXPECT_EQ(FakeDevices::numbers(*came), (Numbers{3, 5, 7, 4, 6, 8}));
  EXPECT_FALSE(came->contiguous());
  EXPECT_EQ(here.moved_bytes(), 6 * sizeof(float));
}

TEST(DeviceRouteTest, BringsATensorOfAnAcceleratorToTheCpuOfAWorkerThatHasNone) {
  FakeDevices here(1);
  const Tensor tensor = FakeDevices::counting(cuda(0), kMany);
  const auto came = sent(tensor, route_with({{cuda(0), Device{}}}, &here), nullptr);
  ASSERT_TRUE(came) << came.error().message;
  EXPECT_EQ(came->device(), Device{});
  EXPECT_EQ(FakeDevices::numbers(*came), FakeDevices::numbers(tensor));
}

TEST(DeviceRouteTest, BringsATensorOfTheCpuToAnAcceleratorWhereTheMapSaysSo) {
  FakeDevices there(1);
  const auto tensor = Tensor::from(Numbers{1, 2, 3}, {3});
  const auto came = sent(*tensor, route_with({{Device{}, cuda(0)}}, nullptr), &there);
  ASSERT_TRUE(came) << came.error().message;
  EXPECT_EQ(came->device(), cuda(0));
  EXPECT_EQ(FakeDevices::numbers(*came), (Numbers{1, 2, 3}));
}

TEST(DeviceRouteTest, LeavesTheBytesOfTheCpuAsTheyAreWithoutMaps) {
  FakeDevices here(1);
  const auto tensor = Tensor::from(Numbers{1, 2, 3}, {3});
  Writer plain;
  plain.write(*tensor);
  for (const DeviceRoute& route :
       {DeviceRoute{.support = &here}, route_with({{cuda(0), cuda(0)}}, &here)}) {
    Writer routed;
    routed.set_route(route);
    routed.write(*tensor);
    EXPECT_EQ(routed.control(), plain.control());
  }
  EXPECT_EQ(here.move_count(), 0);
}

TEST(DeviceRouteTest, SaysThatADeviceIsNotMapped) {
  FakeDevices here(2);
  const Tensor tensor = FakeDevices::counting(cuda(1), 3);
  for (DeviceRoute route :
       {DeviceRoute{.peer = "worker1"}, route_with({{cuda(0), cuda(0)}}, &here)}) {
    const auto request = sent(tensor, route, nullptr);
    EXPECT_TRUE(has_failed(request, "TensorPipe RPC backend only supports CPU tensors by default"));
    EXPECT_TRUE(
        has_failed(request, "Request device mapping is not available for destination worker1"));
    EXPECT_TRUE(has_failed(request, "f32[3] on cuda:1"));
    route.direction = DeviceRoute::Direction::Response;
    EXPECT_TRUE(
        has_failed(sent(tensor, route, nullptr), "Response device mapping is not available"));
  }
  EXPECT_EQ(here.move_count(), 0);
}

TEST(DeviceRouteTest, SaysThatNobodyCanMoveATensor) {
  FakeDevices here(1);
  const Tensor tensor = FakeDevices::counting(cuda(0), 3);
  EXPECT_TRUE(has_failed(sent(tensor, route_with({{cuda(0), cuda(0)}}, nullptr), &here),
                         "no device support registered: nobody can move a tensor from cuda:0"));
  EXPECT_TRUE(has_failed(sent(tensor, route_with({{cuda(0), cuda(1)}}, &here), nullptr),
                         "no device support registered: nobody can move a tensor to cuda:1"));
  EXPECT_TRUE(has_failed(sent(tensor, route_with({{cuda(0), cuda(1)}}, &here), &here),
                         "there is no cuda:1 here"));
}

TEST(DeviceRouteTest, MovesNothingForATensorWithoutElements) {
  TensorLayout layout{.dtype = DType::F32, .shape = {0, 2}, .device = cuda(0)};
  const auto nothing = Tensor::create(layout, Buffer());
  ASSERT_TRUE(nothing);
  const auto came = sent(*nothing, route_with({{cuda(0), cuda(1)}}, nullptr), nullptr);
  ASSERT_TRUE(came) << came.error().message;
  EXPECT_EQ(came->device(), cuda(1));
  EXPECT_EQ(came->element_count(), 0U);
}

TEST(DeviceRouteTest, RefusesASupportThatLosesBytes) {
  class Lossy final : public DeviceSupport {
   public:
    std::int32_t device_count() const override { return 1; }
    Result<Buffer> to_host(const Device&, std::span<const std::byte> memory) override {
      return copy_of(memory.first(memory.size() - 1));
    }
    Result<Buffer> to_device(const Device&, std::span<const std::byte> bytes) override {
      return copy_of(bytes.first(bytes.size() - 1));
    }
  };
  Lossy lossy;
  FakeDevices good(1);
  const Tensor tensor = FakeDevices::counting(cuda(0), 3);
  const std::string_view text = "the device support made 11 bytes of 12";
  EXPECT_TRUE(has_failed(sent(tensor, route_with({{cuda(0), cuda(0)}}, &lossy), &good), text));
  EXPECT_TRUE(has_failed(sent(tensor, route_with({{cuda(0), cuda(0)}}, &good), &lossy), text));
}

TEST(DeviceRouteTest, RefusesDevicesFromTheWireThatAreNoAccelerators) {
  FakeDevices there(1);
  Writer writer;
  const DeviceRoute route = route_with({{Device{}, cuda(0)}}, nullptr);
  writer.set_route(route);
  writer.write(*Tensor::from(Numbers{1}, {1}));
  // One byte of the type, four of the kind, four of the index.
  const std::string good(writer.control());
  ASSERT_TRUE(decode<Tensor>(good, {}, {.device_support = &there}));
  for (const auto& [place, byte] : {std::pair<std::size_t, char>{1, 1}, {1, 3}, {8, '\xff'}}) {
    std::string bad = good;
    bad[place] = byte;
    EXPECT_TRUE(has_failed(decode<Tensor>(bad, {}, {.device_support = &there}), "no accelerator"));
  }
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decode<Tensor>(good.substr(0, size), {}, {.device_support = &there})) << size;
  }
}

TEST(DeviceDirectoryTest, FollowsTheMembers) {
  DeviceOptions mine;
  DeviceOptions other;
  ASSERT_TRUE(mine.set_device_count(2));
  ASSERT_TRUE(other.set_device_count(2));
  ASSERT_TRUE(mine.set_device_map("b", {{cuda(0), cuda(1)}}));
  ASSERT_TRUE(other.set_device_map("a", {{cuda(1), cuda(1)}}));
  const auto support = std::make_shared<FakeDevices>(2);
  DeviceDirectory directory("a", support);
  EXPECT_EQ(directory.request_to("b").map, nullptr);
  EXPECT_TRUE(directory.devices().empty());

  directory.update({{"a", &mine}, {"b", &other}});
  const DeviceRoute request = directory.request_to("b");
  ASSERT_NE(request.map, nullptr);
  EXPECT_EQ(*request.map, (DeviceMap{{cuda(0), cuda(1)}}));
  EXPECT_EQ(request.support, support.get());
  const DeviceRoute response = directory.response_to("b");
  ASSERT_NE(response.map, nullptr);
  EXPECT_EQ(*response.map, (DeviceMap{{cuda(1), cuda(1)}}));
  EXPECT_EQ(directory.devices(), (std::vector<Device>{cuda(0), cuda(1)}));
  EXPECT_EQ(directory.request_to("c").map, nullptr);

  directory.update({{"a", &mine}});
  EXPECT_EQ(directory.response_to("b").map, nullptr) << "it has left";
  EXPECT_EQ(request.map->size(), 1U) << "a route that is in use stays";
}

}  // namespace
}  // namespace muster::rpc
