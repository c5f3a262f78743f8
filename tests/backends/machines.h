// Simulated machines for tests of the backends: each a host of a sim::Network with the names it is
// called by, and one handler on it.
#pragma once

#include "muster/backends/c10d.h"
#include "muster/backends/machine.h"
#include "muster/base/random.h"
#include "muster/rendezvous/events.h"
#include "muster/sim/loop.h"
#include "muster/sim/network.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::backends::testing {

class FakeMachine final : public Machine {
 public:
  explicit FakeMachine(sim::Host& host) : host_(host) {}

  net::Transport& transport() override { return host_; }
  Task<bool> is_called(std::string host) override {
    asked_names.push_back(host);
    co_return host == host_.name() || host == "localhost";
  }
  Task<std::string> name() override { co_return host_.name() + ".example.org"; }
  Result<int> free_port() override { return ++last_free_port; }
  std::optional<std::string> variable(const std::string& name) const override {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  }

  std::map<std::string, std::string> variables;
  std::vector<std::string> asked_names;
  int last_free_port = 10'000;

 private:
  sim::Host& host_;
};

class Events final : public rendezvous::EventSink {
 public:
  void record(const rendezvous::Event& event) override { all.push_back(event); }
  bool has(std::string_view text) const {
    for (const rendezvous::Event& event : all) {
      if (event.message.find(text) != std::string::npos) return true;
    }
    return false;
  }
  std::vector<rendezvous::Event> all;
};

using Creator = HandlerTask (*)(Machine&, const rendezvous::Parameters&, rendezvous::Environment&);

// One agent on its own machine. Requires: the network outlives it.
class Agent {
 public:
  Agent(sim::Network& network, std::string_view name, std::uint64_t seed)
      : host(network.host(name)),
        machine(host),
        random_(seed),
        environment_{network.loop(), random_, &events},
        loop_(network.loop()) {
    parameters.backend = "c10d";
    parameters.run_id = "run";
  }

  // Waits until there is a handler, or the reason why there is none.
  Result<> create(Creator creator) {
    auto made = loop_.block_on(creator(machine, parameters, environment_));
    if (!made) return fail(std::move(made.error()));
    handler = std::move(*made);
    return {};
  }
  void join() {
    info.reset();
    calls_.start(keep(handler->next_rendezvous(), info));
  }
  bool joined() const { return info && *info; }
  // Stops joining.
  void give_up() { calls_.cancel_all(); }
  // As when its process is killed.
  void die() {
    calls_.cancel_all();
    info.reset();
    handler.reset();
  }

  sim::Host& host;
  FakeMachine machine;
  Events events;
  rendezvous::Parameters parameters;
  std::unique_ptr<rendezvous::Handler> handler;
  std::optional<Result<rendezvous::Info>> info;

 private:
  static Task<void> keep(Task<Result<rendezvous::Info>> task,
                         std::optional<Result<rendezvous::Info>>& result) {
    auto outcome = co_await task;
    result.emplace(std::move(outcome));
  }

  Random random_;
  rendezvous::Environment environment_;
  sim::Loop& loop_;
  TaskScope calls_;
};

class MachinesTest : public ::testing::Test {
 protected:
  Agent& agent(std::string_view name) {
    agents_.push_back(std::make_unique<Agent>(network, name, agents_.size() + 1));
    return *agents_.back();
  }
  // Lets them join together, and waits until all have.
  void join_all(std::initializer_list<Agent*> agents) {
    for (Agent* agent : agents) agent->join();
    const auto all = [&] {
      for (const Agent* agent : agents) {
        if (!agent->info) return false;
      }
      return true;
    };
    ASSERT_TRUE(loop.run_until(all, loop.now() + std::chrono::minutes(20)));
    for (const Agent* agent : agents) ASSERT_TRUE(*agent->info) << agent->info->error().message;
  }

  sim::Loop loop;
  Random random{1};
  sim::Network network{loop, random};

 private:
  std::vector<std::unique_ptr<Agent>> agents_;
};

}  // namespace muster::backends::testing
