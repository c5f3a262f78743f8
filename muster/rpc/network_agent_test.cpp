#include "muster/rpc/network_agent.h"

#include "muster/rpc/call.h"
#include "muster/rpc/own_address.h"
#include "muster/rpc/texts.h"
#include "tests/rpc/cluster.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <thread>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::start_static_group;
using testing::StoreHost;
using testing::Worker;

// What opens when it is told to; for functions that must not end yet.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  // False if it was not opened in a time in which it certainly is.
  bool pass() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 60s, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

// Until it holds, or for so long that it never will; for what nobody is told of.
template <typename Holds>
bool comes_to(Holds holds) {
  const TimePoint deadline = SystemClock().now() + 60s;
  while (!holds() && SystemClock().now() < deadline) std::this_thread::yield();
  return holds();
}

const Procedure<std::int64_t()> kOwnId("own id");
const Procedure<void(std::int64_t)> kStore("store");

void add_functions(Worker& worker) {
  ASSERT_TRUE(worker.functions.add("add", [](std::int64_t a, std::int64_t b) { return a + b; }));
  ASSERT_TRUE(worker.functions.add(
      "add inline", [](std::int64_t a, std::int64_t b) { return a + b; }, {.run = Run::Inline}));
  ASSERT_TRUE(worker.functions.add("echo", [](std::vector<std::byte> bytes) { return bytes; }));
  ASSERT_TRUE(worker.functions.add(
      "throw", [](std::string text) -> std::int64_t { throw std::out_of_range(text); }));
  ASSERT_TRUE(worker.functions.add("who called", [] { return caller()->name(); }));
}

// Over TCP, and through shared memory.
class NetworkAgentTest : public ::testing::TestWithParam<bool> {
 protected:
  void start(int count, std::string_view faults = "") {
    const auto choose = [&](AgentOptions& options) {
      options.uses_shared_memory = GetParam();
      if (!faults.empty()) options.faults = parse_faults(faults).value();
    };
    workers = start_static_group(store, count, choose, add_functions);
  }
  static AgentOptions options_for(std::string name, std::int64_t id, std::int64_t world_size) {
    AgentOptions options = testing::options_for(std::move(name), id, world_size);
    options.uses_shared_memory = GetParam();
    return options;
  }
  StoreHost store;
  std::vector<std::unique_ptr<Worker>> workers;
};

using Add = std::int64_t(std::int64_t, std::int64_t);

// S36, S37.
TEST_P(NetworkAgentTest, KnowsAllWorkersOfItsGroup) {
  start(4);
  for (const auto& worker : workers) {
    const auto infos = worker->agent->workers();
    ASSERT_EQ(infos.size(), 4U);
    for (std::int16_t id = 0; id < 4; ++id) {
      EXPECT_EQ(infos[static_cast<std::size_t>(id)].name(), "worker" + std::to_string(id));
      EXPECT_EQ(worker->agent->find(id)->id(), id);
    }
  }
  const auto unknown = workers[0]->agent->find("nobody");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("could not find destination"), std::string::npos);
  EXPECT_FALSE(workers[0]->agent->find(4));
  EXPECT_FALSE(workers[0]->agent->find(-1));
}

// S60 by name, S62, S63.
TEST_P(NetworkAgentTest, CallsEveryWorkerAndItself) {
  start(3);
  for (const auto& worker : workers) {
    for (const WorkerInfo& to : worker->agent->workers()) {
      for (std::int64_t number = 0; number < 20; ++number) {
        EXPECT_EQ(worker->call<Add>(to.name(), "add", number, 1).value(), number + 1);
        EXPECT_EQ(worker->call<Add>(to.name(), "add inline", number, 2).value(), number + 2);
      }
      EXPECT_EQ(worker->call<std::string()>(to.name(), "who called").value(),
                worker->agent->self().name());
    }
  }
}

// S64.
TEST_P(NetworkAgentTest, CallsAWorkerByItsId) {
  start(3);
  for (const auto& worker : workers) {
    Agent* const agent = worker->agent.get();
    ASSERT_TRUE(worker->functions.add(
        kOwnId.name(), [agent] { return static_cast<std::int64_t>(agent->self().id()); }));
  }
  for (const auto& worker : workers) {
    for (std::int64_t id = 0; id < 3; ++id) {
      EXPECT_EQ(async(*worker->agent, id, kOwnId).get(), id);
    }
  }
}

// S65: what each tells the next one arrives there and nowhere else.
TEST_P(NetworkAgentTest, DoesNotMixUpCallsInARing) {
  start(4);
  std::array<std::atomic<std::int64_t>, 4> stored{};
  for (auto& one : stored) one = -1;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(workers[rank]->functions.add(
        kStore.name(), [&stored, rank](std::int64_t value) { stored.at(rank) = value; }));
  }
  std::vector<Future<>> telling;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    Agent& agent = *workers[static_cast<std::size_t>(rank)]->agent;
    telling.push_back(async(agent, (rank + 1) % 4, kStore, rank));
  }
  for (const auto& one : telling) EXPECT_TRUE(one.wait());
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(stored.at(rank), static_cast<std::int64_t>((rank + 3) % 4));
  }
}

// S61, S72.
TEST_P(NetworkAgentTest, HasManyCallsUnderWayAtOnce) {
  start(2);
  std::vector<Future<std::int64_t>> futures;
  for (std::int64_t number = 0; number < 2000; ++number) {
    futures.push_back(workers[0]->async<Add>("worker1", std::nullopt,
                                             number % 2 == 0 ? "add" : "add inline", number, 1));
  }
  for (std::int64_t number = 0; number < 2000; ++number) {
    EXPECT_EQ(futures[static_cast<std::size_t>(number)].get(), number + 1);
  }
  workers[0]->agent->calls().wait_until_idle([] { return true; });
  EXPECT_EQ(workers[0]->agent->metrics().at("agent.client_active_calls"), "0");
}

TEST_P(NetworkAgentTest, CarriesLargeArgumentsAndResultsUnchanged) {
  start(2);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{100'000}, std::size_t{20} << 20U}) {
    std::vector<std::byte> bytes(size);
    for (std::size_t index = 0; index < size; ++index) {
      bytes[index] = static_cast<std::byte>(index * 7 + index / 251);
    }
    const auto back =
        workers[0]->call<std::vector<std::byte>(std::vector<std::byte>)>("worker1", "echo", bytes);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_TRUE(*back == bytes) << size;
  }
}

// S90.
TEST_P(NetworkAgentTest, BringsWhatWasThrownWithItsTypeAndText) {
  start(2);
  const auto outcome =
      workers[0]->call<std::int64_t(std::string)>("worker1", "throw", "é and 🎉 stay");
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Remote);
  EXPECT_EQ(outcome.error().type, "std::out_of_range");
  EXPECT_EQ(outcome.error().message, "é and 🎉 stay");
  EXPECT_EQ(workers[0]->call<Add>("worker1", "add", 1, 2).value(), 3) << "the callee is fine";
}

TEST_P(NetworkAgentTest, SaysWhatIsWrongWithACallThatCannotBeServed) {
  start(2);
  const auto missing = workers[0]->call<Add>("worker1", "ad", 1, 2);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, CallErrorKind::Remote);
  EXPECT_NE(missing.error().message.find("Error on Node 1: there is no function"),
            std::string::npos)
      << missing.error().message;
  EXPECT_NE(missing.error().message.find("did you mean"), std::string::npos);
  const auto other_types = workers[0]->call<std::string(std::string)>("worker1", "add", "x");
  ASSERT_FALSE(other_types);
  EXPECT_NE(other_types.error().message.find("Error on Node 1"), std::string::npos);
  // Another kind of request altogether.
  const auto backward =
      workers[0]
          ->agent->send("worker1", {MessageType::RrefBackwardReq, kNoMessageId, "", {}})
          .wait();
  ASSERT_FALSE(backward);
  EXPECT_NE(backward.error().message.find("not supported"), std::string::npos);
  EXPECT_EQ(workers[0]->call<Add>("worker1", "add", 1, 2).value(), 3);
}

TEST_P(NetworkAgentTest, RefusesWhatCannotBeSentAtTheCall) {
  start(1);
  Agent& agent = *workers[0]->agent;
  const Message request{MessageType::ScriptCall, kNoMessageId, "", {}};
  const auto check = [](const Future<Message>& future, std::string_view fragment) {
    ASSERT_TRUE(future.done());
    const auto& outcome = future.wait();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, CallErrorKind::Rejected);
    EXPECT_NE(outcome.error().message.find(fragment), std::string::npos) << outcome.error().message;
    EXPECT_FALSE(outcome.error().sent);
  };
  check(agent.send("nobody", request), "could not find destination");
  check(agent.send("worker0", {MessageType::ScriptRet, 0, "", {}}), "request");
  check(agent.send("worker0", request, -5.0), "not -5");
  agent.shutdown();
  check(agent.send("worker0", request), "no longer running");
}

// S99, S105.
TEST_P(NetworkAgentTest, FailsCallsWhoseTimeIsOver) {
  start(2);
  auto gate = std::make_shared<Gate>();
  ASSERT_TRUE(workers[1]->functions.add("wait", [gate] { return gate->pass(); }));
  Worker& caller = *workers[0];
  const auto patient = caller.async<bool()>("worker1", std::nullopt, "wait");
  for (const double timeout : {0.1, 0.0005}) {
    const auto outcome = caller.async<bool()>("worker1", timeout, "wait").wait();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout);
    EXPECT_NE(render(outcome.error()).find("RPCErr:1:RPC ran for more than set timeout"),
              std::string::npos);
  }
  EXPECT_FALSE(patient.done());
  gate->open();
  EXPECT_TRUE(patient.get());
}

// S96, S97, S98, S100.
TEST_P(NetworkAgentTest, GivesCallsTheDefaultTimeAsItIsWhenTheyAreMade) {
  start(2);
  auto gate = std::make_shared<Gate>();
  ASSERT_TRUE(workers[1]->functions.add("wait", [gate] { return gate->pass(); }));
  Worker& caller = *workers[0];
  std::vector<Future<bool>> patient;
  caller.agent->set_timeout(200s);
  patient.push_back(caller.async<bool()>("worker1", std::nullopt, "wait"));
  caller.agent->set_timeout(0s);
  patient.push_back(caller.async<bool()>("worker1", std::nullopt, "wait"));
  caller.agent->set_timeout(1ms);
  for (const double timeout : {0.0, 60.0}) {
    patient.push_back(caller.async<bool()>("worker1", timeout, "wait"));
  }
  std::vector<Future<bool>> hasty;
  for (int count = 0; count < 10; ++count) {
    hasty.push_back(caller.async<bool()>("worker1", std::nullopt, "wait"));
  }
  for (const auto& one : hasty) {
    ASSERT_FALSE(one.wait());
    EXPECT_EQ(one.wait().error().kind, CallErrorKind::Timeout);
  }
  for (const auto& one : patient) EXPECT_FALSE(one.done());
  gate->open();
  for (const auto& one : patient) EXPECT_TRUE(one.get());
}

// S106: a call ends on time although no thread is left that could run a function.
TEST_P(NetworkAgentTest, EndsCallsOnTimeWhileAllThreadsAreBusy) {
  start(2);
  auto gate = std::make_shared<Gate>();
  ASSERT_TRUE(workers[0]->functions.add("block", [gate] { return gate->pass(); }));
  ASSERT_TRUE(workers[1]->functions.add("wait", [gate] { return gate->pass(); }));
  std::vector<Future<bool>> blocking;
  for (int count = 0; count < 8; ++count) {
    blocking.push_back(workers[1]->async<bool()>("worker0", 0.0, "block"));
  }
  ASSERT_TRUE(comes_to([&] { return workers[0]->server->idle_count() == 0; }));
  const auto outcome = workers[0]->async<bool()>("worker1", 0.2, "wait").wait();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout);
  for (const auto& one : blocking) EXPECT_FALSE(one.done());
  gate->open();
  for (const auto& one : blocking) EXPECT_TRUE(one.get());
}

TEST_P(NetworkAgentTest, WaitsNoLongerThanItWasToldWhateverElseComes) {
  start(2);
  Gate gate;
  ASSERT_TRUE(workers[1]->functions.add("wait", [&] { return gate.pass(); }));
  const auto slow = workers[0]->async<bool()>("worker1", std::nullopt, "wait");
  // Answers for another thread come all the time, and for far longer than is waited.
  std::atomic<bool> enough = false;
  std::thread other([&] {
    const TimePoint end = SystemClock().now() + 30s;
    while (!enough && SystemClock().now() < end) {
      EXPECT_EQ(workers[0]->call<Add>("worker1", "add inline", 1, 2).value(), 3);
    }
    EXPECT_TRUE(enough) << "the other thread did not come back before this one gave up";
  });
  for (int wait = 0; wait < 20; ++wait) {
    EXPECT_EQ(slow.wait_until(SystemClock().now() + 5ms), nullptr);
  }
  enough = true;
  other.join();
  gate.open();
  EXPECT_TRUE(slow.get());
}

// S73, and deeper than there are threads.
TEST_P(NetworkAgentTest, CallsBackAndForthWithFewThreads) {
  workers.push_back(std::make_unique<Worker>());
  workers.push_back(std::make_unique<Worker>());
  for (int rank = 0; rank < 2; ++rank) {
    Worker* const worker = workers[static_cast<std::size_t>(rank)].get();
    const std::string other = rank == 0 ? "worker1" : "worker0";
    ASSERT_TRUE(worker->functions.add("down", [worker, other](std::int64_t depth) -> std::int64_t {
      if (depth == 0) return 0;
      return worker->call<std::int64_t(std::int64_t)>(other, "down", depth - 1).value() + 1;
    }));
  }
  auto first = std::async(std::launch::async, [&] {
    return workers[0]->start(options_for("worker0", 0, 2), store, 60s, 1);
  });
  ASSERT_TRUE(workers[1]->start(options_for("worker1", 1, 2), store, 60s, 1));
  ASSERT_TRUE(first.get());
  EXPECT_EQ(workers[0]->call<std::int64_t(std::int64_t)>("worker1", "down", 30).value(), 30);
}

// S122: a function that answers with a future holds no thread.
TEST_P(NetworkAgentTest, ServesAsynchronousFunctions) {
  start(3);
  Worker* const middle = workers[1].get();
  ASSERT_TRUE(middle->functions.add("forward", [middle](std::int64_t a, std::int64_t b) {
    return middle->async<Add>("worker2", std::nullopt, "add", a, b).then([](const auto& sum) {
      return sum.value() * 10;
    });
  }));
  std::vector<Future<std::int64_t>> futures;
  for (std::int64_t number = 0; number < 100; ++number) {
    futures.push_back(workers[0]->async<Add>("worker1", std::nullopt, "forward", number, 1));
  }
  for (std::int64_t number = 0; number < 100; ++number) {
    EXPECT_EQ(futures[static_cast<std::size_t>(number)].get(), (number + 1) * 10);
  }
}

// S110: callbacks may call and wait.
TEST_P(NetworkAgentTest, LetsCallbacksCallAndWait) {
  start(2);
  Worker& caller = *workers[0];
  std::vector<Future<std::int64_t>> futures;
  for (std::int64_t number = 0; number < 50; ++number) {
    futures.push_back(
        caller.async<Add>("worker1", std::nullopt, "add", number, 1).then([&](const auto& sum) {
          return caller.call<Add>("worker1", "add", sum.value(), 1).value();
        }));
  }
  for (std::int64_t number = 0; number < 50; ++number) {
    EXPECT_EQ(futures[static_cast<std::size_t>(number)].get(), number + 2);
  }
}

// S171, S172.
TEST_P(NetworkAgentTest, FailsTheCallsToAWorkerThatGoesAndReachesItAgainWhenItIsBack) {
  start(2);
  auto gate = std::make_shared<Gate>();
  ASSERT_TRUE(workers[1]->functions.add("wait", [gate] { return gate->pass(); }));
  std::vector<Future<bool>> under_way;
  for (int count = 0; count < 3; ++count) {
    under_way.push_back(workers[0]->async<bool()>("worker1", 0.0, "wait"));
  }
  const auto nearby = workers[0]->call<Add>("worker1", "add", 1, 1);
  ASSERT_TRUE(nearby);
  workers[1]->agent->shutdown();
  for (const auto& future : under_way) {
    const auto& outcome = future.wait();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, CallErrorKind::Unreachable);
    EXPECT_NE(outcome.error().message.find("worker1"), std::string::npos);
    EXPECT_TRUE(outcome.error().sent);
  }
  const auto refused = workers[0]->call<Add>("worker1", "add", 1, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, CallErrorKind::Unreachable);
  EXPECT_FALSE(refused.error().sent);
  gate->open();
  workers[1] = std::make_unique<Worker>();
  add_functions(*workers[1]);
  ASSERT_TRUE(workers[1]->start(options_for("worker1", 1, 2), store, 60s));
  EXPECT_EQ(workers[0]->call<Add>("worker1", "add", 1, 1).value(), 2);
  EXPECT_EQ(workers[1]->call<Add>("worker0", "add", 2, 2).value(), 4);
}

// All of them, so often.
void expect_gathers(const std::vector<std::unique_ptr<Worker>>& workers, int count) {
  std::vector<std::string> names;
  for (const WorkerInfo& info : workers[0]->agent->workers()) names.push_back(info.name());
  for (int round = 0; round < count; ++round) {
    std::vector<std::future<CallResult<Gather::Values>>> waiting;
    for (const auto& worker : workers) {
      waiting.push_back(std::async(std::launch::async, [&worker, &names, round] {
        return worker->gather->all(*worker->agent, names,
                                   worker->agent->self().name() + std::to_string(round), 60.0);
      }));
    }
    for (auto& one : waiting) {
      const auto values = one.get();
      ASSERT_TRUE(values) << values.error().message;
      ASSERT_EQ(values->size(), workers.size());
      for (const auto& [name, value] : *values) EXPECT_EQ(value, name + std::to_string(round));
    }
  }
}

// S162.
TEST_P(NetworkAgentTest, GathersWhatEveryWorkerBrings) {
  start(4);
  expect_gathers(workers, 10);
}

TEST_P(NetworkAgentTest, GathersThoughAnswersAreLostWithTheirConnections) {
  start(3, "seed=2 disconnect:SCRIPT_RET:p=0.5");
  expect_gathers(workers, 20);
}

TEST_P(NetworkAgentTest, GathersThoughOthersCutTheConnectionsByWhichItWaits) {
  start(3, "disconnect:PYTHON_CALL");
  std::atomic<bool> is_over = false;
  // As a control message does that nobody waits for.
  std::thread cutter([&] {
    while (!is_over) {
      for (const auto& worker : workers) {
        (void)worker->agent->send("worker0", {MessageType::PythonCall, kNoMessageId, "", {}}, 60.0)
            .wait();
      }
    }
  });
  expect_gathers(workers, 20);
  is_over = true;
  cutter.join();
}

// S74: a chain of calls that nobody waits for.
TEST_P(NetworkAgentTest, ComesToRestOnlyWhenNoCallIsLeft) {
  start(3);
  std::atomic<int> steps = 0;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    Worker* const worker = workers[rank].get();
    const std::string next = "worker" + std::to_string((rank + 1) % 3);
    ASSERT_TRUE(worker->functions.add("chain", [worker, next, &steps](std::int64_t left) {
      ++steps;
      if (left > 0) {
        worker->async<void(std::int64_t)>(next, std::nullopt, "chain", left - 1);
      }
    }));
  }
  std::vector<std::string> names{"worker0", "worker1", "worker2"};
  workers[0]->async<void(std::int64_t)>("worker1", std::nullopt, "chain", 60);
  std::vector<std::future<CallResult<>>> waiting;
  for (const auto& worker : workers) {
    waiting.push_back(std::async(std::launch::async, [&worker, &names] {
      return worker->gather->quiesce(*worker->agent, names, 60.0);
    }));
  }
  for (auto& one : waiting) EXPECT_TRUE(one.get());
  EXPECT_EQ(steps, 61);
}

TEST_P(NetworkAgentTest, DoesNotWaitForEverForACallThatDoesNotEnd) {
  start(2);
  auto gate = std::make_shared<Gate>();
  ASSERT_TRUE(workers[1]->functions.add("wait", [gate] { return gate->pass(); }));
  const auto call = workers[0]->async<bool()>("worker1", 0.0, "wait");
  const std::vector<std::string> names{"worker0", "worker1"};
  auto other = std::async(std::launch::async, [&] {
    return workers[1]->gather->quiesce(*workers[1]->agent, names, 0.3);
  });
  const auto outcome = workers[0]->gather->quiesce(*workers[0]->agent, names, 0.3);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, CallErrorKind::Timeout);
  EXPECT_NE(outcome.error().message.find("1 calls of this worker are still under way"),
            std::string::npos)
      << outcome.error().message;
  EXPECT_FALSE(other.get());
  gate->open();
  EXPECT_TRUE(call.get());
}

// It may have told others already that all have come. Its calls had all been answered, so this is
// about those who wait for it to come.
TEST_P(NetworkAgentTest, FollowsNoLeaderThatWasStartedAgainWithItsCall) {
  start(2);
  ASSERT_EQ(workers[1]->call<Add>("worker0", "add", 1, 1).value(), 2);
  const TimePoint deadline = SystemClock().now() + 60s;
  // The leader must have the call: one that was never sent to it goes to the next.
  const auto wait_for_held = [&](const std::string& count) {
    const auto held = [&] { return workers[0]->agent->metrics().at("agent.server_active_calls"); };
    while (held() != count && SystemClock().now() < deadline) std::this_thread::yield();
  };
  wait_for_held("0");
  auto follower = std::async(std::launch::async, [&] {
    return workers[1]->gather->all(*workers[1]->agent, {"worker0", "worker1"}, "", std::nullopt);
  });
  wait_for_held("1");
  workers[0]->agent->shutdown();
  Worker again;
  add_functions(again);
  ASSERT_TRUE(again.start(options_for("worker0", 0, 2), store, 60s));
  const auto values = follower.get();
  ASSERT_FALSE(values);
  EXPECT_NE(values.error().message.find("worker0"), std::string::npos) << values.error().message;
}

// S188.
TEST_P(NetworkAgentTest, SaysWhoIsMissingAtTheStart) {
  // Longer if the store is not even reached in that time.
  std::string text;
  for (Duration patience = 200ms; patience < 60s; patience *= 2) {
    Worker alone;
    const auto started = alone.start(options_for("worker0", 0, 2), store, patience);
    ASSERT_FALSE(started);
    text = started.error().message;
    if (text.find("rank 1 of 2 has not come") != std::string::npos) return;
  }
  FAIL() << text;
}

TEST_P(NetworkAgentTest, SendsControlMessagesAgainUntilTheyArrive) {
  start(2);
  auto request = encode_call<Add>("add", std::int64_t{1}, std::int64_t{2});
  const auto response =
      workers[0]->agent->send_with_retries("worker1", *request, {.delay = 1ms}).wait();
  ASSERT_TRUE(response);
  EXPECT_EQ(decode_response<std::int64_t>(*response).value(), 3);
  const auto failing =
      workers[0]
          ->agent
          ->send_with_retries("worker1", {MessageType::PythonCall, kNoMessageId, "", {}},
                              {.retries_max = 2, .delay = 1ms})
          .wait();
  ASSERT_FALSE(failing);
  EXPECT_NE(failing.error().message.find("max retries (2)"), std::string::npos);
}

// S33.
TEST_P(NetworkAgentTest, FailsWhatWaitsToBeSentAgainWhenItStops) {
  start(2);
  std::atomic<int> served_count = 0;
  ASSERT_TRUE(workers[1]->functions.add("refuse", [&served_count] {
    ++served_count;
    throw std::runtime_error("not now");
  }));
  Agent& agent = *workers[0]->agent;
  const auto future =
      agent.send_with_retries("worker1", encode_call<void()>("refuse").value(), {.delay = 60s});
  // The first attempt counts as over when the second one has been scheduled.
  ASSERT_TRUE(agent.calls().wait_until_idle([] { return true; }));
  EXPECT_FALSE(future.done());
  agent.shutdown();
  ASSERT_TRUE(future.done());
  ASSERT_FALSE(future.wait());
  EXPECT_EQ(future.wait().error(),
            (CallError{CallErrorKind::Rejected, agent_stopped_text(agent.self()), "", true}));
  workers[1]->stop();
  EXPECT_EQ(served_count, 1);
}

// A stranger gets nowhere, and those who belong here do not notice.
TEST_P(NetworkAgentTest, RefusesStrangers) {
  start(2);
  const auto endpoint = net::parse_endpoint(workers[1]->agent->address(), 0);
  net::EpollLoop loop;
  Hello hello;
  hello.job = "another";
  hello.from_name = "worker0";
  const std::string garbage(5000, '\xff');
  const std::string not_hello = encode_head({MessageType::ScriptCall, 0, "x", {}});
  const std::string other_job = encode_head(encode(hello));
  for (const std::string& words : {garbage, not_hello, other_job}) {
    Task<Result<Fd>> connecting = net::connect_socket(loop, *endpoint);
    auto socket = loop.block_on(std::move(connecting));
    ASSERT_TRUE(socket);
    ASSERT_EQ(::send(socket->get(), words.data(), words.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(words.size()));
    // Until it closes.
    char byte = 0;
    pollfd waiting{socket->get(), POLLIN, 0};
    ssize_t got = 1;
    for (int reads = 0; got > 0 && reads < 10'000; ++reads) {
      ASSERT_EQ(::poll(&waiting, 1, 60'000), 1);
      got = ::recv(socket->get(), &byte, 1, 0);
    }
    EXPECT_LE(got, 0);
  }
  EXPECT_EQ(workers[0]->call<Add>("worker1", "add", 1, 2).value(), 3);
}

TEST_P(NetworkAgentTest, TellsAFunctionThatNobodyWaitsForItAnyMore) {
  start(2);
  struct State {
    std::atomic<int> begun_count = 0;
    std::atomic<bool> knew = false;
    Gate over;
  };
  const auto state = std::make_shared<State>();
  ASSERT_TRUE(workers[1]->functions.add("work", [state] {
    ++state->begun_count;
    state->knew = comes_to([] { return is_cancelled(); });
    state->over.open();
  }));
  EXPECT_FALSE(is_cancelled()) << "not in a function";
  // Again if it was not even sent in that time.
  while (state->begun_count == 0) {
    ASSERT_EQ(workers[0]->async<void()>("worker1", 0.02, "work").wait().error().kind,
              CallErrorKind::Timeout);
  }
  ASSERT_TRUE(state->over.pass());
  EXPECT_TRUE(state->knew);
  EXPECT_EQ(workers[0]->call<Add>("worker1", "add", 1, 2).value(), 3);
}

TEST_P(NetworkAgentTest, ReachesWorkersByIpv6) {
  if (!addresses_towards({"::1", 1})) GTEST_SKIP() << "SKIPPED: there is no IPv6 here";
  const auto choose = [](AgentOptions& options) {
    options.host = "::1";
    options.uses_shared_memory = GetParam();
  };
  workers = start_static_group(store, 2, choose, add_functions);
  EXPECT_EQ(workers[0]->agent->address().find("[::1]:"), 0U);
  EXPECT_EQ(workers[0]->call<Add>("worker1", "add", 1, 2).value(), 3);
}

TEST_P(NetworkAgentTest, TakesTheBestWayToAWorker) {
  start(2);
  EXPECT_EQ(workers[0]->agent->kind_of_connection("worker1"), "") << "nobody called it yet";
  EXPECT_EQ(workers[0]->call<Add>("worker1", "add", 1, 2).value(), 3);
  EXPECT_EQ(workers[0]->agent->kind_of_connection("worker1"), GetParam() ? "shared memory" : "tcp");
}

INSTANTIATE_TEST_SUITE_P(Way, NetworkAgentTest, ::testing::Bool(),
                         [](const auto& way) { return way.param ? "SharedMemory" : "Tcp"; });

}  // namespace
}  // namespace muster::rpc
