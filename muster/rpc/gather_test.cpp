// Gathers of real agents: who is late or gone, and while workers are started again, come and go.

#include "muster/rpc/gather.h"

#include "muster/rpc/network_agent.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
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
using Add = std::int64_t(std::int64_t, std::int64_t);

// Only a hang takes so long.
constexpr double kHangSeconds = 60;

// Until the condition holds, which it does unless something hangs.
::testing::AssertionResult comes_true(const std::function<bool()>& holds) {
  const TimePoint deadline = SystemClock().now() + 60s;
  while (!holds()) {
    if (SystemClock().now() >= deadline) return ::testing::AssertionFailure() << "it never does";
    std::this_thread::yield();
  }
  return ::testing::AssertionSuccess();
}

void prepare(Worker& worker) {
  ASSERT_TRUE(worker.functions.add("add", [](std::int64_t a, std::int64_t b) { return a + b; }));
}

// Over TCP, and through shared memory.
class GatherTest : public ::testing::TestWithParam<bool> {
 protected:
  void start(int count) {
    const auto choose = [&](AgentOptions& options) { options.uses_shared_memory = GetParam(); };
    workers = start_static_group(store, count, choose, prepare);
    for (const auto& worker : workers) names.push_back(worker->agent->self().name());
  }
  // As one that is killed and started again.
  void start_again(std::size_t rank) {
    workers[rank]->stop();
    workers[rank] = start_another(rank);
  }
  // Likewise, while others wait for it: they give up on one that is gone for more than a second,
  // and to start another may take as long on a busy machine.
  void replace(std::size_t rank) {
    auto another = start_another(rank);
    workers[rank]->stop();
    replaced.push_back(std::exchange(workers[rank], std::move(another)));
  }
  std::unique_ptr<Worker> start_another(std::size_t rank) {
    auto another = std::make_unique<Worker>();
    prepare(*another);
    AgentOptions options = options_for(names[rank], static_cast<std::int64_t>(rank),
                                       static_cast<std::int64_t>(names.size()));
    options.uses_shared_memory = GetParam();
    EXPECT_TRUE(another->start(options, store, 60s));
    return another;
  }
  // Those who were connected with it have heard that the old one is gone.
  void let_others_hear_of(std::size_t rank) {
    for (const auto& worker : workers) {
      EXPECT_TRUE(
          comes_true([&] { return worker->call<Add>(names[rank], "add", 1, 2).has_value(); }));
    }
  }
  Waiting come(Worker& worker, std::string value, std::optional<double> seconds = kHangSeconds) {
    return std::async(std::launch::async, [this, &worker, value, seconds] {
      return worker.gather->all(*worker.agent, names, value, seconds);
    });
  }
  // That many have come to the leader, which holds their calls.
  void expect_held(int count) {
    const auto held = [&] { return workers[0]->agent->metrics().at("agent.server_active_calls"); };
    EXPECT_TRUE(comes_true([&] { return held() == std::to_string(count); })) << held();
  }
  // All of them bring their name and `what`, and get what the others brought.
  void expect_gather(const std::string& what) {
    std::vector<Waiting> waiting;
    for (const auto& worker : workers) {
      waiting.push_back(come(*worker, worker->agent->self().name() + what));
    }
    for (auto& one : waiting) expect_all(one.get(), what);
  }
  void expect_all(const Outcome& outcome, const std::string& what) {
    ASSERT_TRUE(outcome) << outcome.error().message;
    EXPECT_EQ(outcome->size(), names.size());
    for (const auto& [name, value] : *outcome) EXPECT_EQ(value, name + what);
  }
  void expect_graceful_end() {
    std::vector<std::future<CallResult<>>> waiting;
    for (const auto& worker : workers) {
      waiting.push_back(std::async(std::launch::async, [this, &worker] {
        return worker->gather->quiesce(*worker->agent, names, kHangSeconds);
      }));
    }
    for (auto& one : waiting) {
      const auto ended = one.get();
      EXPECT_TRUE(ended) << ended.error().message;
    }
  }
  // One was started again after so many gathers, and all go on together.
  void expect_to_go_on_after_a_restart(std::size_t rank, int earlier_count) {
    start(3);
    for (int round = 0; round < earlier_count; ++round) expect_gather(std::to_string(round));
    start_again(rank);
    let_others_hear_of(rank);
    // The one that comes first waits for the others, whoever it is.
    for (std::size_t first = 0; first < workers.size(); ++first) {
      const std::string what = "after " + names[first];
      expect_held(0);
      Waiting early = come(*workers[first], names[first] + what);
      if (first != 0) expect_held(1);
      // Those who make it wait answer calls meanwhile.
      EXPECT_EQ(workers[first]->call<Add>(names[(first + 1) % 3], "add", 1, 2).value(), 3);
      EXPECT_EQ(early.wait_for(0s), std::future_status::timeout) << names[first];
      std::vector<Waiting> late;
      for (std::size_t other = 0; other < workers.size(); ++other) {
        if (other != first) late.push_back(come(*workers[other], names[other] + what));
      }
      for (auto& one : late) expect_all(one.get(), what);
      expect_all(early.get(), what);
    }
    expect_gather("last");
    expect_graceful_end();
  }

  StoreHost store;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::unique_ptr<Worker>> replaced;  // of which a thread may not have heard it yet
};

TEST_P(GatherTest, WaitsForAWorkerThatWasStartedAgainAfterOneGather) {
  expect_to_go_on_after_a_restart(2, 1);
}

TEST_P(GatherTest, WaitsForAWorkerThatWasStartedAgainAfterThreeGathers) {
  expect_to_go_on_after_a_restart(2, 3);
}

TEST_P(GatherTest, WaitsForALeaderThatWasStartedAgainAfterOneGather) {
  expect_to_go_on_after_a_restart(0, 1);
}

TEST_P(GatherTest, WaitsForALeaderThatWasStartedAgainAfterThreeGathers) {
  expect_to_go_on_after_a_restart(0, 3);
}

TEST_P(GatherTest, EndsGracefullyAfterEveryWorkerWasStartedAgain) {
  start(3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    expect_gather("before");
    start_again(rank);
    let_others_hear_of(rank);
  }
  expect_graceful_end();
}

// The others have not heard of it: nobody has called it, nor has it called the leader, before.
TEST_P(GatherTest, WaitsForAWorkerOfWhichTheOthersHaveNotHeardYet) {
  start(3);
  expect_gather("before");
  start_again(2);
  expect_gather("after");
  start_again(1);
  expect_gather("after that");
}

// It came, died before the others did, and somebody else has its place now.
TEST_P(GatherTest, IsNotCompleteWithTheValueOfAProcessThatIsGone) {
  start(3);
  expect_gather("before");
  expect_held(0);
  Waiting leader = come(*workers[0], "worker0new");
  // It gives up when its worker ends; the leader has heard of it before.
  Waiting old = come(*workers[2], "worker2old");
  expect_held(1);
  replace(2);
  EXPECT_FALSE(old.get());
  let_others_hear_of(2);
  Waiting again = come(*workers[2], "worker2new");
  Waiting other = come(*workers[1], "worker1new");
  expect_all(again.get(), "new");
  expect_all(other.get(), "new");
  expect_all(leader.get(), "new");
}

// Several threads of each gather at once, with one set.
TEST_P(GatherTest, MovesEveryThreadToTheNewEra) {
  start(3);
  expect_gather("before");
  expect_held(0);
  std::vector<Waiting> waiting;
  const auto come_by_threads = [&](std::size_t rank) {
    for (int thread = 0; thread < 3; ++thread) {
      waiting.push_back(come(*workers[rank], names[rank] + "x"));
    }
  };
  come_by_threads(0);
  come_by_threads(1);
  expect_held(3);
  replace(2);
  come_by_threads(2);
  for (auto& one : waiting) expect_all(one.get(), "x");
  expect_gather("after");
}

TEST_P(GatherTest, RemembersAllEndsThatOneWorkerHasNotHeardOf) {
  const auto choose = [&](AgentOptions& options) {
    options.uses_shared_memory = GetParam();
    options.faults = parse_faults("seed=5 disconnect:SCRIPT_RET:p=0.3").value();
  };
  workers = start_static_group(store, 2, choose, prepare);
  names = {"worker0", "worker1"};
  for (int round = 0; round < 10; ++round) {
    std::vector<Waiting> waiting;
    for (int thread = 0; thread < 4; ++thread) {
      for (const auto& worker : workers) {
        waiting.push_back(come(*worker, worker->agent->self().name()));
      }
    }
    for (auto& one : waiting) expect_all(one.get(), "");
  }
}

TEST_P(GatherTest, GoesOnInStepAfterOneHasGivenUp) {
  start(2);
  expect_gather("before");
  EXPECT_FALSE(come(*workers[1], "worker1late", 0.5).get()) << "nobody else came";
  // It had come when the leader does.
  expect_all(come(*workers[0], "worker0late").get(), "late");
  expect_gather("after");
  EXPECT_FALSE(come(*workers[0], "", 0.01).get());
  EXPECT_FALSE(come(*workers[1], "").get()) << "the leader has given up";
  expect_gather("last");
}

// S173, as far as a gather tells.
TEST_P(GatherTest, SaysWhoCannotComeAnyMore) {
  start(3);
  workers[2]->agent->shutdown();
  std::vector<Waiting> waiting;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    waiting.push_back(come(*workers[rank], "", std::nullopt));
  }
  for (auto& one : waiting) {
    const auto values = one.get();
    ASSERT_FALSE(values);
    EXPECT_NE(values.error().message.find("worker2"), std::string::npos);
  }
}

// S163, of the leader.
TEST_P(GatherTest, SaysWhoIsLate) {
  start(2);
  const auto values = come(*workers[0], "", 0.1).get();
  ASSERT_FALSE(values);
  EXPECT_NE(values.error().message.find("timed out in _all_gather after 0.10 seconds"),
            std::string::npos)
      << values.error().message;
}

// S163, of those who follow it.
TEST_P(GatherTest, WaitsForTheLeaderNoLongerThanItWasTold) {
  start(3);
  std::vector<Waiting> waiting;
  for (std::size_t rank = 1; rank < 3; ++rank) waiting.push_back(come(*workers[rank], "", 0.1));
  for (auto& one : waiting) {
    const auto values = one.get();
    ASSERT_FALSE(values);
    EXPECT_EQ(values.error().kind, CallErrorKind::Timeout);
    EXPECT_NE(values.error().message.find("RPC ran for more than"), std::string::npos)
        << values.error().message;
  }
}

INSTANTIATE_TEST_SUITE_P(Way, GatherTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "SharedMemory" : "Tcp"; });

// ---- dynamic groups -----------------------------------------------------------------------------

class GatherEveryoneTest : public ::testing::Test {
 protected:
  Worker& join(const std::string& name, std::int64_t id) {
    auto worker = std::make_unique<Worker>();
    prepare(*worker);
    EXPECT_TRUE(worker->start(options_for(name, id, std::nullopt), store, 60s));
    workers.push_back(std::move(worker));
    return *workers.back();
  }
  // As rpc::shutdown does.
  static void leave(Worker& worker) {
    worker.gather->part(*worker.agent);
    worker.stop();
  }
  static void expect_members(Worker& worker, std::size_t count) {
    EXPECT_TRUE(comes_true([&] { return worker.agent->workers().size() == count; }));
  }
  static Waiting come(Worker& worker) {
    return std::async(std::launch::async, [&worker] {
      return worker.gather->everyone(*worker.agent, worker.agent->self().name(), kHangSeconds);
    });
  }
  static void expect_names(const Outcome& outcome, const std::vector<std::string>& names) {
    ASSERT_TRUE(outcome) << outcome.error().message;
    std::vector<std::string> came;
    for (const auto& [name, value] : *outcome) {
      came.push_back(name);
      EXPECT_EQ(value, name);
    }
    EXPECT_EQ(came, names);
  }
  static void expect_gather(std::vector<Worker*> some) {
    std::vector<Waiting> waiting;
    std::vector<std::string> names;
    for (Worker* const worker : some) {
      waiting.push_back(come(*worker));
      names.push_back(worker->agent->self().name());
    }
    std::sort(names.begin(), names.end());
    for (auto& one : waiting) expect_names(one.get(), names);
  }
  // Whether it waits: it has said so to the leader, which answers calls.
  static void expect_to_wait(Worker& worker, Waiting& waiting, const std::string& leader) {
    EXPECT_TRUE(comes_true([&] { return worker.agent->calls().active_count() > 0; }));
    EXPECT_EQ(worker.call<Add>(leader, "add", 1, 2).value(), 3);
    EXPECT_EQ(waiting.wait_for(0s), std::future_status::timeout);
  }

  StoreHost store;
  std::vector<std::unique_ptr<Worker>> workers;
};

TEST_F(GatherEveryoneTest, WaitsForOneThatLeftAndCameBack) {
  Worker& a = join("a", 0);
  Worker* b = &join("b", 1);
  for (int rounds = 1; rounds <= 3; rounds += 2) {
    for (int round = 0; round < rounds; ++round) expect_gather({&a, b});
    leave(*b);
    expect_members(a, 1);
    expect_gather({&a});
    b = &join("b", 1);
    Waiting first = come(*b);
    expect_to_wait(*b, first, "a");
    Waiting second = come(a);
    expect_names(first.get(), {"a", "b"});
    expect_names(second.get(), {"a", "b"});
  }
}

TEST_F(GatherEveryoneTest, WaitsForALeaderThatLeftAndCameBack) {
  Worker* a = &join("a", 0);
  Worker& b = join("b", 1);
  for (int rounds = 1; rounds <= 3; rounds += 2) {
    for (int round = 0; round < rounds; ++round) expect_gather({a, &b});
    leave(*a);
    expect_members(b, 1);
    expect_gather({&b});
    a = &join("a", 0);
    Waiting first = come(b);
    expect_to_wait(b, first, "a");
    Waiting second = come(*a);
    expect_names(first.get(), {"a", "b"});
    expect_names(second.get(), {"a", "b"});
  }
}

TEST_F(GatherEveryoneTest, WaitsForOneThatJoinsMeanwhile) {
  Worker& a = join("a", 0);
  Worker& b = join("b", 1);
  expect_gather({&a, &b});
  Waiting first = come(a);
  Worker& c = join("c", 2);
  Waiting second = come(b);
  Waiting third = come(c);
  for (Waiting* const one : {&first, &second, &third}) expect_names(one->get(), {"a", "b", "c"});
  first = come(b);
  expect_to_wait(b, first, "a");
  Worker& d = join("d", 3);
  second = come(a);
  third = come(c);
  Waiting fourth = come(d);
  for (Waiting* const one : {&first, &second, &third, &fourth}) {
    expect_names(one->get(), {"a", "b", "c", "d"});
  }
}

TEST_F(GatherEveryoneTest, WaitsForANewcomerThatLeadsFromThenOn) {
  Worker& b = join("b", 1);
  Worker& c = join("c", 2);
  expect_gather({&b, &c});
  Waiting first = come(b);
  Waiting second = come(c);
  expect_names(first.get(), {"b", "c"});
  expect_names(second.get(), {"b", "c"});
  first = come(c);
  expect_to_wait(c, first, "b");
  Worker& a = join("a", 0);
  second = come(b);
  Waiting third = come(a);
  for (Waiting* const one : {&first, &second, &third}) expect_names(one->get(), {"a", "b", "c"});
  expect_gather({&a, &b, &c});
}

TEST_F(GatherEveryoneTest, WaitsNoLongerForOneThatLeaves) {
  Worker& a = join("a", 0);
  Worker& b = join("b", 1);
  Worker& c = join("c", 2);
  expect_gather({&a, &b, &c});
  Waiting first = come(a);
  Waiting second = come(b);
  expect_to_wait(b, second, "a");
  leave(c);
  expect_names(first.get(), {"a", "b"});
  expect_names(second.get(), {"a", "b"});
}

TEST_F(GatherEveryoneTest, WaitsNoLongerForALeaderThatLeaves) {
  Worker& a = join("a", 0);
  Worker& b = join("b", 1);
  Worker& c = join("c", 2);
  expect_gather({&a, &b, &c});
  Waiting first = come(b);
  expect_to_wait(b, first, "a");
  Waiting second = come(c);
  expect_to_wait(c, second, "a");
  leave(a);
  expect_names(first.get(), {"b", "c"});
  expect_names(second.get(), {"b", "c"});
}

// As programs end: the leader may be gone before the others have read what it answered.
TEST_F(GatherEveryoneTest, IsHeardOfByAllThoughTheLeaderLeavesAtOnce) {
  Worker& b = join("b", 1);
  Worker& c = join("c", 2);
  for (int round = 0; round < 5; ++round) {
    Worker& a = join("a", 0);
    Waiting first = come(b);
    Waiting second = come(c);
    expect_names(come(a).get(), {"a", "b", "c"});
    leave(a);
    expect_names(first.get(), {"a", "b", "c"});
    expect_names(second.get(), {"a", "b", "c"});
    expect_members(b, 2);
    expect_members(c, 2);
  }
}

TEST_F(GatherEveryoneTest, RefusesOneThatIsNotInTheGroupAnyMore) {
  Worker& a = join("a", 0);
  a.stop();
  const auto outcome = a.gather->everyone(*a.agent, "", std::nullopt);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Rejected);
}

}  // namespace
}  // namespace muster::rpc
