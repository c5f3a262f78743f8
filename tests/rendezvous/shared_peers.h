// Nodes with a SharedDriver each, over one FakeRun, for its tests.
#pragma once

#include "muster/rendezvous/rules.h"
#include "muster/rendezvous/shared_driver.h"
#include "muster/rendezvous/state_codec.h"
#include "muster/sim/loop.h"
#include "tests/rendezvous/fake_backend.h"
#include "tests/rendezvous/states.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rendezvous::testing {

inline Settings limits(std::int64_t min_nodes, std::int64_t max_nodes) {
  Settings settings;
  settings.run_id = "run";
  settings.min_nodes = min_nodes;
  settings.max_nodes = max_nodes;
  return settings;
}

template <typename T>
Task<void> keep(Task<Result<T>> task, std::optional<Result<T>>& result) {
  auto outcome = co_await task;
  result.emplace(std::move(outcome));
}

// One node: its backend, its driver and its calls.
class Peer {
 public:
  Peer(Loop& loop, FakeRun& run, Node its_node, Settings settings,
       Duration jitter_max = Duration::zero())
      : self(std::move(its_node)),
        random_(self.addr.size() * 31 + static_cast<unsigned char>(self.addr.back()) + self.nonce),
        loop_(loop),
        backend(run, loop) {
    SharedDriverOptions options;
    options.jitter_max = jitter_max;
    options.report = [this](NodeState state, std::string message) {
      events.emplace_back(state, std::move(message));
    };
    join_timeout_ = settings.timeouts.join;
    driver = make_shared_driver(loop, random_, backend, std::move(settings), self, options);
  }

  void join() { join(after(loop_.now(), join_timeout_)); }
  void join(TimePoint deadline) {
    place.reset();
    is_joining_ = true;
    calls_.start(keep(driver->join(deadline), place));
  }
  bool is_joining() const { return is_joining_ && !place; }
  void cancel() {
    calls_.cancel_all();
    is_joining_ = false;
  }
  // As when its process is killed.
  void die() {
    calls_.cancel_all();
    driver.reset();
  }
  bool joined() const { return place && *place; }
  ErrorKind failure() const { return place && !*place ? place->error().kind : ErrorKind::Conflict; }
  Status status() const { return driver->status(); }

  const Node self;

 private:
  Random random_;
  Loop& loop_;
  Duration join_timeout_{};
  bool is_joining_ = false;

 public:
  FakeBackend backend;
  std::vector<std::pair<NodeState, std::string>> events;
  std::unique_ptr<Driver> driver;
  std::optional<Result<Place>> place;

 private:
  TaskScope calls_;
};

// The numbers in the tests' comments are the rows of the specification. Where it lets a node poll
// once a second, a node waits for a signal here; where it writes a heartbeat into the state, a node
// beats.
class SharedDriverTest : public ::testing::Test {
 protected:
  Peer& add(std::string_view name, Settings settings, Duration jitter_max = Duration::zero()) {
    peers_.push_back(
        std::make_unique<Peer>(loop, run, node(name), std::move(settings), jitter_max));
    return *peers_.back();
  }
  State stored() { return run.stored() ? *decode(run.stored()->blob) : State(); }
  // Lets all who are given join, unless they are at it already, and runs until they have.
  void join_all(std::initializer_list<Peer*> peers) {
    for (Peer* peer : peers) {
      if (!peer->is_joining()) peer->join();
    }
    ASSERT_TRUE(loop.run_until(
        [&] {
          for (Peer* peer : peers) {
            if (!peer->place) return false;
          }
          return true;
        },
        loop.now() + std::chrono::minutes(5)));
    for (Peer* peer : peers) ASSERT_TRUE(*peer->place) << peer->place->error().message;
  }
  void write(const State& state) { run.write(encode(state), true); }
  template <typename T>
  T await(Task<T> task) {
    return loop.block_on(std::move(task));
  }

  tests::LogCapture log;
  sim::Loop loop;
  FakeRun run{loop};
  std::vector<std::unique_ptr<Peer>> peers_;
};

}  // namespace muster::rendezvous::testing
