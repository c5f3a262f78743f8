// Tensors of accelerators in calls between real agents.
#include "tests/rpc/cluster.h"
#include "tests/rpc/fake_devices.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::FakeDevices;
using testing::start_static_group;
using testing::StoreHost;
using testing::Worker;
using Echo = Tensor(Tensor);
using Make = Tensor(std::int32_t);
using Add = std::int64_t(std::int64_t, std::int64_t);

// How many threads a Worker of the tests has.
constexpr int kThreadCount = 4;
constexpr int kManyCalls = kThreadCount + 5;

void add_functions(Worker& worker) {
  ASSERT_TRUE(worker.functions.add("echo", [](Tensor tensor) { return tensor; }));
  ASSERT_TRUE(worker.functions.add("where", [](Tensor tensor) { return describe(tensor); }));
  // A tensor on that device of the callee, and the same later.
  ASSERT_TRUE(worker.functions.add(
      "make", [](std::int32_t index) { return FakeDevices::counting(cuda(index), 3); }));
  ASSERT_TRUE(worker.functions.add("make later", [](std::int32_t index) {
    return Future<Tensor>::ready(FakeDevices::counting(cuda(index), 3));
  }));
  ASSERT_TRUE(worker.functions.add("add", [](std::int64_t a, std::int64_t b) { return a + b; }));
}

class DeviceCallsTest : public ::testing::Test {
 protected:
  // Two workers with two accelerators; worker0 maps 0 to 1 of worker1, and knows of no other way.
  void start(bool has_support = true) {
    workers_ = start_static_group(
        store_, 2,
        [&](AgentOptions& options) {
          EXPECT_TRUE(options.devices.set_device_count(2));
          if (has_support) options.device_support = devices_;
          if (options.self.id() != 0) return;
          EXPECT_TRUE(options.devices.set_device_map("worker1", {{cuda(0), cuda(1)}}));
        },
        add_functions);
  }
  Worker& worker(std::size_t rank) { return *workers_[rank]; }
  void expect_undisturbed(Worker& from, const std::string& to) {
    const auto sum = from.call<Add>(to, "add", std::int64_t{1}, std::int64_t{2});
    ASSERT_TRUE(sum) << render(sum.error());
    EXPECT_EQ(*sum, 3);
  }

  std::shared_ptr<FakeDevices> devices_ = std::make_shared<FakeDevices>(2);
  StoreHost store_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

::testing::AssertionResult failed(const CallResult<Tensor>& outcome, CallErrorKind kind,
                                  std::string_view part) {
  if (outcome) return ::testing::AssertionFailure() << "it succeeded";
  if (outcome.error().kind == kind && outcome.error().message.find(part) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << render(outcome.error());
}

TEST_F(DeviceCallsTest, ArgumentsGoThroughTheMapAndResultsBackThroughIt) {
  start();
  for (const int count : {3, 5000}) {
    const Tensor tensor = FakeDevices::counting(cuda(0), count);
    const auto where = worker(0).call<std::string(Tensor)>("worker1", "where", tensor);
    ASSERT_TRUE(where) << render(where.error());
    EXPECT_EQ(*where, "f32[" + std::to_string(count) + "] on cuda:1");
    const auto echoed = worker(0).call<Echo>("worker1", "echo", tensor);
    ASSERT_TRUE(echoed) << render(echoed.error());
    EXPECT_EQ(echoed->device(), cuda(0));
    EXPECT_EQ(FakeDevices::numbers(*echoed), FakeDevices::numbers(tensor));
  }
  const auto later = worker(0).call<Make>("worker1", "make later", 1);
  ASSERT_TRUE(later) << render(later.error());
  EXPECT_EQ(later->device(), cuda(0));
}

TEST_F(DeviceCallsTest, TheCpuNeedsNoEntry) {
  start();
  const auto tensor = Tensor::from(std::vector<float>{1, 2, 3}, {3});
  const auto echoed = worker(0).call<Echo>("worker1", "echo", *tensor);
  ASSERT_TRUE(echoed) << render(echoed.error());
  EXPECT_EQ(echoed->device(), Device{});
  EXPECT_EQ(devices_->move_count(), 0);
}

TEST_F(DeviceCallsTest, EveryWorkerKnowsItsDevices) {
  start();
  EXPECT_EQ(worker(0).agent->devices(), std::vector<Device>{cuda(0)});
  EXPECT_EQ(worker(1).agent->devices(), std::vector<Device>{cuda(1)});
}

TEST_F(DeviceCallsTest, AnArgumentOnAnUnmappedDeviceFailsAtTheCall) {  // S187
  start();
  const struct {
    std::size_t from;
    const char* to;
    Device device;
  } cases[] = {{0, "worker1", cuda(1)}, {1, "worker0", cuda(0)}, {0, "worker0", cuda(0)}};
  for (const auto& [from, to, device] : cases) {
    for (int i = 0; i < kManyCalls; ++i) {
      // No timeout: whoever waits for one waits for ever.
      const auto future =
          worker(from).async<Echo>(to, 0.0, "echo", FakeDevices::counting(device, 3));
      EXPECT_TRUE(
          failed(future.wait(), CallErrorKind::Rejected,
                 std::string("Request device mapping is not available for destination ") + to));
      EXPECT_TRUE(failed(future.wait(), CallErrorKind::Rejected,
                         "TensorPipe RPC backend only supports CPU tensors by default"));
      EXPECT_FALSE(future.wait().error().sent);
      expect_undisturbed(worker(from), to);
    }
  }
  EXPECT_EQ(devices_->move_count(), 0);
}

TEST_F(DeviceCallsTest, AResultOnAnUnmappedDeviceFailsTheCall) {  // S187
  start();
  for (const char* const name : {"make", "make later"}) {
    for (int i = 0; i < kManyCalls; ++i) {
      EXPECT_TRUE(failed(worker(0).async<Make>("worker1", 0.0, name, 0).wait(),
                         CallErrorKind::Remote, "Response device mapping is not available"));
      expect_undisturbed(worker(0), "worker1");
      // worker1 has no map at all.
      EXPECT_TRUE(failed(worker(1).async<Make>("worker0", 0.0, name, 0).wait(),
                         CallErrorKind::Remote, "Response device mapping is not available"));
      expect_undisturbed(worker(1), "worker0");
    }
  }
}

TEST_F(DeviceCallsTest, FailuresAllAtOnceLeaveNoThreadBehind) {  // S187
  start();
  std::vector<Future<Tensor>> futures;
  for (int i = 0; i < kManyCalls; ++i) {
    futures.push_back(worker(0).async<Make>("worker1", 0.0, "make", 0));
    futures.push_back(
        worker(0).async<Echo>("worker1", 0.0, "echo", FakeDevices::counting(cuda(1), 3)));
  }
  for (const auto& future : futures) EXPECT_FALSE(future.wait());
  expect_undisturbed(worker(0), "worker1");
  expect_undisturbed(worker(1), "worker0");
  EXPECT_TRUE(worker(0).agent->calls().wait_until_idle([] { return true; }));
}

TEST_F(DeviceCallsTest, WithoutDeviceSupportWhatIsMappedFailsAtOnceAndNothingElseDoes) {
  start(false);
  for (int i = 0; i < kManyCalls; ++i) {
    EXPECT_TRUE(failed(
        worker(0).async<Echo>("worker1", 0.0, "echo", FakeDevices::counting(cuda(0), 3)).wait(),
        CallErrorKind::Rejected, "no device support registered"));
    EXPECT_TRUE(failed(worker(0).async<Make>("worker1", 0.0, "make", 1).wait(),
                       CallErrorKind::Remote, "no device support registered"));
    expect_undisturbed(worker(0), "worker1");
  }
}

TEST_F(DeviceCallsTest, AWorkerWithoutDeviceSupportRefusesWhatIsForItsAccelerator) {
  workers_ = start_static_group(
      store_, 2,
      [&](AgentOptions& options) {
        EXPECT_TRUE(options.devices.set_device_count(2));
        if (options.self.id() != 0) return;
        options.device_support = devices_;
        EXPECT_TRUE(options.devices.set_device_map("worker1", {{cuda(0), cuda(1)}}));
      },
      add_functions);
  for (int i = 0; i < kManyCalls; ++i) {
    EXPECT_TRUE(failed(
        worker(0).async<Echo>("worker1", 0.0, "echo", FakeDevices::counting(cuda(0), 3)).wait(),
        CallErrorKind::Remote, "no device support registered"));
    expect_undisturbed(worker(0), "worker1");
  }
}

TEST_F(DeviceCallsTest, MembersOfADynamicGroupLearnTheMapsOfThoseThatCome) {
  Worker first;
  Worker second;
  add_functions(first);
  add_functions(second);
  const auto options_of = [&](std::string name, std::int64_t id) {
    AgentOptions options = testing::options_for(std::move(name), id, std::nullopt);
    options.device_support = devices_;
    EXPECT_TRUE(options.devices.set_device_count(2));
    return options;
  };
  AgentOptions early = options_of("early", 0);
  ASSERT_TRUE(early.devices.set_device_map("late", {{cuda(0), cuda(0)}}));
  ASSERT_TRUE(first.start(std::move(early), store_, 60s));
  AgentOptions late = options_of("late", 1);
  ASSERT_TRUE(late.devices.set_device_map("early", {{cuda(0), cuda(1)}}));
  ASSERT_TRUE(second.start(std::move(late), store_, 60s));

  const auto echoed = second.call<Echo>("early", "echo", FakeDevices::counting(cuda(0), 3));
  ASSERT_TRUE(echoed) << render(echoed.error());
  EXPECT_EQ(echoed->device(), cuda(0));
  const auto back = first.call<Echo>("late", "echo", FakeDevices::counting(cuda(0), 3));
  ASSERT_TRUE(back) << render(back.error());
  EXPECT_EQ(back->device(), cuda(0));

  Worker third;
  AgentOptions wrong = options_of("third", 2);
  ASSERT_TRUE(wrong.devices.set_device_map("early", {{cuda(0), cuda(9)}}));
  const auto refused = third.start(std::move(wrong), store_, 60s);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("target devices with invalid indices"), std::string::npos)
      << refused.error().message;
  expect_undisturbed(first, "late");
}

}  // namespace
}  // namespace muster::rpc
