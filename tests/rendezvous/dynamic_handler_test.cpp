#include "muster/rendezvous/dynamic_handler.h"

#include "muster/rendezvous/shared_driver.h"
#include "muster/rendezvous/state_codec.h"
#include "muster/sim/loop.h"
#include "muster/store/memory_store.h"
#include "muster/store/prefix_store.h"
#include "tests/rendezvous/fake_backend.h"
#include "tests/rendezvous/faulty_store.h"
#include "tests/rendezvous/states.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

using namespace std::chrono_literals;
using testing::FakeBackend;
using testing::FakeRun;
using testing::FaultyStore;
using testing::node;

// The numbers in comments are the rows of the specification.
Settings limits(std::int64_t min_nodes, std::int64_t max_nodes) {
  Settings settings;
  settings.run_id = "run";
  settings.min_nodes = min_nodes;
  settings.max_nodes = max_nodes;
  return settings;
}

class Events final : public EventSink {
 public:
  void record(const Event& event) override { all.push_back(event); }
  std::vector<Event> all;
};

template <typename T>
Task<void> keep(Task<Result<T>> task, std::optional<Result<T>>& result) {
  auto outcome = co_await task;
  result.emplace(std::move(outcome));
}

// One agent's handler over a fake backend and a store that all share.
class Agent {
 public:
  Agent(sim::Loop& loop, FakeRun& run, store::Store& shared, std::string_view name,
        Settings settings)
      : backend(run), store(shared), environment_{loop, random_, &events} {
    DynamicHandlerParts parts;
    parts.backend = "fake";
    parts.settings = settings;
    parts.node = node(name);
    parts.local_addr = std::string(name) + ".local";
    parts.master_endpoint = "store:29400";
    SharedDriverOptions options;
    options.jitter_max = 0s;
    parts.driver = make_shared_driver(loop, random_, backend, settings, parts.node, options);
    parts.round_store = [this](std::string prefix) {
      return std::shared_ptr<store::Store>(store::make_prefix_store(std::move(prefix), store));
    };
    parts.shares_store = [this] { return shares; };
    parts.bootstrap_port = [this]() -> Result<int> {
      if (!bootstrap_failure.empty()) return fail(ErrorKind::Unavailable, bootstrap_failure);
      if (server_count == 0) ++server_count;
      return port;
    };
    parts.free_port = [this]() -> Result<int> { return ++free_port; };
    handler = make_dynamic_handler(environment_, std::move(parts));
  }

  void join() {
    info.reset();
    calls_.start(keep(handler->next_rendezvous(), info));
  }
  bool joined() const { return info && *info; }
  void die() {
    calls_.cancel_all();
    handler.reset();
  }

  FakeBackend backend;
  FaultyStore store;
  Events events;
  bool shares = true;
  int port = 1000;
  int free_port = 2000;
  int server_count = 0;
  std::string bootstrap_failure;

 private:
  Random random_{7};
  Environment environment_;

 public:
  std::unique_ptr<Handler> handler;
  std::optional<Result<Info>> info;

 private:
  TaskScope calls_;
};

class DynamicHandlerTest : public ::testing::Test {
 protected:
  Agent& add(std::string_view name, Settings settings) {
    agents_.push_back(std::make_unique<Agent>(loop, run, *memory, name, std::move(settings)));
    agents_.back()->port += static_cast<int>(agents_.size());
    return *agents_.back();
  }
  void join_all(std::initializer_list<Agent*> agents) {
    for (Agent* agent : agents) agent->join();
    loop.advance(3s);
    for (Agent* agent : agents) {
      ASSERT_TRUE(agent->info);
      ASSERT_TRUE(*agent->info) << agent->info->error().message;
    }
  }
  State stored() { return *decode(run.stored()->blob); }
  template <typename T>
  T await(Task<T> task) {
    return loop.block_on(std::move(task));
  }

  tests::LogCapture log;
  sim::Loop loop;
  FakeRun run{loop};
  std::unique_ptr<store::Store> memory = store::make_memory_store(loop);
  std::vector<std::unique_ptr<Agent>> agents_;
};

TEST_F(DynamicHandlerTest, SaysWhatItIs) {
  Agent& a = add("a", limits(1, 1));
  EXPECT_EQ(a.handler->backend(), "fake");
  EXPECT_EQ(a.handler->run_id(), "run");
  // Creating it asks nobody for anything.
  loop.run_until_idle();
  EXPECT_EQ(a.backend.calls.gets + a.backend.calls.beats, 0);
}

TEST_F(DynamicHandlerTest, GivesEveryRoundAStoreOfItsOwn) {  // 94, 96
  Agent& a = add("dummy1", limits(3, 3));
  Agent& b = add("dummy2", limits(3, 3));
  Agent& c = add("this_node", limits(3, 3));
  join_all({&a, &b, &c});
  EXPECT_EQ((**c.info).rank, 2);
  EXPECT_EQ((**c.info).world_size, 3);
  ASSERT_TRUE(await((**c.info).store->set("k", "v")));
  EXPECT_EQ(*await(memory->try_get("torch.rendezvous.run.0/k")), "v");
  const auto first = (**a.info).store;
  for (std::uint64_t round = 1; round < 4; ++round) {
    join_all({&a, &b, &c});
    EXPECT_EQ((**a.info).round, round);
    EXPECT_FALSE(*await((**a.info).store->try_get("k")));
  }
  // An agent may still use the one of a round that it has left.
  EXPECT_EQ(*await(first->try_get("k")), "v");
}

TEST_F(DynamicHandlerTest, AgreesOnTheStoreOfRankZero) {  // 107, 109, 111
  Agent& a = add("a", limits(2, 2));
  Agent& b = add("b", limits(2, 2));
  join_all({&a, &b});
  EXPECT_EQ((**a.info).bootstrap, (StoreInfo{"a.local", 1001}));
  EXPECT_EQ((**b.info).bootstrap, (**a.info).bootstrap);
  join_all({&a, &b});
  EXPECT_EQ((**b.info).bootstrap, (StoreInfo{"a.local", 1001}));
  EXPECT_EQ(a.server_count, 1);
  EXPECT_EQ(b.server_count, 0);
}

TEST_F(DynamicHandlerTest, OffersAFreePortWhereItDoesNotHostTheStore) {  // 108, 110
  Agent& a = add("a", limits(2, 2));
  Agent& b = add("b", limits(2, 2));
  EXPECT_TRUE(a.handler->use_agent_store());
  a.shares = b.shares = false;
  EXPECT_FALSE(a.handler->use_agent_store());
  join_all({&a, &b});
  EXPECT_EQ((**a.info).bootstrap, (StoreInfo{"a.local", 2001}));
  EXPECT_EQ((**b.info).bootstrap, (StoreInfo{"a.local", 2001}));
  EXPECT_EQ(a.server_count + b.server_count, 0);
  // Asked for in every round.
  join_all({&a, &b});
  EXPECT_EQ((**b.info).bootstrap, (StoreInfo{"a.local", 2002}));
}

TEST_F(DynamicHandlerTest, FollowsRankZeroFromRoundToRound) {  // D3, 124, 125
  Agent& m = add("m", limits(1, 2));
  m.join();
  loop.advance(31s);
  ASSERT_TRUE(m.joined());
  EXPECT_EQ((**m.info).bootstrap.master_addr, "m.local");
  // A newcomer that becomes rank 0.
  Agent& a = add("a", limits(1, 2));
  a.join();
  loop.advance(1s);
  m.join();
  loop.advance(1s);
  ASSERT_TRUE(a.joined() && m.joined());
  EXPECT_EQ((**a.info).rank, 0);
  EXPECT_EQ((**m.info).bootstrap, (StoreInfo{"a.local", 1002}));
  // Which dies: the survivor is rank 0 again, and another newcomer learns it.
  a.die();
  loop.advance(30s);
  EXPECT_TRUE(m.handler->status().lost);
  Agent& z = add("z", limits(1, 2));
  z.join();
  loop.advance(1s);
  m.join();
  loop.advance(1s);
  ASSERT_TRUE(z.joined() && m.joined());
  EXPECT_EQ((**z.info).bootstrap, (StoreInfo{"m.local", 1001}));
  EXPECT_EQ((**m.info).bootstrap, (**z.info).bootstrap);
}

TEST_F(DynamicHandlerTest, JoinsTheNextRoundWhenRankZeroDiesBeforeItSaysAnything) {
  Agent& a = add("a", limits(1, 2));
  Agent& b = add("b", limits(1, 2));
  a.store.unreachable = true;  // it joins, and then nothing more is heard of it
  a.join();
  b.join();
  loop.advance(100ms);
  a.die();
  EXPECT_FALSE(b.info);
  loop.advance(2min);
  ASSERT_TRUE(b.joined());
  EXPECT_EQ((**b.info).rank, 0);
  EXPECT_EQ((**b.info).world_size, 1);
  EXPECT_GE((**b.info).round, 1U);
}

TEST_F(DynamicHandlerTest, LeavesARoundInWhichItCannotTakePart) {  // D13
  Agent& a = add("a", limits(1, 1));
  a.bootstrap_failure = "no port can be had";
  a.join();
  loop.run_until_idle();
  ASSERT_TRUE(a.info && !*a.info);
  EXPECT_EQ(a.info->error().message, "no port can be had");
  EXPECT_TRUE(stored().participants.empty());
  const int beats = a.backend.calls.beats;
  loop.advance(1min);
  EXPECT_EQ(a.backend.calls.beats, beats);
}

TEST_F(DynamicHandlerTest, GivesASpareTimeToLearnTheAddress) {
  Settings settings = limits(2, 2);
  settings.timeouts.join = 1min;
  Agent& a = add("a", settings);
  Agent& b = add("b", settings);
  Agent& s = add("s", settings);
  join_all({&a, &b});
  s.join();
  loop.advance(1h);  // far behind its first deadline
  EXPECT_FALSE(s.info);
  ASSERT_TRUE(await(b.handler->leave()));
  loop.advance(1s);
  a.join();
  loop.advance(1s);
  ASSERT_TRUE(s.info);
  ASSERT_TRUE(*s.info) << s.info->error().message;
  EXPECT_EQ((**s.info).bootstrap.master_addr, "a.local");
}

TEST_F(DynamicHandlerTest, RefusesASecondJoinWhileOneRuns) {
  Agent& a = add("a", limits(2, 2));
  a.join();
  loop.advance(1s);
  const auto second = await(a.handler->next_rendezvous());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, ErrorKind::Invalid);
  // One that was given up does not count.
  a.die();
  Agent& b = add("b", limits(1, 1));
  {
    TaskScope scope;
    std::optional<Result<Info>> info;
    b.backend.delay = 1s;
    scope.start(keep(b.handler->next_rendezvous(), info));
  }
  b.backend.delay = 0s;
  run.forget();
  EXPECT_TRUE(await(b.handler->next_rendezvous()));
}

TEST_F(DynamicHandlerTest, KnowsWhetherTheRunIsClosed) {  // 97, 98
  Agent& a = add("a", limits(1, 1));
  EXPECT_FALSE(*await(a.handler->is_closed()));
  EXPECT_EQ(a.backend.calls.gets, 1);
  ASSERT_TRUE(await(a.handler->set_closed()));
  ASSERT_TRUE(await(a.handler->set_closed()));
  EXPECT_TRUE(*await(a.handler->is_closed()));
  EXPECT_TRUE(*await(a.handler->shutdown()));
  EXPECT_TRUE(*await(a.handler->shutdown()));
}

TEST_F(DynamicHandlerTest, StopsItsHeartbeatsAndClosesWhenItShutsDown) {  // 98, 105
  Agent& a = add("a", limits(1, 1));
  join_all({&a});
  EXPECT_TRUE(*await(a.handler->shutdown()));
  EXPECT_TRUE(stored().closed);
  const int beats = a.backend.calls.beats;
  loop.advance(1min);
  EXPECT_EQ(a.backend.calls.beats, beats);
}

TEST_F(DynamicHandlerTest, NeitherClosesNorLeavesWhenItIsDestroyed) {  // 105
  Agent& a = add("a", limits(1, 1));
  join_all({&a});
  a.handler.reset();
  const int beats = a.backend.calls.beats;
  loop.advance(1min);
  EXPECT_EQ(a.backend.calls.beats, beats);
  EXPECT_FALSE(stored().closed);
  EXPECT_EQ(stored().participants.size(), 1U);
}

TEST_F(DynamicHandlerTest, LeavesWithoutClosing) {
  Agent& a = add("a", limits(1, 1));
  join_all({&a});
  ASSERT_TRUE(await(a.handler->leave()));
  EXPECT_FALSE(stored().closed);
  EXPECT_TRUE(stored().participants.empty());
  const int beats = a.backend.calls.beats;
  loop.advance(1min);
  EXPECT_EQ(a.backend.calls.beats, beats);
}

TEST_F(DynamicHandlerTest, CountsThoseWhoWait) {  // 102
  Agent& a = add("a", limits(1, 3));
  a.join();
  loop.advance(31s);
  ASSERT_TRUE(a.joined());
  Agent& b = add("b", limits(1, 3));
  Agent& c = add("c", limits(1, 3));
  b.join();
  c.join();
  loop.advance(2s);
  EXPECT_EQ(*await(a.handler->num_nodes_waiting()), 2);
  const auto status = await(a.handler->wait_status(Status(), loop.now() + 1s));
  ASSERT_TRUE(status);
  EXPECT_GE(status->waiting, 1);
}

TEST_F(DynamicHandlerTest, ReportsErrorsOfTheStoreAsEvents) {  // 100
  Agent& a = add("a", limits(1, 1));
  a.backend.failure = Error{ErrorKind::Unavailable, "the store is gone"};
  const auto expect_event = [&](std::string_view name) {
    ASSERT_FALSE(a.events.all.empty());
    const Event event = a.events.all.back();
    EXPECT_EQ(event.name, name);
    EXPECT_EQ(event.node_state, NodeState::Failed);
    EXPECT_EQ(event.error_trace, "the store is gone");
    a.events.all.clear();
  };
  EXPECT_EQ(await(a.handler->is_closed()).error(), *a.backend.failure);
  expect_event("is_closed");
  EXPECT_EQ(await(a.handler->num_nodes_waiting()).error(), *a.backend.failure);
  expect_event("num_nodes_waiting");
  EXPECT_EQ(await(a.handler->set_closed()).error(), *a.backend.failure);
  expect_event("set_closed");
  const auto shut = await(a.handler->shutdown());
  ASSERT_TRUE(shut);
  EXPECT_FALSE(*shut);
  expect_event("shutdown");
  EXPECT_EQ(log.warnings().size(), 1U);
}

TEST_F(DynamicHandlerTest, PassesAMistakeOnWhenItShutsDown) {  // 101
  Agent& a = add("a", limits(1, 1));
  a.backend.failure = Error{ErrorKind::Invalid, "a mistake"};
  const auto shut = await(a.handler->shutdown());
  ASSERT_FALSE(shut);
  EXPECT_EQ(shut.error(), *a.backend.failure);
  EXPECT_EQ(a.events.all.back().node_state, NodeState::Failed);
}

TEST_F(DynamicHandlerTest, RecordsItsJoins) {
  Agent& a = add("a", limits(1, 1));
  join_all({&a});
  ASSERT_EQ(a.events.all.size(), 2U);
  EXPECT_EQ(a.events.all[0].message, "a_1_0 attempts to join the next round of run 'run'");
  EXPECT_FALSE(a.events.all[0].rank);
  EXPECT_EQ(a.events.all[1].message, "a_1_0 joined round 0 of run 'run' as rank 0 of 1");
  EXPECT_EQ(a.events.all[1].rank, 0);
  EXPECT_EQ(a.events.all[1].local_id, 0);
  EXPECT_EQ(a.events.all[1].hostname, "a");
  EXPECT_EQ(a.events.all[1].master_endpoint, "store:29400");
  ASSERT_TRUE(await(a.handler->set_closed()));
  EXPECT_EQ(a.events.all.back().node_state, NodeState::Succeeded);
  const auto refused = await(a.handler->next_rendezvous());
  ASSERT_FALSE(refused);
  EXPECT_EQ(a.events.all.back().node_state, NodeState::Failed);
}

TEST_F(DynamicHandlerTest, EndsASpareWithSuccessAndALateNodeWithAnError) {  // 116
  Agent& a = add("a", limits(1, 1));
  join_all({&a});
  Agent& s = add("s", limits(1, 1));
  s.join();
  loop.advance(1s);
  ASSERT_TRUE(await(a.handler->set_closed()));
  loop.run_until_idle();
  ASSERT_TRUE(s.info && !*s.info);
  EXPECT_EQ(s.info->error().kind, ErrorKind::Finished);
  Agent& late = add("late", limits(1, 1));
  late.join();
  loop.run_until_idle();
  ASSERT_TRUE(late.info && !*late.info);
  EXPECT_EQ(late.info->error().kind, ErrorKind::Closed);
}

}  // namespace
}  // namespace muster::rendezvous
