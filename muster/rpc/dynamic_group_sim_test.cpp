// Many workers of one dynamic group, driven by seeds, on virtual time; and a few on real time.
#include "muster/base/random.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/rpc/dynamic_group.h"
#include "muster/rpc/group_store.h"
#include "muster/sim/loop.h"
#include "tests/rpc/chaotic_store.h"
#include "tests/rpc/group_workers.h"
#include "tests/seeds.h"
#include "tests/server/log_capture.h"
#include "tests/server/server_thread.h"
#include "tests/server/tcp_store_base.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace muster::rpc {
namespace {

using namespace std::chrono_literals;
using testing::ChaoticStore;
using testing::GroupWorker;
using testing::member;
using Names = std::vector<std::string>;

// ---- a crowd

constexpr std::size_t kWorkers = 50;
constexpr std::size_t kSteady = 10;  // of them come once, and stay
constexpr std::int64_t kIds = 70;    // of which the others take any

// One process that may be started again and again.
struct Place {
  Place(sim::Loop& world, store::Store& inner, std::uint64_t seed)
      : loop(std::make_unique<sim::LocalLoop>(world)),
        store(std::make_unique<ChaoticStore>(*loop, inner, seed)) {}

  std::unique_ptr<sim::LocalLoop> loop;
  std::unique_ptr<ChaoticStore> store;
  std::unique_ptr<GroupWorker> worker;
  TimePoint started;                // of the worker
  std::optional<TimePoint> joined;  // once it has
  TimePoint resumes;                // while it is stopped
  bool was_stopped = false;
};

class Crowd {
 public:
  explicit Crowd(std::uint64_t seed) : random_(seed), store_(store::make_memory_store(loop_)) {
    for (std::size_t index = 0; index < kWorkers; ++index) {
      places_.emplace_back(loop_, *store_, random_.next());
    }
    for (std::size_t index = 0; index < kSteady; ++index) start(index);
    // Before the others, who may want their ids.
    const auto are_in = [&] {
      for (std::size_t index = 0; index < kSteady; ++index) {
        if (!places_[index].worker->done()) return false;
      }
      return true;
    };
    EXPECT_TRUE(loop_.run_until(are_in, loop_.now() + 20s));
  }
  ~Crowd() {
    for (Place& place : places_) place.worker.reset();
  }

  void make_trouble(Duration length) {
    for (Place& place : places_) place.store->failures_per_thousand = 15;
    const TimePoint end = loop_.now() + length;
    while (loop_.now() < end) {
      loop_.advance(std::chrono::milliseconds(random_.below(200)));
      do_something(kSteady + random_.below(kWorkers - kSteady));
      for (Place& place : places_) {
        if (place.loop->stopped() && place.resumes <= loop_.now()) place.loop->resume();
      }
    }
    for (Place& place : places_) {
      place.store->failures_per_thousand = 0;
      place.loop->resume();
    }
  }

  // Who of those who live disagrees with the store or with the others; empty when nobody does.
  std::string unrest() {
    const auto value = loop_.block_on(store_->try_get(std::string(kMembersKey)));
    const auto list = decode_list(kMembersKey, value->value_or(""));
    if (!list) return list.error().message;
    std::size_t found = 0;
    for (Place& place : places_) {
      if (!place.worker || place.worker->error || place.worker->left) continue;
      const std::string name = place.worker->self.info.name();
      if (!place.worker->group) return name + " has not joined";
      if (place.worker->members != list->members) return name + " knows another list";
      const Member* const self = list->find_name(name);
      // One that was stopped may have lost its id to another.
      if (self != nullptr && self->address == place.worker->self.address) ++found;
    }
    if (found != list->members.size()) {
      return fmt::format("{} are listed, {} are there", list->members.size(), found);
    }
    const auto keys = loop_.block_on(store_->list_keys("lease/"));
    // Of one that is killed while nobody has it in a list, the lease stays: in the middle of its
    // join, or just when it goes on after a stop and has written it once more.
    if (keys->size() < found || keys->size() > found + leases_left_max_) {
      return fmt::format("there are {} leases of {} members", keys->size(), found);
    }
    return "";
  }

  void expect_nobody_lost() {
    for (Place& place : places_) {
      if (!place.worker || !place.worker->group || place.worker->left) continue;
      const Member& self = place.worker->self;
      if (place.worker->find(self.info.name()) != nullptr) continue;
      // Only who was stopped, and found its id in other hands when it went on.
      EXPECT_TRUE(place.was_stopped) << self.info.describe();
    }
    for (std::size_t index = 0; index < kSteady; ++index) {
      ASSERT_TRUE(places_[index].worker->group != nullptr) << places_[index].worker->error->message;
      EXPECT_EQ(*places_[index].worker->find(places_[index].worker->self.info.name()),
                places_[index].worker->self);
    }
  }

  sim::Loop& loop() { return loop_; }
  std::size_t join_count() const { return join_count_; }
  std::size_t refused_count() const { return refused_count_; }

 private:
  void start(std::size_t index) {
    Place& place = places_[index];
    count_refused(place);
    if (place.worker && !place.worker->error && !place.worker->group) ++leases_left_max_;
    const std::int64_t id = index < kSteady ? static_cast<std::int64_t>(index) * 7
                                            : static_cast<std::int64_t>(random_.below(kIds));
    std::string name = fmt::format("worker-{}", index);
    place.worker = std::make_unique<GroupWorker>(*place.loop, *place.store,
                                                 member(std::move(name), id, random_.next() | 1U));
    place.started = loop_.now();
    place.joined.reset();
    place.was_stopped = false;
    place.worker->when_joined = [this, &place] { check_joined(place); };
    place.worker->when_told = [this, &place] { check_told(place); };
    place.worker->join_dynamic({}, place.loop->now() + 20s);
  }

  void do_something(std::size_t index) {
    Place& place = places_[index];
    if (place.loop->stopped()) return;
    if (!place.worker || !place.worker->group) {
      // One that was refused, or never came; now and then one in the middle of coming.
      if (!place.worker || place.worker->error || random_.chance(100)) start(index);
      return;
    }
    const std::uint64_t what = random_.below(10);
    if (place.worker->left) {
      if (*place.worker->left) place.worker.reset();
    } else if (what < 4) {
      place.worker->leave(place.loop->now() + 20s);
    } else if (what < 6) {
      if (place.was_stopped) ++leases_left_max_;
      place.worker.reset();  // killed
    } else if (what < 8) {
      place.was_stopped = true;
      place.resumes = loop_.now() + Duration(static_cast<std::int64_t>(random_.below(15)) * 1s);
      place.loop->stop();
    } else {
      const auto& members = place.worker->members;
      place.worker->group->suspect(members[random_.below(members.size())]);
    }
  }

  // Whoever was in when the newcomer came, and was not away since, knows it.
  void check_joined(Place& newcomer) {
    newcomer.joined = loop_.now();
    ++join_count_;
    for (const Place& other : places_) {
      if (!other.worker || !other.worker->group || !other.joined || other.worker->left) continue;
      if (*other.joined >= newcomer.started || other.was_stopped) continue;
      const Member* const seen = newcomer.worker->find(other.worker->self.info.name());
      if (seen == nullptr || *seen != other.worker->self) continue;
      const Member* const known = other.worker->find(newcomer.worker->self.info.name());
      EXPECT_TRUE(known != nullptr) << newcomer.worker->self.info.describe() << " is not known to "
                                    << other.worker->self.info.describe();
    }
  }

  // Whoever has joined and stays is in every list from then on.
  void check_told(Place& place) {
    std::set<std::string> names;
    std::set<std::int16_t> ids;
    for (const Member& one : place.worker->members) {
      EXPECT_TRUE(names.insert(one.info.name()).second);
      EXPECT_TRUE(ids.insert(one.info.id()).second);
    }
    for (std::size_t index = 0; index < kSteady; ++index) {
      const Place& steady = places_[index];
      if (!steady.joined || *steady.joined >= place.started) continue;
      const Member* const seen = place.worker->find(steady.worker->self.info.name());
      ASSERT_TRUE(seen != nullptr) << "worker-" << index;
      EXPECT_EQ(*seen, steady.worker->self);
    }
  }

  void count_refused(const Place& place) {
    if (place.worker && place.worker->error) ++refused_count_;
  }

  sim::Loop loop_;
  Random random_;
  std::unique_ptr<store::Store> store_;
  std::deque<Place> places_;
  std::size_t join_count_ = 0;
  std::size_t refused_count_ = 0;
  std::size_t leases_left_max_ = 0;
};

// S183 but for the calls, which are in agent_sim_test.cpp.
TEST(DynamicGroupCrowd, AgreesInTheEndHoweverWorkersComeAndGo) {
  tests::LogCapture log(log::Level::Error);
  for (const std::uint64_t seed : tests::seeds_to_run(tests::kIsSlow ? 1 : 3, 1)) {
    SCOPED_TRACE(tests::replay_command(seed));
    Crowd crowd(seed);
    crowd.make_trouble(30s);
    // Each that died last is taken out a lease later, each that was cut off while it came, too; two
    // observers may have died with it.
    const TimePoint limit = crowd.loop().now() + 60s;
    std::string unrest = "it has not begun";
    while (!unrest.empty() && crowd.loop().now() < limit) {
      crowd.loop().advance(1s);
      unrest = crowd.unrest();
    }
    ASSERT_EQ(unrest, "");
    crowd.expect_nobody_lost();
    EXPECT_GT(crowd.join_count(), kSteady + 20);
    EXPECT_GT(crowd.refused_count(), 0U);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(DynamicGroupCrowd, ComesAllAtOnce) {
  sim::Loop loop;
  const auto store = store::make_memory_store(loop);
  std::deque<Place> places;
  for (std::size_t index = 0; index < kWorkers; ++index) {
    Place& place = places.emplace_back(loop, *store, index);
    place.worker = std::make_unique<GroupWorker>(
        *place.loop, *place.store,
        member(fmt::format("w{}", index), static_cast<std::int64_t>(index), index + 1));
    place.worker->join_dynamic({}, place.loop->now() + 30s);
  }
  const auto all_in = [&] {
    for (const Place& place : places) {
      if (place.worker->error) return true;
      if (!place.worker->group || place.worker->members.size() != kWorkers) return false;
    }
    return true;
  };
  ASSERT_TRUE(loop.run_until(all_in, TimePoint() + 30s));
  for (const Place& place : places) {
    EXPECT_FALSE(place.worker->error) << place.worker->error->message;
    EXPECT_EQ(place.worker->members, places.front().worker->members);
  }
  // And goes at once.
  for (Place& place : places) place.worker->leave(place.loop->now() + 30s);
  const auto all_out = [&] {
    for (const Place& place : places) {
      if (!place.worker->left) return false;
    }
    return true;
  };
  ASSERT_TRUE(loop.run_until(all_out, loop.now() + 30s));
  for (const Place& place : places) EXPECT_TRUE(*place.worker->left);
  EXPECT_EQ(loop.block_on(store->list_keys("")), (Names{"kind", "members"}));
  for (Place& place : places) place.worker.reset();
}

// ---- over the network

class NetworkedDynamicGroup : public store::testing::TcpStoreBase,
                              public ::testing::TestWithParam<wire::Dialect> {
 protected:
  NetworkedDynamicGroup() { store = connect_to(client_host, GetParam(), default_options()); }
};
INSTANTIATE_TEST_SUITE_P(Dialect, NetworkedDynamicGroup,
                         ::testing::Values(wire::Dialect::Extension, wire::Dialect::Modern,
                                           wire::Dialect::Legacy),
                         store::testing::dialect_name);

TEST_P(NetworkedDynamicGroup, NeedsOnlyWhatThePlainestServerKnows) {
  GroupWorker a(client_host.loop(), *store, member("a", 0, 1));
  GroupWorker b(writer_host.loop(), *writer, member("b", 1, 2));
  GroupWorker c(client_host.loop(), *store, member("c", 2, 3));
  for (GroupWorker* worker : {&a, &b, &c}) {
    worker->join_dynamic({}, loop.now() + 10s);
    ASSERT_TRUE(loop.run_until([&] { return worker->done(); }, loop.now() + 20s));
    ASSERT_TRUE(worker->group != nullptr) << worker->error->message;
  }
  EXPECT_EQ(a.names(), (Names{"a", "b", "c"}));
  EXPECT_EQ(b.names(), (Names{"a", "b", "c"}));
  c.die();
  const auto are_two = [&] { return a.names() == Names{"a", "b"} && b.names() == a.names(); };
  ASSERT_TRUE(loop.run_until(are_two, loop.now() + 10s));
  b.leave(loop.now() + 10s);
  ASSERT_TRUE(loop.run_until([&] { return a.names() == Names{"a"}; }, loop.now() + 10s));
}

TEST_P(NetworkedDynamicGroup, ComesTogetherAgainAfterItsConnectionsBroke) {
  GroupWorker a(client_host.loop(), *store, member("a", 0, 1));
  GroupWorker b(writer_host.loop(), *writer, member("b", 1, 2));
  a.join_dynamic({}, loop.now() + 10s);
  b.join_dynamic({}, loop.now() + 10s);
  ASSERT_TRUE(loop.run_until([&] { return a.group && b.group; }, loop.now() + 20s));
  for (int round = 0; round < 5; ++round) {
    network.reset_all(client_host);
    loop.advance(2s);
  }
  EXPECT_EQ(a.members, (std::vector<Member>{a.self, b.self}));
  EXPECT_EQ(b.members, a.members);
  // A host that is paused for longer than a lease is out, and comes back.
  writer_host.loop().stop();
  ASSERT_TRUE(loop.run_until([&] { return a.names() == Names{"a"}; }, loop.now() + 10s));
  writer_host.loop().resume();
  ASSERT_TRUE(loop.run_until([&] { return a.names() == Names{"a", "b"}; }, loop.now() + 10s));
  EXPECT_NE(a.find("b")->incarnation, b.self.incarnation);
  // A server that was started again has lost everything.
  stop_server();
  loop.advance(1s);
  start_server();
  const auto are_two = [&] {
    const auto keys = loop.block_on(writer->num_keys());
    return keys && *keys >= 4 && a.names() == Names{"a", "b"} && a.members == b.members;
  };
  bool together = false;
  for (int second = 0; second < 30 && !together; ++second) {
    loop.advance(1s);
    together = are_two();
  }
  EXPECT_TRUE(together);
}

// ---- on real time

class RealDynamicGroup : public ::testing::Test {
 protected:
  std::unique_ptr<store::TcpStore> connect() {
    store::TcpStoreOptions options;
    options.endpoint = {"127.0.0.1", server.port()};
    auto connected =
        loop.block_on(store::connect_tcp_store(loop, transport, random, std::move(options)));
    EXPECT_TRUE(connected) << connected.error().message;
    return std::move(*connected);
  }
  // Until it holds, or for so long that it never will.
  bool run_until(const std::function<bool()>& holds) { return loop.block_on(wait(loop, holds)); }
  static Task<bool> wait(Loop& on, std::function<bool()> holds) {
    const TimePoint limit = on.now() + 60s;
    while (!holds() && on.now() < limit) {
      const TimePoint soon = on.now() + 1ms;
      co_await sleep_until(on, soon);
    }
    co_return holds();
  }

  tests::ServerThread server;
  net::EpollLoop loop;
  net::TcpTransport transport{loop};
  Random random{3};
};

TEST_F(RealDynamicGroup, JoinsLosesAndTakesBackWorkersThroughAServer) {  // S174, S179, S172
  const GroupOptions options{.renew_interval = 50ms, .lease = 1s};
  std::deque<std::unique_ptr<store::TcpStore>> stores;
  std::deque<GroupWorker> workers;
  const auto start = [&](std::string name, std::int64_t id, std::uint64_t incarnation) {
    stores.push_back(connect());
    workers.emplace_back(loop, *stores.back(), member(std::move(name), id, incarnation));
    workers.back().join_dynamic(options, loop.now() + 60s);
  };
  for (std::uint64_t id = 0; id < 4; ++id) {
    start(fmt::format("worker-{}", id), static_cast<std::int64_t>(id), id + 1);
  }
  const Names all{"worker-0", "worker-1", "worker-2", "worker-3"};
  ASSERT_TRUE(run_until([&] {
    for (GroupWorker& worker : workers) {
      if (!worker.group || worker.names() != all) return false;
    }
    return true;
  }));
  workers[1].die();
  ASSERT_TRUE(run_until([&] {
    return workers[0].names() == Names{"worker-0", "worker-2", "worker-3"};
  }));
  start("worker-1", 1, 99);
  ASSERT_TRUE(run_until([&] { return workers[4].done(); }));
  ASSERT_TRUE(workers[4].group != nullptr) << workers[4].error->message;
  ASSERT_TRUE(run_until([&] { return workers[3].names() == all; }));
  for (const std::size_t index : {0U, 2U, 3U, 4U}) workers[index].leave(loop.now() + 60s);
  ASSERT_TRUE(run_until(
      [&] { return workers[0].left && workers[2].left && workers[3].left && workers[4].left; }));
  for (const std::size_t index : {0U, 2U, 3U, 4U}) EXPECT_TRUE(*workers[index].left);
}

}  // namespace
}  // namespace muster::rpc
