// The API that programs use (rpc.h), with one worker: what it takes, what it refuses, and how it
// begins and ends. Several workers: groups_test.py.
#include "muster/rpc.h"
#include "muster/worker/testing.h"
#include "tests/rpc/cluster.h"
#include "tests/rpc/fake_devices.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::FakeDevices;
using testing::StoreHost;

constexpr std::string_view kNotRunning = "RPC has not been initialized";

const Procedure<std::int64_t(std::int64_t, std::int64_t)> kAdd("add");
const Procedure<void(std::string)> kFail("fail");
const Procedure<std::int64_t()> kHold("hold");
const Procedure<std::int64_t()> kFailEarly("fail early");
const Procedure<std::int64_t()> kBlock("block");
const Procedure<void()> kFinish("finish");
const Procedure<void()> kMissing("ad");
const Procedure<Tensor(Tensor)> kEcho("echo");
const Procedure<Tensor(std::int32_t)> kMake("make");

// What `hold` answers with, later, and until when `block` and `finish` keep their threads busy.
Promise<std::int64_t>& gate() {
  static Promise<std::int64_t> promise;
  return promise;
}
// How often `finish` has begun, and has come to its end.
std::atomic<int> begun_count = 0;
std::atomic<int> finished_count = 0;

void define_all() {
  static const bool kDone = [] {
    EXPECT_TRUE(define(kAdd, [](std::int64_t a, std::int64_t b) { return a + b; }));
    EXPECT_TRUE(define(kFail, [](std::string text) { throw std::out_of_range(text); }));
    EXPECT_TRUE(define(kEcho, [](Tensor tensor) { return tensor; }));
    EXPECT_TRUE(
        define(kMake, [](std::int32_t index) { return FakeDevices::counting(cuda(index), 3); }));
    EXPECT_TRUE(define(kHold, [] { return gate().future(); }));
    EXPECT_TRUE(define(
        kFailEarly, []() -> Future<std::int64_t> { throw std::out_of_range("not even begun"); }));
    // Not by waiting for the future: a function that does so gives its thread away.
    EXPECT_TRUE(define(kBlock, [] {
      const auto future = gate().future();
      while (!future.done()) std::this_thread::yield();
      return future.get();
    }));
    EXPECT_TRUE(define(kFinish, [] {
      ++begun_count;
      (void)gate().future().wait();
      ++finished_count;
    }));
    return true;
  }();
  (void)kDone;
}

class RpcApiTest : public ::testing::Test {
 protected:
  RpcApiTest() {
    for (const char* const name :
         {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MUSTER_ROUND", "TORCHELASTIC_RUN_ID",
          "TORCHELASTIC_RESTART_COUNT", "MUSTER_SOCKET_IFNAME", "TP_SOCKET_IFNAME",
          "MUSTER_FAULTS"}) {
      ::unsetenv(name);
    }
    define_all();
    gate() = Promise<std::int64_t>();
  }
  ~RpcApiTest() override {
    gate().set(0);
    if (!is_running()) return;
    EXPECT_TRUE(shutdown({.graceful = false}));
  }

  static void set(const char* name, const std::string& value) {
    ASSERT_EQ(::setenv(name, value.c_str(), 1), 0);
  }
  void set_all() const {
    set("RANK", "0");
    set("WORLD_SIZE", "1");
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(store_.port()));
  }
  InitOptions alone(std::string name = "me") const {
    InitOptions options;
    options.name = std::move(name);
    options.rank = 0;
    options.world_size = 1;
    options.store = "127.0.0.1:" + std::to_string(store_.port());
    return options;
  }
  // Why `init` refuses; empty if it does not.
  static std::string refusal(InitOptions options) {
    const auto started = init(std::move(options));
    EXPECT_EQ(is_running(), started.has_value());
    return started ? std::string() : started.error().message;
  }

  StoreHost store_;
};

// Until it holds, or for so long that it never will.
template <typename Holds>
bool comes_to(Holds holds) {
  const TimePoint deadline = SystemClock().now() + 60s;
  while (!holds() && SystemClock().now() < deadline) std::this_thread::yield();
  return holds();
}

// Waits until a figure has that value; only the figures tell how far a call is on the other side.
::testing::AssertionResult wait_for_figure(const std::string& name, const std::string& value) {
  if (comes_to([&] { return metrics().at(name) == value; })) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << name << " is " << metrics().at(name);
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// ---- starting -----------------------------------------------------------------------------------

TEST_F(RpcApiTest, StartsFromTheEnvironmentThatMusterRunSets) {
  set_all();
  ASSERT_EQ(refusal({}), "");
  EXPECT_EQ(self().name(), "worker0");
  EXPECT_EQ(self().id(), 0);
  EXPECT_EQ(call("worker0", kAdd, 1, 2).value(), 3);
}

TEST_F(RpcApiTest, OptionsComeBeforeTheEnvironment) {
  set("RANK", "5");
  set("WORLD_SIZE", "9");
  set("MASTER_ADDR", "256.256.256.256");
  set("MASTER_PORT", "nonsense");
  ASSERT_EQ(refusal(alone()), "");
  EXPECT_EQ(self().name(), "me");
}

TEST_F(RpcApiTest, AVariableThatIsMissingIsNamed) {
  for (const char* const name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    set_all();
    ::unsetenv(name);
    const std::string text = refusal({});
    EXPECT_TRUE(contains(text, std::string("environment variable ") + name + " expected")) << text;
  }
}

TEST_F(RpcApiTest, AVariableThatIsNoNumberIsShown) {
  set_all();
  set("RANK", "0x");
  const std::string text = refusal({});
  EXPECT_TRUE(contains(text, "RANK must be a number, not \"0x\"")) << text;
}

TEST_F(RpcApiTest, OptionsThatMakeNoSenseAreRefusedAndTheNextStartWorks) {
  InitOptions options = alone();
  options.rank = 1;
  EXPECT_TRUE(contains(refusal(options), "rank 1 does not belong to a world of size 1"));
  options.rank = -1;
  EXPECT_NE(refusal(options), "");
  options = alone();
  options.world_size = 0;
  EXPECT_TRUE(contains(refusal(options), "world of size 0"));
  EXPECT_TRUE(contains(refusal(alone("no blanks")), "Worker name must match"));
  options = alone();
  options.thread_count = 0;
  EXPECT_NE(refusal(options), "");
  options = alone();
  options.timeout = -1s;
  EXPECT_NE(refusal(options), "");
  EXPECT_EQ(refusal(alone()), "");
}

TEST_F(RpcApiTest, AWorkerThatDoesNotComeIsNamed) {
  InitOptions options = alone();
  options.world_size = 2;
  // Longer if the store is not even reached in that time.
  std::string text;
  for (Duration patience = 50ms; patience < 60s; patience *= 2) {
    options.start_timeout = patience;
    const auto started = init(options);
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().kind, ErrorKind::Timeout);
    EXPECT_FALSE(is_running());
    text = started.error().message;
    if (contains(text, "rank 1 of 2 has not come")) return;
  }
  FAIL() << text;
}

// S46
TEST_F(RpcApiTest, StartingTwiceIsRefusedAndTheFirstGoesOn) {
  ASSERT_TRUE(init(alone()));
  const auto again = init(alone("other"));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().kind, ErrorKind::Conflict);
  EXPECT_TRUE(contains(again.error().message, "RPC is already initialized"))
      << again.error().message;
  EXPECT_EQ(call("me", kAdd, 1, 2).value(), 3);
}

// S48
TEST_F(RpcApiTest, AWorkerAloneCallsItselfAndEndsGracefully) {
  ASSERT_TRUE(init(alone()));
  EXPECT_EQ(call("me", kAdd, 1, 2).value(), 3);
  EXPECT_EQ(async("me", kAdd, 3, 4).get(), 7);
  EXPECT_TRUE(barrier());
  ASSERT_EQ(workers().size(), 1U);
  EXPECT_EQ(workers()[0], self());
  EXPECT_TRUE(shutdown());
}

TEST_F(RpcApiTest, AWorkerOfADynamicGroupMayHaveAnyNumber) {
  InitOptions options = alone("late");
  options.rank = 7;
  options.world_size.reset();
  options.dynamic = true;
  ASSERT_EQ(refusal(options), "");
  EXPECT_EQ(call(7, kAdd, 1, 2).value(), 3);
  EXPECT_TRUE(shutdown());
}

// ---- ending -------------------------------------------------------------------------------------

// S170
TEST_F(RpcApiTest, WithoutRpcEverythingSaysSo) {
  const auto check = [] {
    EXPECT_FALSE(is_running());
    const auto called = call("me", kAdd, 1, 2);
    ASSERT_FALSE(called);
    EXPECT_EQ(called.error().kind, CallErrorKind::Rejected);
    EXPECT_FALSE(called.error().sent);
    EXPECT_TRUE(called.error().message.starts_with(kNotRunning)) << called.error().message;
    const auto later = async("me", kAdd, 1, 2).wait();
    ASSERT_FALSE(later);
    EXPECT_TRUE(later.error().message.starts_with(kNotRunning));
    const auto left_there = remote("me", kAdd, 1, 2);
    ASSERT_FALSE(left_there);
    EXPECT_TRUE(left_there.error().message.starts_with(kNotRunning));
    EXPECT_TRUE(barrier().error().message.starts_with(kNotRunning));
    EXPECT_TRUE(shutdown().error().message.starts_with(kNotRunning));
    EXPECT_THROW(self(), CallException);
    EXPECT_THROW(workers(), CallException);
    EXPECT_TRUE(metrics().empty());
  };
  check();
  ASSERT_TRUE(init(alone()));
  ASSERT_TRUE(shutdown());
  check();
}

// S49
TEST_F(RpcApiTest, MayStartAgainAndAgain) {
  for (int time = 0; time < 3; ++time) {
    ASSERT_EQ(refusal(alone()), "");
    EXPECT_EQ(call("me", kAdd, time, 2).value(), time + 2);
    EXPECT_TRUE(barrier());
    ASSERT_TRUE(shutdown());
  }
}

TEST_F(RpcApiTest, ACallThatWaitsWhenRpcEndsFails) {
  ASSERT_TRUE(init(alone()));
  const Future<std::int64_t> held = async("me", kHold);
  ASSERT_TRUE(shutdown({.graceful = false}));
  EXPECT_FALSE(held.wait());
}

// ---- calling ------------------------------------------------------------------------------------

// S41
TEST_F(RpcApiTest, ADestinationIsANameAnIdOrAnInfo) {
  ASSERT_TRUE(init(alone()));
  EXPECT_EQ(call("me", kAdd, 1, 2).value(), 3);
  EXPECT_EQ(call(std::string("me"), kAdd, 1, 2).value(), 3);
  EXPECT_EQ(call(0, kAdd, 1, 2).value(), 3);
  EXPECT_EQ(call(self(), kAdd, 1, 2).value(), 3);
  EXPECT_EQ(call(to(self()).within(60s), kAdd, 1, 2).value(), 3);
  EXPECT_EQ(async(0, kAdd, 1, 2).get(), 3);
  EXPECT_EQ(async(self(), kAdd, 1, 2).get(), 3);
  EXPECT_EQ(remote(0, kAdd, 1, 2)->to_here().value(), 3);
  EXPECT_EQ(remote(self(), kAdd, 1, 2)->to_here().value(), 3);
}

// S42
TEST_F(RpcApiTest, ADestinationThatIsNotThereIsRefusedUnsent) {
  ASSERT_TRUE(init(alone()));
  for (const Destination& nobody : {Destination("nobody"), Destination(1), Destination(-1),
                                    Destination(std::int64_t{1} << 40U)}) {
    const auto called = call(nobody, kAdd, 1, 2);
    const auto later = async(nobody, kAdd, 1, 2).wait();
    const auto left_there = remote(nobody, kAdd, 1, 2);
    ASSERT_FALSE(called);
    ASSERT_FALSE(later);
    ASSERT_FALSE(left_there);
    for (const CallError& error : {called.error(), later.error(), left_there.error()}) {
      EXPECT_EQ(error.kind, CallErrorKind::Rejected);
      EXPECT_FALSE(error.sent);
      EXPECT_TRUE(contains(error.message, "could not find destination")) << error.message;
    }
  }
}

// S99
TEST_F(RpcApiTest, ATimeoutEndsTheCallAndNotTheFunction) {
  ASSERT_TRUE(init(alone()));
  begun_count = finished_count = 0;
  auto outcome = call(to("me").within(20ms), kFinish);
  // Again if it had not even begun in that time.
  while (!outcome && begun_count == 0) outcome = call(to("me").within(20ms), kFinish);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout);
  EXPECT_TRUE(render(outcome.error())
                  .starts_with("RPCErr:1:RPC ran for more than set timeout (20 ms) and will now be "
                               "marked with an error"))
      << render(outcome.error());
  EXPECT_EQ(call("me", kAdd, 1, 2).value(), 3);
  EXPECT_EQ(finished_count, 0);
  gate().set(5);
  EXPECT_TRUE(comes_to([] { return finished_count > 0; }));
  EXPECT_EQ(call("me", kHold).value(), 5);
}

TEST_F(RpcApiTest, ACallMayBeGivenMoreTimeThanTheOthers) {
  InitOptions options = alone();
  options.timeout = 20ms;
  options.start_timeout = 60s;
  ASSERT_EQ(refusal(options), "");
  const Future<std::int64_t> patient = async(to("me").within(Duration::zero()), kHold);
  const auto hasty = call("me", kHold);
  ASSERT_FALSE(hasty);
  EXPECT_EQ(hasty.error().kind, CallErrorKind::Timeout);
  gate().set(5);
  EXPECT_EQ(patient.get(), 5);
}

TEST_F(RpcApiTest, ATimeoutBelowZeroIsRefused) {
  ASSERT_TRUE(init(alone()));
  const auto outcome = call(to("me").within(-2s), kAdd, 1, 2);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Rejected);
}

TEST_F(RpcApiTest, WhatAFunctionThrowsComesWithItsType) {
  ASSERT_TRUE(init(alone()));
  const auto outcome = call("me", kFail, "too far");
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Remote);
  EXPECT_EQ(outcome.error().type, "std::out_of_range");
  EXPECT_TRUE(contains(outcome.error().message, "too far")) << outcome.error().message;
}

// S120
TEST_F(RpcApiTest, WhatAnAsynchronousFunctionThrowsBeforeItReturnsComesByAllThreeForms) {
  ASSERT_TRUE(init(alone()));
  const auto called = call("me", kFailEarly);
  const auto later = async("me", kFailEarly).wait();
  const auto left_there = remote("me", kFailEarly)->to_here();
  ASSERT_FALSE(called);
  ASSERT_FALSE(later);
  ASSERT_FALSE(left_there);
  for (const CallError& error : {called.error(), later.error(), left_there.error()}) {
    EXPECT_EQ(error.kind, CallErrorKind::Remote);
    EXPECT_EQ(error.type, "std::out_of_range");
    EXPECT_TRUE(contains(error.message, "not even begun")) << error.message;
  }
}

TEST_F(RpcApiTest, AFunctionThatIsNotThereIsRefusedWithTheNearestName) {
  ASSERT_TRUE(init(alone()));
  const auto outcome = call("me", kMissing);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Remote);
  EXPECT_TRUE(contains(outcome.error().message, "add")) << outcome.error().message;
}

TEST_F(RpcApiTest, ACallerWithOtherTypesIsRefused) {
  ASSERT_TRUE(init(alone()));
  const Procedure<double(double, double)> other("add");
  const auto outcome = call("me", other, 1.0, 2.0);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Remote);
}

// ---- devices ------------------------------------------------------------------------------------

TEST_F(RpcApiTest, DeviceMapsThatDoNotFitAreRefusedAndTheNextStartWorks) {  // S184
  InitOptions options = alone();
  options.device_support = std::make_shared<FakeDevices>(2);
  const InitOptions good = options;
  ASSERT_TRUE(options.devices.set_device_map("nobody", {{cuda(0), cuda(0)}}));
  EXPECT_TRUE(contains(refusal(options), "Node me has invalid target node names"));
  options = good;
  ASSERT_TRUE(options.devices.set_device_map("me", {{cuda(0), cuda(2)}}));
  EXPECT_TRUE(contains(refusal(options), "Node me has target devices with invalid indices"));
  options = good;
  ASSERT_TRUE(options.devices.set_device_map("me", {{cuda(0), cuda(0)}}));
  options.device_support.reset();
  EXPECT_TRUE(contains(refusal(options), "Node me has source devices with invalid indices"))
      << "without support there are no accelerators";
  EXPECT_EQ(refusal(good), "");
}

TEST_F(RpcApiTest, TensorsGoToTheDeviceThatTheMapNamesAndBack) {
  InitOptions options = alone();
  options.device_support = std::make_shared<FakeDevices>(2);
  ASSERT_TRUE(options.devices.set_device_map("me", {{cuda(0), cuda(1)}}));
  ASSERT_EQ(refusal(options), "");
  EXPECT_EQ(devices(), (std::vector<Device>{cuda(0), cuda(1)}));
  for (const Destination& to : {Destination("me"), Destination(0)}) {
    const auto echoed = call(to, kEcho, FakeDevices::counting(cuda(0), 3));
    ASSERT_TRUE(echoed) << render(echoed.error());
    EXPECT_EQ(echoed->device(), cuda(0));
    EXPECT_EQ(FakeDevices::numbers(*echoed), (std::vector<float>{1, 2, 3}));
  }
}

// S187, of `call`; of `remote`: references_test.cpp.
TEST_F(RpcApiTest, TensorsOnUnmappedDevicesFailAndUseUpNoThreads) {
  InitOptions options = alone();
  options.thread_count = 2;
  options.timeout = Duration::zero();  // whoever waits for one waits for ever
  ASSERT_EQ(refusal(options), "");
  for (std::size_t i = 0; i < options.thread_count + 5; ++i) {
    for (const Destination& to : {Destination("me"), Destination(0)}) {
      const auto sent = call(to, kEcho, FakeDevices::counting(cuda(0), 3));
      ASSERT_FALSE(sent);
      EXPECT_EQ(sent.error().kind, CallErrorKind::Rejected);
      EXPECT_TRUE(contains(sent.error().message,
                           "Request device mapping is not available for destination me"));
      const auto made = call(to, kMake, 0);
      ASSERT_FALSE(made);
      EXPECT_EQ(made.error().kind, CallErrorKind::Remote);
      EXPECT_TRUE(contains(made.error().message, "Response device mapping is not available"));
      EXPECT_EQ(call(to, kAdd, 1, 2).value(), 3);
    }
  }
}

// ---- metrics ------------------------------------------------------------------------------------

// S57
TEST_F(RpcApiTest, TheFiguresShowTheThreads) {
  InitOptions options = alone();
  options.thread_count = 27;
  ASSERT_EQ(refusal(options), "");
  EXPECT_EQ(metrics().at("agent.thread_pool_size"), "27");
  const Future<std::int64_t> blocking = async("me", kBlock);
  EXPECT_TRUE(wait_for_figure("agent.num_idle_threads", "26"));
  gate().set(1);
  EXPECT_EQ(blocking.get(), 1);
}

TEST_F(RpcApiTest, TheFiguresShowTheCallsUnderWay) {
  ASSERT_TRUE(init(alone()));
  EXPECT_EQ(metrics().at("agent.client_active_calls"), "0");
  EXPECT_EQ(metrics().at("agent.server_active_calls"), "0");
  EXPECT_EQ(metrics().at("agent.server_active_async_calls"), "0");
  const Future<std::int64_t> held = async("me", kHold);
  EXPECT_EQ(metrics().at("agent.client_active_calls"), "1");
  EXPECT_TRUE(wait_for_figure("agent.server_active_async_calls", "1"));
  EXPECT_EQ(metrics().at("agent.server_active_calls"), "1");
  gate().set(1);
  EXPECT_EQ(held.get(), 1);
  EXPECT_NE(metrics().at("peer.me.sent_bytes"), "0");
  EXPECT_NE(metrics().at("peer.me.received_bytes"), "0");
}

// ---- references ---------------------------------------------------------------------------------

TEST_F(RpcApiTest, AResultCanStayWhereItWasMade) {
  ASSERT_EQ(refusal(alone()), "");
  const auto sum = remote("me", kAdd, 1, 2);
  ASSERT_TRUE(sum);
  EXPECT_TRUE(sum->is_owner());
  EXPECT_EQ(sum->to_here().value(), 3);
  EXPECT_EQ(*make_rref(std::int64_t{5})->local_value().value(), 5);
  EXPECT_TRUE(shutdown({.ignores_leaks = false}));
}

TEST_F(RpcApiTest, ReferencesNeedRpcToRun) {
  const auto made = remote("me", kAdd, 1, 2);
  ASSERT_FALSE(made);
  EXPECT_TRUE(contains(made.error().message, kNotRunning));
  const auto local = make_rref(std::int64_t{5});
  ASSERT_FALSE(local);
  EXPECT_TRUE(contains(local.error().message, kNotRunning));
}

TEST_F(RpcApiTest, AReferenceFromBeforeTheEndIsOfNoUseAfterANewStart) {
  ASSERT_EQ(refusal(alone()), "");
  const auto old = remote("me", kAdd, 1, 2);
  ASSERT_EQ(old->to_here().value(), 3);
  ASSERT_TRUE(shutdown());
  ASSERT_EQ(refusal(alone()), "");
  const auto fresh = remote("me", kAdd, 3, 4);
  EXPECT_EQ(fresh->to_here().value(), 7);
  EXPECT_NE(fresh->text(), old->text()) << "ids are never used again";
  EXPECT_TRUE(shutdown({.ignores_leaks = false}));
}

TEST_F(RpcApiTest, TheDebugInformationHasTheKeysThatProgramsKnow) {
  ASSERT_EQ(refusal(alone()), "");
  const auto info = debug_info();
  for (const char* const key :
       {"num_owner_rrefs", "num_pending_futures", "num_pending_users", "num_forks",
        "num_pending_children", "agent.client_active_calls", "agent.num_idle_threads"}) {
    ASSERT_TRUE(info.contains(key)) << key;
  }
  EXPECT_EQ(info.at("num_owner_rrefs"), "0");
}

TEST_F(RpcApiTest, FaultsComeFromTheEnvironmentAndBadOnesAreRefused) {
  set("MUSTER_FAULTS", "lose:*");
  EXPECT_TRUE(contains(refusal(alone()), "MUSTER_FAULTS"));
  set("MUSTER_FAULTS", "fail:SCRIPT_CALL:first=1");
  ASSERT_EQ(refusal(alone()), "");
  const auto outcome = call("me", kAdd, 1, 2);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Injected);
  EXPECT_EQ(call("me", kAdd, 1, 2).value(), 3);
}

TEST_F(RpcApiTest, TheUtilitiesForTestsWaitAndSayWhatTheySaw) {
  ASSERT_EQ(refusal(alone()), "");
  EXPECT_EQ(testing::worker_name(3), "worker3");
  EXPECT_TRUE(testing::wait_until_flushed());
  EXPECT_TRUE(testing::wait_until_owners_and_forks_on("me", {0, 0}));
  const auto wrong = testing::wait_until_owners_and_forks_on("me", {1, 2}, 20ms);
  ASSERT_FALSE(wrong);
  EXPECT_TRUE(contains(wrong.error().message, "0 owners and 0 forks, not 1 and 2"));
  const auto gone = testing::wait_until_failure("nobody", "could not find destination");
  ASSERT_TRUE(gone);
  EXPECT_FALSE(testing::wait_until_failure("me", "", 20ms));
  const auto faults = faults_of(testing::default_faults());
  ASSERT_TRUE(faults);
  EXPECT_EQ(faults->rules.front().types.size(), 4U);
  EXPECT_EQ(faults->rules.size(), 3U) << "one for all that fail, one for each that is late";
}

}  // namespace
}  // namespace muster::rpc
