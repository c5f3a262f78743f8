// Gathers of real agents that go on after one has failed, as workers were started again or have
// come since.

#include "muster/rpc/faults.h"
#include "muster/rpc/gather.h"
#include "muster/rpc/network_agent.h"
#include "tests/rpc/cluster.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::options_for;
using testing::start_static_group;
using testing::StoreHost;
using testing::Worker;

using Outcome = CallResult<Gather::Values>;
using Waiting = std::future<Outcome>;
using Probe = void();

// Only a hang takes so long.
constexpr double kHangSeconds = 30;

// Whether it waits: the leader has its call, and answers others.
void expect_to_wait(Worker& worker, const std::string& leader) {
  while (worker.agent->calls().active_count() == 0) std::this_thread::yield();
  EXPECT_TRUE(worker.call<Probe>(leader, "probe"));
}

void prepare(Worker& worker) {
  ASSERT_TRUE(worker.functions.add("probe", [] {}));
}

class GatherRestartTest : public ::testing::Test {
 protected:
  void start(int count) {
    workers = start_static_group(store, count, {}, prepare);
    for (const auto& worker : workers) names.push_back(worker->agent->self().name());
  }
  void start_again(std::size_t rank) {
    auto again = std::make_unique<Worker>();
    prepare(*again);
    const AgentOptions options = options_for(names[rank], static_cast<std::int64_t>(rank),
                                             static_cast<std::int64_t>(names.size()));
    ASSERT_TRUE(again->start(options, store, 60s));
    workers[rank] = std::move(again);
  }
  Waiting come(std::size_t rank, double seconds = kHangSeconds) {
    Worker* const worker = workers[rank].get();
    return std::async(std::launch::async, [this, worker, seconds] {
      return worker->gather->all(*worker->agent, names, worker->agent->self().name(), seconds);
    });
  }
  void expect_gathers(int count) {
    for (int round = 0; round < count; ++round) {
      std::vector<Waiting> waiting;
      for (std::size_t rank = 0; rank < workers.size(); ++rank) waiting.push_back(come(rank));
      for (auto& one : waiting) {
        const Outcome outcome = one.get();
        ASSERT_TRUE(outcome) << outcome.error().message;
        EXPECT_EQ(outcome->size(), names.size());
      }
    }
  }
  // Who has not heard of the failure of the others yet hears of it now, and tries again.
  void expect_to_meet() {
    std::vector<std::future<bool>> meeting;
    for (std::size_t rank = 0; rank < workers.size(); ++rank) {
      meeting.push_back(std::async(std::launch::async, [this, rank] {
        return come(rank).get().has_value() || come(rank).get().has_value();
      }));
    }
    for (auto& one : meeting) EXPECT_TRUE(one.get());
  }
  static void expect_error_with(const std::string& name, Waiting waiting) {
    const Outcome outcome = waiting.get();
    ASSERT_FALSE(outcome);
    EXPECT_NE(outcome.error().message.find(name), std::string::npos) << outcome.error().message;
  }

  StoreHost store;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Worker>> workers;
};

TEST_F(GatherRestartTest, GoesOnAfterTheFirstGatherFailedAsAWorkerDied) {
  start(3);
  Waiting first = come(0);
  Waiting second = come(1);
  expect_to_wait(*workers[1], "worker0");
  workers[2]->stop();
  expect_error_with("worker2", std::move(first));
  expect_error_with("worker2", std::move(second));
  start_again(2);
  // The leader has heard of it before the others come again.
  while (!workers[0]->call<Probe>("worker2", "probe")) std::this_thread::yield();
  expect_gathers(2);
}

// The leader has other things to do, and does not come.
TEST_F(GatherRestartTest, TellsWhoWaitsOfADeathThoughTheLeaderHasNotCome) {
  for (const int earlier_count : {0, 1}) {
    SCOPED_TRACE(earlier_count);
    names.clear();
    workers.clear();
    start(4);
    expect_gathers(earlier_count);
    Waiting first = come(1);
    Waiting second = come(2);
    expect_to_wait(*workers[1], "worker0");
    expect_to_wait(*workers[2], "worker0");
    workers[3]->stop();
    expect_error_with("worker3", std::move(first));
    expect_error_with("worker3", std::move(second));
    start_again(3);
    expect_to_meet();
    expect_gathers(2);
  }
}

TEST_F(GatherRestartTest, GoesOnAfterTheFirstGatherFailedAsTheLeaderDied) {
  start(3);
  Waiting first = come(1);
  Waiting second = come(2);
  expect_to_wait(*workers[1], "worker0");
  expect_to_wait(*workers[2], "worker0");
  workers[0]->stop();
  expect_error_with("worker0", std::move(first));
  expect_error_with("worker0", std::move(second));
  start_again(0);
  expect_gathers(2);
}

TEST_F(GatherRestartTest, GoesOnWithOneThatHasGivenUpBeforeTheOthersCame) {
  start(3);
  expect_gathers(1);
  EXPECT_FALSE(come(1, 0.01).get());
  Waiting next = come(1);
  expect_to_wait(*workers[1], "worker0");
  // It may have come before its time was over.
  Waiting late[] = {come(0), come(2)};
  EXPECT_EQ(late[0].get().has_value(), late[1].get().has_value());
  Waiting others[] = {come(0), come(2)};
  for (Waiting& one : others) EXPECT_TRUE(one.get());
  EXPECT_TRUE(next.get());
  expect_gathers(1);
}

// ---- dynamic groups -----------------------------------------------------------------------------

class GatherEveryoneRestartTest : public ::testing::Test {
 protected:
  Worker& join(const std::string& name, std::int64_t id, const std::string& faults = "") {
    auto worker = std::make_unique<Worker>();
    prepare(*worker);
    AgentOptions options = options_for(name, id, std::nullopt);
    if (!faults.empty()) options.faults = parse_faults(faults).value();
    EXPECT_TRUE(worker->start(options, store, 60s));
    workers[name] = std::move(worker);
    return *workers[name];
  }
  static Waiting come(Worker& worker, double seconds = kHangSeconds) {
    return std::async(std::launch::async, [&worker, seconds] {
      return worker.gather->everyone(*worker.agent, "", seconds);
    });
  }
  void expect_gathers(int count) {
    for (int round = 0; round < count; ++round) {
      std::vector<Waiting> waiting;
      for (const auto& [name, worker] : workers) waiting.push_back(come(*worker));
      for (auto& one : waiting) {
        const Outcome outcome = one.get();
        ASSERT_TRUE(outcome) << outcome.error().message;
        EXPECT_EQ(outcome->size(), workers.size());
      }
    }
  }

  StoreHost store;
  std::map<std::string, std::unique_ptr<Worker>> workers;
};

TEST_F(GatherEveryoneRestartTest, GoesOnWithANewcomerAfterTheFirstGatherFailed) {
  Worker& a = join("a", 0);
  Worker& b = join("b", 1);
  join("c", 2);
  Waiting second = come(b);
  expect_to_wait(b, "a");
  EXPECT_FALSE(come(a, 0.01).get());
  EXPECT_FALSE(second.get());
  workers.erase("c");
  join("d", 3);
  expect_gathers(2);
}

TEST_F(GatherEveryoneRestartTest, GoesOnAfterTheFirstGatherFailedAsTheLeaderDied) {
  join("a", 0);
  Worker& b = join("b", 1);
  Worker& c = join("c", 2);
  Waiting first = come(b);
  Waiting second = come(c);
  expect_to_wait(b, "a");
  expect_to_wait(c, "a");
  workers.erase("a");
  EXPECT_FALSE(first.get());
  EXPECT_FALSE(second.get());
  join("a", 3);
  expect_gathers(2);
}

// Its answers are lost with their connections, and then it leaves.
TEST_F(GatherEveryoneRestartTest, IsHeardOfThoughTheLeaderLeavesAndConnectionsAreCut) {
  Worker& b = join("b", 1);
  Worker& c = join("c", 2);
  for (int round = 0; round < 10; ++round) {
    SCOPED_TRACE(round);
    Worker& a = join("a", 0, fmt::format("seed={} disconnect:SCRIPT_RET:p=0.5", round));
    Waiting waiting[] = {come(b), come(c), come(a)};
    const Outcome leader = waiting[2].get();
    ASSERT_TRUE(leader) << leader.error().message;
    a.gather->part(*a.agent);
    workers.erase("a");
    for (Waiting* const one : {&waiting[0], &waiting[1]}) {
      const Outcome outcome = one->get();
      ASSERT_TRUE(outcome) << outcome.error().message;
      EXPECT_EQ(*outcome, *leader);
    }
    while (b.agent->workers().size() > 2 || c.agent->workers().size() > 2) {
      std::this_thread::yield();
    }
  }
}

// ---- a leader that nobody reaches ---------------------------------------------------------------

// Nothing can be sent to the leader, which is another process whenever one looks, until there is
// none.
class ChangingAgent final : public Agent {
 public:
  explicit ChangingAgent(int change_count) : changes_left_(change_count) {}

  const WorkerInfo& self() const override { return self_; }
  CallResult<WorkerInfo> find(std::string_view) const override { return self_; }
  CallResult<WorkerInfo> find(std::int64_t) const override { return self_; }
  std::vector<WorkerInfo> workers() const override {
    if (changes_left_ <= 0) return {self_};
    return {leader_, self_};
  }
  std::uint64_t process_of(std::string_view name) const override {
    return name == self_.name() ? 1 : static_cast<std::uint64_t>(100 + changes_left_);
  }
  void submit(std::string_view, Message, std::optional<double>,
              std::unique_ptr<CallSink> sink) override {
    --changes_left_;
    calls_.refuse(std::move(sink), {CallErrorKind::Unreachable, "nobody is there", "", false});
  }
  Future<Message> send_with_retries(std::string_view, Message, RetryOptions) override {
    return Promise<Message>().future();
  }
  Duration timeout() const override { return Duration::zero(); }
  void set_timeout(Duration) override {}
  Pool& callbacks() override { return callbacks_; }
  Calls& calls() override { return calls_; }
  void shutdown() override {}
  std::map<std::string, std::string> metrics() const override { return {}; }

 private:
  const WorkerInfo self_ = WorkerInfo::create_member("b", 1).value();
  const WorkerInfo leader_ = WorkerInfo::create_member("a", 0).value();
  int changes_left_;
  Pool callbacks_{"callbacks", 1};
  Calls calls_{[] {}};
};

TEST(GatherDisagreement, IsOverWhenTheLeaderChanges) {
  Functions functions;
  Gather gather(functions, {.disagreement_max = 1ns});
  ChangingAgent agent(3);
  const auto outcome = gather.everyone(agent, "x", std::nullopt);
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_EQ(*outcome, (Gather::Values{{"b", "x"}}));
}

}  // namespace
}  // namespace muster::rpc
