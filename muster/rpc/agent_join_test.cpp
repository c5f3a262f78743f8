// How an agent comes to its group when the store makes trouble, in simulated time.
#include "muster/rpc/agent_core.h"
#include "muster/rpc/group_store.h"
#include "muster/sim/loop.h"
#include "tests/rendezvous/faulty_store.h"
#include "tests/rpc/chaotic_store.h"
#include "tests/rpc/group_workers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using rendezvous::testing::FaultyStore;
using testing::ChaoticStore;
using testing::member;

// An agent that nobody calls.
class Lonely final : public RequestHandler {
 public:
  explicit Lonely(sim::Loop& loop) : loop_(loop), core_(core_options(), loop, loop, *this) {}
  ~Lonely() override {
    scope_.cancel_all();
    core_.close({CallErrorKind::Rejected, "it is over", "", true});
  }
  void on_request(Request) override { FAIL() << "nobody calls it"; }

  void join(store::Store& store, std::optional<std::int64_t> world_size, TimePoint deadline) {
    GroupEntry entry(self_);
    entry.world_size = world_size;
    entry.deadline = deadline;
    scope_.start(keep(core_.join(store, std::move(entry))));
  }
  const std::optional<Result<>>& outcome() const { return outcome_; }
  TimePoint ended_at() const { return ended_at_; }

 private:
  CoreOptions core_options() {
    CoreOptions options(self_.info);
    options.incarnation = self_.incarnation;
    options.devices = std::make_shared<DeviceDirectory>(self_.info.name(), nullptr);
    return options;
  }
  Task<void> keep(Task<Result<>> joining) {
    Result<> joined = co_await joining;
    outcome_ = std::move(joined);
    ended_at_ = loop_.now();
  }

  sim::Loop& loop_;
  Member self_ = member("worker0", 0, 7);
  AgentCore core_;
  std::optional<Result<>> outcome_;
  TimePoint ended_at_;
  TaskScope scope_;
};

class AgentJoin : public ::testing::TestWithParam<bool> {
 protected:
  static std::optional<std::int64_t> world_size() {
    return GetParam() ? std::optional<std::int64_t>(1) : std::nullopt;
  }

  sim::Loop loop_;
  std::unique_ptr<store::Store> store_ = store::make_memory_store(loop_);
};

TEST_P(AgentJoin, GivesUpAtItsDeadlineWhenTheStoreFallsSilent) {
  ChaoticStore silent(loop_, *store_, 1);
  silent.delay_min = 10h;
  Lonely agent(loop_);
  const TimePoint deadline = loop_.now() + 5s;
  agent.join(silent, world_size(), deadline);
  loop_.run_until(deadline + 1s);
  ASSERT_TRUE(agent.outcome()) << "it waits for the store";
  ASSERT_FALSE(*agent.outcome());
  EXPECT_EQ(agent.outcome()->error().kind, ErrorKind::Timeout);
  EXPECT_EQ(agent.outcome()->error().message, "the store does not answer");
  EXPECT_EQ(agent.ended_at(), deadline);
}

// Nobody knows what became of the first words to it.
TEST_P(AgentJoin, SpeaksAgainToAStoreThatWasLostForAMoment) {
  for (const auto breaks : {FaultyStore::Break::Before, FaultyStore::Break::After}) {
    const auto inner = store::make_memory_store(loop_);
    FaultyStore faulty(*inner);
    faulty.compare_set_breaks = breaks;
    Lonely agent(loop_);
    agent.join(faulty, world_size(), loop_.now() + 60s);
    loop_.run_until(loop_.now() + 30s);
    ASSERT_TRUE(agent.outcome());
    EXPECT_TRUE(*agent.outcome()) << agent.outcome()->error().message;
  }
}

TEST(AgreeOnSecret, GivesEverybodyThatOfTheFirst) {
  for (const auto breaks :
       {FaultyStore::Break::Never, FaultyStore::Break::Before, FaultyStore::Break::After}) {
    sim::Loop loop;
    const auto inner = store::make_memory_store(loop);
    FaultyStore faulty(*inner);
    faulty.compare_set_breaks = breaks;
    EXPECT_EQ(loop.block_on(agree_on_secret(loop, faulty, "first", 1)).value(), "first");
    EXPECT_EQ(loop.block_on(agree_on_secret(loop, faulty, "second", 2)).value(), "first");
  }
}

TEST(AgreeOnSecret, GivesUpWhenTheStoreStaysAway) {
  sim::Loop loop;
  const auto inner = store::make_memory_store(loop);
  FaultyStore faulty(*inner);
  faulty.unreachable = true;
  const auto agreed = loop.block_on(agree_on_secret(loop, faulty, "mine", 1));
  ASSERT_FALSE(agreed);
  EXPECT_EQ(faulty.compare_set_count, StoreRetries::kFailuresMax + 1);
}

INSTANTIATE_TEST_SUITE_P(Kind, AgentJoin, ::testing::Bool(), [](const auto& kind) {
  return std::string(kind.param ? "Static" : "Dynamic");
});

}  // namespace
}  // namespace muster::rpc
