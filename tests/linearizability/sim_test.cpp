// A server and its clients on a simulated network, with all that a seed brings: slow and torn
// messages, resets, cuts, stopped processes. Whatever the clients see must be explained by a store
// that does one operation at a time.
#include "muster/base/log.h"
#include "muster/sim/loop.h"
#include "muster/sim/network.h"
#include "muster/store/server.h"
#include "muster/store/tcp_store.h"
#include "tests/linearizability/checker.h"
#include "tests/linearizability/faulty_store.h"
#include "tests/linearizability/workload.h"
#include "tests/seeds.h"
#include "tests/server/dialect_transport.h"
#include "tests/server/log_capture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::linearizability {
namespace {

using namespace std::chrono_literals;
using tests::replay_command;
using tests::seeds_to_run;
using wire::Dialect;

constexpr std::uint64_t kSimulationsByDefault = tests::kIsSlow ? 100 : 1'000;

struct Plan {
  std::vector<Dialect> dialects;    // one for each client
  std::size_t operation_count = 0;  // of each client
  sim::Weather weather;
  bool faults = true;
  std::optional<Fault> broken;  // the stores have this fault
};

Plan draw_plan(Random& random) {
  Plan plan;
  const std::uint64_t client_count = 2 + random.below(4);
  for (std::uint64_t client = 0; client < client_count; ++client) {
    constexpr Dialect kChoices[] = {Dialect::Extension, Dialect::Extension, Dialect::Modern,
                                    Dialect::Legacy};
    plan.dialects.push_back(kChoices[random.below(std::size(kChoices))]);
  }
  plan.operation_count = 10 + random.below(30);
  plan.weather = sim::draw_weather(random);
  // A handshake that takes longer than a client's patience with it never succeeds.
  plan.weather.latency_max = std::min<Duration>(plan.weather.latency_max, 1s);
  plan.weather.latency_min = std::min(plan.weather.latency_min, plan.weather.latency_max);
  plan.weather.silence_max = 5s;
  return plan;
}

// The world of one seed.
class World {
 public:
  World(std::uint64_t seed, const Plan& plan)
      : plan_(plan),
        random_(seed),
        network_(loop_, random_, plan.weather),
        server_host_(network_.host("server")),
        recorder_(static_cast<int>(plan.dialects.size())) {
    server_ = std::make_unique<store::Server>(server_host_.loop(), store::ServerOptions());
    const auto port = server_->listen(server_host_, {"server", 4400}, "");
    EXPECT_TRUE(port) << port.error().message;
    for (std::size_t index = 0; index < plan.dialects.size(); ++index) {
      auto client = std::make_unique<Client>();
      client->host = &network_.host(fmt::format("client-{}", index));
      client->transport =
          std::make_unique<tests::DialectTransport>(*client->host, plan.dialects[index]);
      client->random = Random(random_.next());
      clients_.push_back(std::move(client));
    }
  }
  ~World() { clients_.clear(); }

  // False if the clients do not come to an end.
  bool run() {
    Random fault_random(random_.next());
    for (std::size_t index = 0; index < clients_.size(); ++index) {
      clients_[index]->scope.start(live(static_cast<int>(index)));
    }
    const auto all_done = [&] {
      return std::all_of(clients_.begin(), clients_.end(),
                         [](const auto& client) { return client->done; });
    };
    const TimePoint end = loop_.now() + 24h;
    // Each fault a while after the last; in the end all is healed.
    for (int count = 0; plan_.faults && count < 30 && !all_done(); ++count) {
      const TimePoint next = loop_.now() + Duration(fault_random.below(2'000'000'000));
      loop_.run_until(all_done, next);
      inject(fault_random);
    }
    network_.heal_all();
    network_.resume(server_host_);
    for (const auto& client : clients_) network_.resume(*client->host);
    sim::Weather calm = plan_.weather;
    calm.resets_per_million = 0;
    network_.set_weather(calm);
    return loop_.run_until(all_done, end);
  }

  History history() const { return recorder_.history(); }
  std::uint64_t trace_hash() const { return network_.trace_hash(); }

 private:
  struct Client {
    sim::Host* host = nullptr;
    std::unique_ptr<tests::DialectTransport> transport;
    Random random{0};
    std::unique_ptr<store::TcpStore> store;
    std::unique_ptr<FaultyStore> faulty;
    bool done = false;
    TaskScope scope;  // last: its task uses the rest
  };

  // A client's life: connect, work, and connect anew when its store has failed for good.
  Task<void> live(int index) {
    Client& client = *clients_[static_cast<std::size_t>(index)];
    store::TcpStoreOptions options;
    options.endpoint = {"server", 4400};
    options.reply_timeout = 20s;
    options.connect_timeout = 10min;
    ClientOptions work;
    work.client = index;
    work.get_timeout = 200ms;
    for (int lives = 0; lives < 3 && recorder_.begun_count(index) < plan_.operation_count;
         ++lives) {
      auto store = co_await store::connect_tcp_store(client.host->loop(), *client.transport,
                                                     client.random, options);
      if (!store) continue;
      client.store = std::move(*store);
      store::Store* used = client.store.get();
      if (plan_.broken) {
        client.faulty = std::make_unique<FaultyStore>(*client.store, *plan_.broken);
        used = client.faulty.get();
      }
      work.operation_count = plan_.operation_count - recorder_.begun_count(index);
      const Random own(client.random.next());
      co_await run_client(*used, client.host->loop(), recorder_, own, work);
      client.faulty.reset();
      client.store.reset();
    }
    client.done = true;
  }

  void inject(Random& random) {
    sim::Host& victim = *clients_[random.below(clients_.size())]->host;
    switch (random.below(8)) {
      case 0:
      case 1:
        network_.reset_all(victim);
        break;
      case 2:
        network_.reset_all(server_host_);
        break;
      case 3:
        network_.cut(victim, server_host_);
        break;
      case 4:
        network_.cut_one_way(server_host_, victim);
        break;
      case 5:
        network_.heal_all();
        break;
      case 6:
        server_host_.loop().stopped() ? network_.resume(server_host_)
                                      : network_.pause(server_host_);
        break;
      case 7:
        victim.loop().stopped() ? network_.resume(victim) : network_.pause(victim);
        break;
    }
  }

  const Plan plan_;
  Random random_;
  sim::Loop loop_;
  sim::Network network_;
  sim::Host& server_host_;
  Recorder recorder_;
  std::unique_ptr<store::Server> server_;
  std::vector<std::unique_ptr<Client>> clients_;
};

Plan plan_of(std::uint64_t seed) {
  Random random(seed);
  return draw_plan(random);
}

TEST(LinearizabilityInSim, HoldsOnEveryDayOfASeed) {
  const tests::LogCapture log;
  std::size_t operation_count = 0;
  std::size_t gave_up_count = 0;
  const auto seeds = seeds_to_run(kSimulationsByDefault);
  for (const std::uint64_t seed : seeds) {
    const Plan plan = plan_of(seed);
    World world(seed, plan);
    ASSERT_TRUE(world.run()) << "the clients do not come to an end, " << describe(plan.weather)
                             << "\n"
                             << replay_command(seed);
    const History history = world.history();
    operation_count += history.size();
    const Verdict verdict = check(history, {});
    if (verdict.kind == Verdict::Kind::GaveUp) {
      ++gave_up_count;
      continue;
    }
    ASSERT_TRUE(verdict.ok()) << verdict.explanation << "\n"
                              << describe(plan.weather) << "\n"
                              << replay_command(seed);
  }
  std::printf("%zu seeds, %zu operations, %zu histories too entangled to judge\n", seeds.size(),
              operation_count, gave_up_count);
  EXPECT_LE(gave_up_count, seeds.size() / 50);
}

TEST(LinearizabilityInSim, RunsTheSameWayEveryTime) {
  const tests::LogCapture log;
  for (const std::uint64_t seed : {3U, 17U, 99U}) {
    const Plan plan = plan_of(seed);
    World first(seed, plan);
    ASSERT_TRUE(first.run());
    World second(seed, plan);
    ASSERT_TRUE(second.run());
    EXPECT_EQ(first.trace_hash(), second.trace_hash()) << seed;
    EXPECT_EQ(first.history().size(), second.history().size()) << seed;
  }
}

// How many of 60 seeds show that the stores have the fault.
int caught_count(Fault fault) {
  int caught = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Plan plan = plan_of(seed);
    plan.broken = fault;
    World world(seed, plan);
    EXPECT_TRUE(world.run()) << seed;
    if (check(world.history(), {}).kind == Verdict::Kind::NotLinearizable) ++caught;
  }
  return caught;
}

TEST(LinearizabilityInSim, NoticesAStoreThatReadsStaleValues) {
  const tests::LogCapture log;
  EXPECT_GE(caught_count(Fault::StaleRead), 40);
}

TEST(LinearizabilityInSim, NoticesAStoreThatLosesWrites) {
  const tests::LogCapture log;
  EXPECT_GE(caught_count(Fault::LostWrite), 40);
}

TEST(LinearizabilityInSim, NoticesAStoreThatRepeatsWritesAfterALoss) {
  const tests::LogCapture log;
  EXPECT_GE(caught_count(Fault::RepeatedWrite), 1);
}

}  // namespace
}  // namespace muster::linearizability
