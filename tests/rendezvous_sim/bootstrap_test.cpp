// Where the workers of a round find the store they begin with, with both drivers. The numbers in
// the comments are those of the rows of scenarios in the rendezvous specification.
#include "muster/rendezvous/dynamic_handler.h"
#include "muster/store/prefix_store.h"
#include "tests/rendezvous_sim/world.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous::testing {
namespace {

using namespace std::chrono_literals;

// A node with a whole handler, whose server for workers is only a number.
class HandlerNode {
 public:
  HandlerNode(World& world, const std::string& name, int port)
      : world_(world), process_(world.add(name)), name_(name), port_(port) {}
  ~HandlerNode() { calls_.cancel_all(); }

  void begin_join() {
    info_.reset();
    calls_.start(run());
  }
  bool is_in() const { return info_ && info_->has_value(); }
  const Info& info() const { return **info_; }
  Status status() const { return handler_->status(); }
  int server_count() const { return server_count_; }
  sim::Host& host() { return process_.host(); }
  void die(sim::Crash how) {
    calls_.cancel_all();
    info_.reset();
    handler_.reset();
    world_.kill(process_, how);
  }

 private:
  Task<void> run() {
    auto opened = co_await process_.open();
    if (!opened) {
      info_ = fail(std::move(opened.error()));
      co_return;
    }
    if (handler_ == nullptr) make_handler();
    auto info = co_await handler_->next_rendezvous();
    info_ = std::move(info);
  }

  void make_handler() {
    environment_ = std::make_unique<Environment>(
        Environment{process_.host().loop(), process_.random(), nullptr});
    DynamicHandlerParts parts;
    parts.backend = "sim";
    parts.settings = world_.options().settings;
    parts.node = process_.node();
    parts.local_addr = name_;
    parts.driver = process_.take_driver();
    parts.round_store = [this](std::string prefix) {
      return std::shared_ptr<store::Store>(
          store::make_prefix_store(std::move(prefix), process_.store()));
    };
    parts.shares_store = [] { return true; };
    parts.bootstrap_port = [this]() -> Result<int> {
      if (server_count_ == 0) ++server_count_;
      return port_;
    };
    parts.free_port = []() -> Result<int> { return 1; };
    handler_ = make_dynamic_handler(*environment_, std::move(parts));
  }

  World& world_;
  Process& process_;
  const std::string name_;
  const int port_;
  int server_count_ = 0;
  std::unique_ptr<Environment> environment_;
  std::unique_ptr<Handler> handler_;
  std::optional<Result<Info>> info_;
  TaskScope calls_;
};

class Bootstrap : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    WorldOptions options;
    options.kind = GetParam();
    options.settings.run_id = "run";
    options.settings.min_nodes = 2;
    options.settings.max_nodes = 3;
    options.settings.timeouts.last_call = 1s;
    world_ = std::make_unique<World>(options);
  }
  void TearDown() override {
    for (const std::string& fault : world_->ledger().faults()) ADD_FAILURE() << fault;
    nodes_.clear();
  }

  World& world() { return *world_; }
  HandlerNode& add(const std::string& name, int port) {
    return *nodes_.emplace_back(std::make_unique<HandlerNode>(world(), name, port));
  }
  bool run_until_in(const std::vector<HandlerNode*>& nodes, Duration limit) {
    return world().run_until(
        [&] {
          for (const HandlerNode* node : nodes) {
            if (!node->is_in()) return false;
          }
          return true;
        },
        limit);
  }

 private:
  const tests::LogCapture log_{log::Level::Error};
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<HandlerNode>> nodes_;
};

INSTANTIATE_TEST_SUITE_P(WithEveryDriver, Bootstrap, ::testing::ValuesIn(kKinds),
                         [](const auto& instance) { return word_for(instance.param); });

// 111
TEST_P(Bootstrap, IsTheSameForAllMembers) {
  HandlerNode& first = add("a", 1001);
  HandlerNode& second = add("b", 1002);
  first.begin_join();
  second.begin_join();
  ASSERT_TRUE(run_until_in({&first, &second}, 10s));
  EXPECT_EQ(first.info().bootstrap, (StoreInfo{"a", 1001}));
  EXPECT_EQ(second.info().bootstrap, (StoreInfo{"a", 1001}));
  EXPECT_EQ(first.info().round, second.info().round);
}

// 124
TEST_P(Bootstrap, MovesWithRankZeroWhenThatDies) {
  HandlerNode& first = add("a", 1001);
  HandlerNode& second = add("b", 1002);
  first.begin_join();
  second.begin_join();
  ASSERT_TRUE(run_until_in({&first, &second}, 10s));
  first.die(sim::Crash::Silent);
  HandlerNode& newcomer = add("c", 1003);
  newcomer.begin_join();
  ASSERT_TRUE(world().run_until([&] { return second.status().waiting == 1; }, 30s));
  second.begin_join();
  ASSERT_TRUE(world().run_until([&] { return second.is_in() && newcomer.is_in(); }, 30s));
  EXPECT_EQ(second.info().bootstrap, (StoreInfo{"b", 1002}));
  EXPECT_EQ(newcomer.info().bootstrap, (StoreInfo{"b", 1002}));
}

// 125
TEST_P(Bootstrap, ReachesANewcomerInItsFirstRound) {
  HandlerNode& first = add("a", 1001);
  HandlerNode& second = add("b", 1002);
  first.begin_join();
  second.begin_join();
  ASSERT_TRUE(run_until_in({&first, &second}, 10s));
  HandlerNode& newcomer = add("c", 1003);
  newcomer.begin_join();
  ASSERT_TRUE(world().run_until([&] { return first.status().waiting == 1; }, 10s));
  first.begin_join();
  second.begin_join();
  ASSERT_TRUE(run_until_in({&first, &second, &newcomer}, 10s));
  for (HandlerNode* node : {&first, &second, &newcomer}) {
    EXPECT_EQ(node->info().bootstrap, (StoreInfo{"a", 1001}));
  }
  EXPECT_EQ(first.server_count(), 1) << "the server of rank 0 is the same in every round";
  EXPECT_EQ(second.server_count(), 0);
}

// What rank 0 had said was lost with the store's memory before all had heard it.
TEST_P(Bootstrap, IsFoundEvenIfTheStoreForgetsItAtOnce) {
  HandlerNode& first = add("a", 1001);
  HandlerNode& second = add("b", 1002);
  HandlerNode& third = add("c", 1003);
  for (HandlerNode* node : {&first, &second, &third}) node->begin_join();
  // Complete, and the news is under way.
  ASSERT_TRUE(world().run_until([&] { return world().state().complete; }, 10s));
  world().network().cut_one_way(second.host(), world().server().host());
  ASSERT_TRUE(run_until_in({&first, &third}, 10s));
  world().kill_server(sim::Crash::Loud);
  world().restart_server();
  world().network().heal_all();
  // The agents do what agents do.
  const auto follow = [](HandlerNode& node) {
    const Status status = node.status();
    if (node.is_in() && (status.waiting > 0 || status.lost || !status.member)) node.begin_join();
  };
  ASSERT_TRUE(world().run_until(
      [&] {
        follow(first);
        follow(third);
        return second.is_in();
      },
      2min));
}

}  // namespace
}  // namespace muster::rendezvous::testing
