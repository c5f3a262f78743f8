// A worker that just goes, without waiting for the others.
#include "muster/rpc/call.h"
#include "muster/worker/worker.h"
#include "tests/rpc/cluster.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::options_for;
using testing::StoreHost;

constexpr Duration kPatience = 60s;
constexpr std::size_t kWaiting = 20;

const Procedure<void()> kHold("worker stop test, hold");
const Procedure<void()> kCount("worker stop test, count");
const Procedure<void()> kCountLater("worker stop test, count later");

// What the functions do; of the test that runs.
struct Scene {
  std::latch has_begun{1};
  std::latch may_end{1};
  std::atomic<int> held = 0;
  std::atomic<int> counted = 0;
};
std::unique_ptr<Scene> scene;

void define_once() {
  static const bool kDefined = [] {
    const auto hold = define(kHold, [] {
      scene->has_begun.count_down();
      scene->may_end.wait();
      ++scene->held;
    });
    const auto count = define(kCount, [] { ++scene->counted; });
    const auto later = define(kCountLater, [] {
      ++scene->counted;
      return Future<void>::ready({});
    });
    return hold && count && later;
  }();
  ASSERT_TRUE(kDefined);
  scene = std::make_unique<Scene>();
}

// The other worker: an agent of its own, since a process has one `init`.
class Peer {
 public:
  Result<> start(const StoreHost& store) {
    auto started =
        NetworkAgent::start(options_for("worker1", 1, 2), store.opener("rpc//"), server_, 60s);
    if (!started) return fail(started.error());
    agent_ = std::move(*started);
    return {};
  }
  ~Peer() {
    if (agent_) agent_->shutdown();
    server_.stop();
  }
  Agent& agent() { return *agent_; }

 private:
  Functions functions_;
  FunctionServer server_{functions_, 1, 1};
  std::shared_ptr<NetworkAgent> agent_;
};

class WorkerStop : public ::testing::Test {
 protected:
  void SetUp() override {
    define_once();
    auto started = std::async(std::launch::async, [this] { return peer_.start(store_); });
    InitOptions options;
    options.rank = 0;
    options.world_size = 2;
    options.thread_count = 1;
    options.store = "127.0.0.1:" + std::to_string(store_.port());
    ASSERT_TRUE(init(options));
    ASSERT_TRUE(started.get());
  }
  // One that runs, and many behind it.
  std::vector<Future<void>> call_many() {
    std::vector<Future<void>> calls;
    const auto to_it = to("worker0").within(0s);
    calls.push_back(async(peer_.agent(), to_it, kHold));
    scene->has_begun.wait();
    for (std::size_t index = 0; index < kWaiting; ++index) {
      calls.push_back(async(peer_.agent(), to_it, index % 2 == 0 ? kCount : kCountLater));
    }
    return calls;
  }

  StoreHost store_;
  Peer peer_;
};

void expect_unreachable(const std::vector<Future<void>>& calls) {
  for (const auto& one : calls) {
    const auto* const outcome = one.wait_until(SystemClock().now() + kPatience);
    ASSERT_NE(outcome, nullptr) << "a call waits for ever";
    ASSERT_FALSE(*outcome);
    EXPECT_EQ(outcome->error().kind, CallErrorKind::Unreachable) << outcome->error().message;
  }
}

TEST_F(WorkerStop, WaitsForWhatRunsAndBeginsNothingMore) {
  const tests::LogCapture log;
  const auto calls = call_many();
  auto ending = std::async(std::launch::async, [] { return shutdown({.graceful = false}); });
  expect_unreachable(calls);
  EXPECT_EQ(scene->held, 0);
  scene->may_end.count_down();
  EXPECT_TRUE(ending.get());
  EXPECT_EQ(scene->held, 1) << "it was not waited for";
  EXPECT_EQ(scene->counted, 0) << "functions were begun that nobody waited for";
  // Nobody tries to answer those.
  const auto warnings = log.warnings();
  const auto is_about_answers = [](const std::string& line) {
    return line.find("does not answer") != std::string::npos;
  };
  EXPECT_LE(std::count_if(warnings.begin(), warnings.end(), is_about_answers), 1);
}

TEST_F(WorkerStop, BeginsNothingMoreAfterAGracefulOneHasFailed) {
  const auto calls = call_many();
  auto ending = std::async(std::launch::async, [] { return shutdown({.timeout = 1ms}); });
  expect_unreachable(calls);
  scene->may_end.count_down();
  EXPECT_FALSE(ending.get());
  EXPECT_EQ(scene->held, 1);
  EXPECT_EQ(scene->counted, 0);
}

}  // namespace
}  // namespace muster::rpc
