// More is sent than is read: whoever sends has to wait, nothing is lost, and what waits is bounded.
#include "muster/rpc/network_agent.h"
#include "tests/rpc/cluster.h"
#include "tests/rpc/raw_peer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <netinet/in.h>
#include <semaphore>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::options_for;
using testing::RawConnection;
using testing::RawPeer;
using testing::start_static_group;
using testing::StoreHost;
using testing::Worker;

using Bytes = std::vector<std::byte>;
using Measure = std::int64_t(Bytes);

constexpr std::size_t kQueueBytes = std::size_t{1} << 20U;
constexpr std::size_t kLargeBytes = std::size_t{256} << 10U;

Bytes large() { return Bytes(kLargeBytes, std::byte{7}); }

bool is_held_back(const Future<std::int64_t>& call) {
  const auto& outcome = call.wait();
  return !outcome && outcome.error().kind == CallErrorKind::Timeout && !outcome.error().sent;
}

// Over TCP, and through shared memory.
class BackPressure : public ::testing::TestWithParam<bool> {
 protected:
  void start(const std::function<void(Worker&)>& prepare) {
    const auto choose = [](AgentOptions& options) {
      options.uses_shared_memory = GetParam();
      options.queue_bytes_max = kQueueBytes;
    };
    workers = start_static_group(store, 2, choose, prepare);
  }
  // Calls until one had to wait for room until its time was over; how many calls did not.
  static int fill(Worker& from) {
    for (int calls = 0; calls < 10'000; ++calls) {
      if (is_held_back(from.async<Measure>("worker1", 0.05, "measure", Bytes()))) return calls;
    }
    ADD_FAILURE() << "it is never full";
    return 0;
  }
  static std::int64_t figure(const Worker& worker, const std::string& name) {
    return std::stoll(worker.agent->metrics().at(name));
  }

  // Functions may use them until their worker is gone.
  std::latch may_go{1};
  std::counting_semaphore<> begun{0};
  StoreHost store;
  std::vector<std::unique_ptr<Worker>> workers;
};

TEST_P(BackPressure, ManyLargeCallsAtOnceAllSucceed) {
  start([](Worker& worker) {
    ASSERT_TRUE(worker.functions.add("echo", [](Bytes bytes) { return bytes; }));
  });
  std::vector<Future<Bytes>> calls;
  // The first of them are made while there is no connection yet.
  for (int call = 0; call < 64; ++call) {
    calls.push_back(workers[0]->async<Bytes(Bytes)>("worker1", 0.0, "echo", large()));
  }
  for (const auto& call : calls) EXPECT_EQ(call.get(), large());
  EXPECT_EQ(figure(*workers[0], "peer.worker1.calls"), 64);
  EXPECT_EQ(figure(*workers[0], "peer.worker1.errors"), 0);
}

TEST_P(BackPressure, WhoeverCallsASlowWorkerHasToWaitAndThatWorkerTakesInNoMoreThanItsLimit) {
  start([&](Worker& worker) {
    ASSERT_TRUE(worker.functions.add("measure", [&](const Bytes& bytes) {
      begun.release();
      may_go.wait();
      return static_cast<std::int64_t>(bytes.size());
    }));
  });
  constexpr int kCalls = 64;
  std::vector<Future<std::int64_t>> calls;
  std::thread caller([&] {
    for (int call = 0; call < kCalls; ++call) {
      calls.push_back(workers[0]->async<Measure>("worker1", 0.0, "measure", large()));
    }
  });
  // Before, a call may be late because there is no connection yet.
  for (int count = 0; count < 4; ++count) EXPECT_TRUE(begun.try_acquire_for(60s));
  const int small_ones = fill(*workers[0]);
  // As many as run at once, as the limit allows, and one that is larger than what was left of it.
  const std::int64_t taken = figure(*workers[1], "agent.server_active_calls");
  EXPECT_GE(taken, 4);
  EXPECT_LT(taken - small_ones, kCalls / 2);
  may_go.count_down();
  caller.join();
  for (const auto& call : calls) EXPECT_EQ(call.get(), static_cast<std::int64_t>(kLargeBytes));
}

TEST_P(BackPressure, ReachesThroughCallsThatCallBackAndNobodyWaitsForEver) {
  start([](Worker& worker) {
    ASSERT_TRUE(worker.functions.add(
        "bounce", [&worker](std::int64_t times, const Bytes& bytes) -> std::int64_t {
          if (times == 0) return 0;
          const std::string back = caller()->name();
          return 1 + worker
                         .async<std::int64_t(std::int64_t, Bytes)>(back, 0.0, "bounce", times - 1,
                                                                   bytes)
                         .get();
        }));
  });
  constexpr std::int64_t kTimes = 6;
  constexpr int kCalls = 24;
  std::array<std::vector<Future<std::int64_t>>, 2> calls;
  std::vector<std::thread> threads;
  for (std::size_t from = 0; from < 2; ++from) {
    threads.emplace_back([&, from] {
      for (int call = 0; call < kCalls; ++call) {
        calls[from].push_back(workers[from]->async<std::int64_t(std::int64_t, Bytes)>(
            "worker" + std::to_string(1 - from), 0.0, "bounce", kTimes, large()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& each : calls) {
    for (const auto& call : each) EXPECT_EQ(call.get(), kTimes);
  }
}

TEST_P(BackPressure, AWorkerThatStopsLetsGoOfThoseWhoWaitForRoom) {
  start([&](Worker& worker) {
    ASSERT_TRUE(worker.functions.add("measure", [&](const Bytes&) {
      may_go.wait();
      return std::int64_t{0};
    }));
  });
  std::thread caller([&] {
    // Until it is refused.
    for (int call = 0; call < 10'000; ++call) {
      const auto made = workers[0]->async<Measure>("worker1", 0.0, "measure", large());
      made.on_done([](const auto&) {});  // whatever it is
      if (made.done()) return;
    }
  });
  fill(*workers[0]);
  std::thread stopper([&] { workers[0]->agent->shutdown(); });
  caller.join();
  may_go.count_down();
  stopper.join();
}

INSTANTIATE_TEST_SUITE_P(Transports, BackPressure, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "SharedMemory" : "Tcp"; });

// ---- a peer that is nothing but a socket --------------------------------------------------------

class BackPressureOfAPeer : public ::testing::Test {
 protected:
  void start() {
    AgentOptions options = options_for("worker0", 0, 2);
    options.queue_bytes_max = kQueueBytes;
    options.strangers_max = 2;
    options.silence_max = 600s;  // it is not taken for dead
    ASSERT_TRUE(worker.start(options, store, 60s));
  }
  // Connects and says nothing.
  RawConnection knock() {
    const auto endpoint = net::parse_endpoint(worker.agent->address(), 0).value();
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(endpoint.port));
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return RawConnection(std::move(socket));
  }
  // More than there may be strangers.
  std::vector<RawConnection> three_known() {
    std::vector<RawConnection> known;
    for (int count = 0; count < 3; ++count) known.push_back(peer.connect(0));
    return known;
  }
  static void answer(RawConnection& connection, std::int64_t value) {
    const auto request = connection.read();
    ASSERT_TRUE(request);
    Writer writer;
    writer.write(value);
    connection.send({MessageType::ScriptRet, request->id, writer.take_control(), {}});
  }

  StoreHost store;
  RawPeer peer{store, "worker1", 1};
  Worker worker;
};

TEST_F(BackPressureOfAPeer, AnInlineFunctionCannotWaitAndItsCallsAreRefused) {
  start();
  // It runs on the thread that would have to write what it waits for.
  ASSERT_TRUE(worker.functions.add("flood",
                                   [&]() -> std::string {
                                     for (int call = 0; call < 10'000; ++call) {
                                       const auto made = worker.async<Measure>("worker1", 0.0,
                                                                               "measure", large());
                                       made.on_done([](const auto&) {});
                                       if (!made.done()) continue;
                                       const auto& outcome = made.wait();
                                       return outcome ? "answered" : outcome.error().message;
                                     }
                                     return "never full";
                                   },
                                   {.run = Run::Inline}));
  const auto first = worker.async<Measure>("worker1", 0.0, "measure", Bytes());
  RawConnection connection = peer.welcome();
  answer(connection, 0);
  EXPECT_EQ(first.get(), 0);
  EXPECT_EQ(worker.async<std::string()>("worker0", 0.0, "flood").get(),
            "more than 1048576 bytes wait for WorkerInfo(id=1, name=worker1) already, which does "
            "not read them as fast");
}

TEST_F(BackPressureOfAPeer, OneStrangerPastTheLimitWaitsForThePlaceOfASilentOne) {
  start();
  const std::vector<RawConnection> known = three_known();
  std::vector<RawConnection> silent;
  for (int count = 0; count < 2; ++count) silent.push_back(knock());
  RawConnection late = knock();
  late.send(encode(Hello()));
  EXPECT_TRUE(late.read()) << "it is never heard";
  EXPECT_TRUE(silent[0].is_ended() && silent[1].is_ended());
}

TEST_F(BackPressureOfAPeer, OneStrangerPastTheLimitIsHeardWhenAnotherHasGone) {
  start();
  const std::vector<RawConnection> known = three_known();
  std::vector<RawConnection> silent;
  for (int count = 0; count < 2; ++count) silent.push_back(knock());
  silent.pop_back();
  RawConnection late = knock();
  late.send(encode(Hello()));
  EXPECT_TRUE(late.read()) << "it is never heard";
}

TEST_F(BackPressureOfAPeer, ThatDoesNotReadItsAnswersIsServedNoFurtherUntilItDoes) {
  start();
  std::atomic<std::int64_t> served = 0;
  ASSERT_TRUE(worker.functions.add("make",
                                   [&] {
                                     ++served;
                                     return std::string(kQueueBytes, 'x');
                                   },
                                   {.run = Run::Inline}));
  constexpr std::int64_t kCalls = 200;
  RawConnection connection = peer.connect(0);
  Message request = encode_call<std::string()>("make").value();
  for (request.id = 0; request.id < kCalls; ++request.id) connection.send(request);
  // What the sockets hold is not much more than what may wait.
  std::int64_t ahead_max = 0;
  std::int64_t answers = 0;
  while (answers < kCalls && connection.read()) {
    ++answers;
    ahead_max = std::max(ahead_max, served - answers);
  }
  EXPECT_EQ(answers, kCalls);
  EXPECT_LT(ahead_max, kCalls / 2);
}

}  // namespace
}  // namespace muster::rpc
