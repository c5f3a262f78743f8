// The start of a worker, which others call as soon as they know of it.
#include "muster/rpc/call.h"
#include "muster/rref/rref.h"
#include "muster/worker/worker.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::options_for;
using testing::StoreHost;

const Procedure<std::string()> kAsk("ask");

// One agent of its own, since a process has one `init`.
class Peer {
 public:
  Result<> start(const StoreHost& store) {
    // The group of an `init` outside of `muster run`.
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

// The other worker may be through with its start first, and call at once.
TEST(WorkerStart, a_function_that_is_called_at_once_finds_rpc_running) {
  const auto ask = [] {
    const auto workers_known = workers().size();
    const auto reference = make_rref(std::int64_t{5}).value();
    if (const auto owner = reference.owner(); !owner) throw CallException(owner.error());
    return self().name() + " of " + std::to_string(workers_known);
  };
  // Inline, so that no other thread need wake up before it runs.
  ASSERT_TRUE(define(kAsk, ask, {.run = Run::Inline}));
  for (int i = 0; i < 500; ++i) {
    const StoreHost store;
    auto answer = std::async(std::launch::async, [&store] {
      Peer peer;
      const auto started = peer.start(store);
      if (!started) return started.error().message;
      const auto asked = rpc::async(peer.agent(), "worker0", kAsk).wait();
      return asked ? *asked : asked.error().message;
    });
    InitOptions options;
    options.rank = 0;
    options.world_size = 2;
    options.store = "127.0.0.1:" + std::to_string(store.port());
    const auto started = init(options);
    EXPECT_TRUE(started);
    EXPECT_EQ(answer.get(), "worker0 of 2");
    if (started) {
      EXPECT_TRUE(shutdown({.graceful = false}));
    }
  }
}

TEST(WorkerStart, beside_an_agent_that_is_current_is_refused_and_leaves_nothing_behind) {
  const StoreHost store;
  auto others = testing::start_static_group(store, 1);
  ASSERT_TRUE(set_current_agent(others[0]->agent));
  InitOptions options;
  options.name = "alone";
  options.rank = 0;
  options.world_size = 1;
  options.store = "127.0.0.1:" + std::to_string(store.port());
  const auto started = init(options);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().kind, ErrorKind::Conflict);
  EXPECT_NE(started.error().message.find("RPC is already initialized"), std::string::npos);
  EXPECT_EQ(self().name(), "worker0");
  EXPECT_TRUE(clear_current_agent());
  ASSERT_TRUE(init(options));
  EXPECT_TRUE(shutdown());
}

TEST(WorkerStart, requests_to_a_closed_server_wait_and_keep_their_order) {
  const StoreHost store;
  std::mutex mutex;
  std::vector<std::int64_t> came;
  auto workers = testing::start_static_group(store, 2);
  const auto note = [&](std::int64_t number) {
    const std::lock_guard lock(mutex);
    came.push_back(number);
  };
  const auto so_far = [&] {
    const std::lock_guard lock(mutex);
    return came;
  };
  ASSERT_TRUE(workers[1]->functions.add("note", note, {.run = Run::Inline}));
  workers[1]->server->close();
  std::vector<Future<void>> notes;
  for (std::int64_t i = 0; i < 10; ++i) {
    notes.push_back(workers[0]->async<void(std::int64_t)>("worker1", 0.0, "note", i));
  }
  const auto late = workers[0]->async<void(std::int64_t)>("worker1", 0.05, "note", 10);
  const auto outcome = late.wait();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout);
  EXPECT_TRUE(so_far().empty());
  workers[1]->server->open();
  for (const auto& one : notes) EXPECT_TRUE(one.wait());
  // The late one may come behind them, even now.
  const std::vector<std::int64_t> order = so_far();
  ASSERT_GE(order.size(), 10U);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(order[i], static_cast<std::int64_t>(i));
}

}  // namespace
}  // namespace muster::rpc
