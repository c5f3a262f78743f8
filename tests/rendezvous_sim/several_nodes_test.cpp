// What several nodes see of one another, with both drivers. The numbers in the comments are those
// of the rows of scenarios in the rendezvous specification.
#include "muster/store/service.h"
#include "tests/rendezvous_sim/world.h"
#include "tests/server/log_capture.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous::testing {
namespace {

using namespace std::chrono_literals;

// Longer than any exchange of messages takes on a fine day, and than a first join's jitter.
constexpr Duration kSoon = 500ms;

Settings limits(std::int64_t min_nodes, std::int64_t max_nodes) {
  Settings settings;
  settings.run_id = "run";
  settings.min_nodes = min_nodes;
  settings.max_nodes = max_nodes;
  settings.timeouts.last_call = 1s;
  return settings;
}

class SeveralNodes : public ::testing::TestWithParam<Kind> {
 protected:
  // A world with these limits.
  World& make_world(const Settings& settings) {
    WorldOptions options;
    options.kind = GetParam();
    options.settings = settings;
    world_ = std::make_unique<World>(options);
    return *world_;
  }
  World& world() { return *world_; }
  bool is_hosted() const { return GetParam() == Kind::Hosted; }

  // The named nodes, in a complete round.
  std::vector<Process*> make_round(const std::vector<std::string>& names) {
    std::vector<Process*> nodes;
    for (const std::string& name : names) nodes.push_back(&world().add(name));
    for (Process* node : nodes) node->begin_join();
    EXPECT_TRUE(world().run_until_all_are_in(20s));
    return nodes;
  }

  void TearDown() override {
    if (world_ == nullptr) return;
    for (const std::string& fault : world_->ledger().faults()) ADD_FAILURE() << fault;
  }

  // What a member learns at once if it is told, and within a keep-alive interval if it must look.
  bool soon(const std::function<bool()>& reached) { return world().run_until(reached, kSoon); }

 private:
  const tests::LogCapture log_;
  std::unique_ptr<World> world_;
};

INSTANTIATE_TEST_SUITE_P(WithEveryDriver, SeveralNodes, ::testing::ValuesIn(kKinds),
                         [](const auto& instance) { return word_for(instance.param); });

// 111; the bootstrap info is in bootstrap_test.cpp.
TEST_P(SeveralNodes, MeetInOneRoundWithDifferentRanks) {
  make_world(limits(2, 2));
  const auto nodes = make_round({"a", "b"});
  EXPECT_EQ(nodes[0]->place().id, nodes[1]->place().id);
  EXPECT_EQ(nodes[0]->place().rank, 0);
  EXPECT_EQ(nodes[1]->place().rank, 1);
  EXPECT_EQ(nodes[0]->place().world_size, 2);
  EXPECT_EQ(nodes[1]->place().world_size, 2);
  EXPECT_LE(world().now().time_since_epoch(), 350ms) << "nobody waits for a last call";
}

// 112
TEST_P(SeveralNodes, StartWithoutTheMissingOnesAfterTheLastCall) {
  make_world(limits(1, 3));
  Process& first = world().add("a");
  Process& second = world().add("b");
  first.begin_join();
  ASSERT_TRUE(world().run_until([&] { return world().state().participants.size() == 1; }, kSoon));
  const TimePoint arrival = world().now();
  world().run_for(300ms);
  second.begin_join();
  ASSERT_TRUE(world().run_until_all_are_in(5s));
  EXPECT_GE(world().now() - arrival, 1s);
  EXPECT_LE(world().now() - arrival, 2500ms);
  EXPECT_EQ(first.place().world_size, 2);
  EXPECT_EQ(second.place().world_size, 2);
}

// 113
TEST_P(SeveralNodes, TakeBackAJoinThatTimesOut) {
  make_world(limits(2, 3));
  Process& alone = world().add("a");
  alone.begin_join(5s);
  ASSERT_TRUE(world().run_until([&] { return alone.joined().has_value(); }, 7s));
  ASSERT_FALSE(alone.joined()->has_value());
  EXPECT_EQ(alone.joined()->error().kind, ErrorKind::Timeout);
  EXPECT_GE(world().now().time_since_epoch(), 5s);
  EXPECT_TRUE(world().state().participants.empty()) << describe(world().state());
  EXPECT_FALSE(world().state().complete);
}

// 114
TEST_P(SeveralNodes, KeepALateNodeAsASpareWhileTheGroupIsFull) {
  make_world(limits(2, 2));
  const auto nodes = make_round({"a", "b"});
  Process& late = world().add("c");
  late.begin_join(5s);
  ASSERT_TRUE(soon([&] { return world().state().redundancy_list.contains(late.node()); }));
  const Status before = nodes[0]->status();
  world().run_for(60s);
  EXPECT_FALSE(late.joined()) << "a spare has no deadline";
  EXPECT_TRUE(world().state().redundancy_list.contains(late.node()));
  for (const Process* node : nodes) {
    EXPECT_EQ(node->status(), before);
    EXPECT_EQ(node->status().waiting, 0);
    EXPECT_TRUE(node->status().member);
  }
}

// 115
TEST_P(SeveralNodes, TakeTheSpareInWhenAMemberVanishes) {
  make_world(limits(2, 2));
  const auto nodes = make_round({"a", "b"});
  Process& late = world().add("c");
  late.begin_join(60s);
  ASSERT_TRUE(soon([&] { return world().state().redundancy_list.contains(late.node()); }));
  world().run_for(50s);
  world().kill(*nodes[0], sim::Crash::Silent);
  const TimePoint death = world().now();
  ASSERT_TRUE(world().run_until([&] { return nodes[1]->status().waiting == 1; }, 25s));
  EXPECT_GE(world().now() - death, 10s) << "silence is not death before its time";
  EXPECT_LE(world().now() - death, 21s);
  EXPECT_TRUE(nodes[1]->status().lost);
  EXPECT_TRUE(world().state().wait_list.contains(late.node()));
  // It waits for the member as long as it would have from the beginning.
  world().run_for(50s);
  EXPECT_FALSE(late.joined());
  nodes[1]->begin_join();
  ASSERT_TRUE(world().run_until_all_are_in(kSoon));
  EXPECT_EQ(late.place().id.round, 1U);
  EXPECT_EQ(late.place().world_size, 2);
}

TEST_P(SeveralNodes, TakeTheSpareInAtOnceWhereAServerSeesAMembersConnectionBreak) {
  make_world(limits(2, 2));
  const auto nodes = make_round({"a", "b"});
  Process& late = world().add("c");
  late.begin_join();
  ASSERT_TRUE(soon([&] { return world().state().redundancy_list.contains(late.node()); }));
  world().kill(*nodes[0], sim::Crash::Loud);
  const TimePoint death = world().now();
  ASSERT_TRUE(world().run_until([&] { return nodes[1]->status().waiting == 1; }, 25s));
  // A plain store does not tell whose connection broke.
  EXPECT_GE(world().now() - death, is_hosted() ? Duration(500ms) : Duration(10s));
  EXPECT_LE(world().now() - death, is_hosted() ? Duration(600ms) : Duration(21s));
}

// 116
TEST_P(SeveralNodes, EndTheSpareWithSuccessWhenTheRunIsClosed) {
  make_world(limits(2, 2));
  const auto nodes = make_round({"a", "b"});
  Process& spare = world().add("c");
  spare.begin_join();
  ASSERT_TRUE(soon([&] { return world().state().redundancy_list.contains(spare.node()); }));
  nodes[1]->begin_close();
  ASSERT_TRUE(world().run_until([&] { return spare.joined().has_value(); }, 2s));
  ASSERT_FALSE(spare.joined()->has_value());
  EXPECT_EQ(spare.joined()->error().kind, ErrorKind::Finished);
  ASSERT_TRUE(soon([&] { return nodes[1]->done().has_value(); }));
  EXPECT_TRUE(nodes[1]->done()->has_value());
  Process& fresh = world().add("d");
  fresh.begin_join();
  ASSERT_TRUE(soon([&] { return fresh.joined().has_value(); }));
  ASSERT_FALSE(fresh.joined()->has_value());
  EXPECT_EQ(fresh.joined()->error().kind, ErrorKind::Closed);
  // The group goes on.
  world().run_for(30s);
  for (const Process* node : nodes) {
    EXPECT_TRUE(node->status().closed);
    EXPECT_TRUE(node->status().member);
  }
}

// 117
TEST_P(SeveralNodes, MeetAgainWhenALateNodeComesAndThereIsRoom) {
  make_world(limits(1, 2));
  const auto nodes = make_round({"a"});
  ASSERT_EQ(nodes[0]->place().world_size, 1);
  Process& second = world().add("b");
  second.begin_join();
  ASSERT_TRUE(soon([&] { return nodes[0]->status().waiting == 1; }));
  EXPECT_TRUE(world().state().wait_list.contains(second.node()));
  nodes[0]->begin_join();
  ASSERT_TRUE(world().run_until_all_are_in(kSoon));
  EXPECT_EQ(nodes[0]->place().id.round, 1U);
  EXPECT_EQ(second.place().id, nodes[0]->place().id);
  EXPECT_TRUE(world().state().wait_list.empty());
  EXPECT_EQ(nodes[0]->status().waiting, 0);
}

// 118
TEST_P(SeveralNodes, FollowOneWhoseWorkersFailedIntoTheNextRound) {
  make_world(limits(3, 4));
  const auto nodes = make_round({"a", "b", "c"});
  nodes[1]->begin_join();
  ASSERT_TRUE(soon([&] { return nodes[0]->status().waiting == 1 && nodes[2]->status().lost; }));
  EXPECT_TRUE(world().state().wait_list.contains(nodes[1]->node()));
  nodes[2]->begin_join();
  world().run_for(kSoon);
  EXPECT_EQ(world().state().round, 0U) << "the last one is still in it";
  EXPECT_EQ(world().state().wait_list.size(), 2U);
  nodes[0]->begin_join();
  ASSERT_TRUE(world().run_until_all_are_in(5s));
  for (const Process* node : nodes) {
    EXPECT_EQ(node->place().id.round, 1U);
    EXPECT_EQ(node->place().world_size, 3);
  }
}

// 119
TEST_P(SeveralNodes, CallAgainWhenOneDiesDuringTheLastCall) {
  Settings settings = limits(2, 3);
  settings.timeouts.last_call = 60s;
  make_world(settings);
  Process& first = world().add("a");
  Process& second = world().add("b");
  first.begin_join();
  second.begin_join();
  ASSERT_TRUE(soon([&] { return world().state().deadline.has_value(); }));
  world().kill(second, sim::Crash::Silent);
  const TimePoint death = world().now();
  ASSERT_TRUE(world().run_until([&] { return world().state().participants.size() == 1; }, 30s));
  EXPECT_GE(world().now() - death, 10s);
  EXPECT_LE(world().now() - death, 21s);
  EXPECT_FALSE(world().state().deadline);
  world().run_for(30s);
  Process& third = world().add("c");
  third.begin_join();
  ASSERT_TRUE(soon([&] { return world().state().deadline.has_value(); }));
  const TimePoint begin = world().now();
  ASSERT_TRUE(world().run_until_all_are_in(70s));
  EXPECT_GE(world().now() - begin, 59s) << "a whole new last call";
  EXPECT_LE(world().now() - begin, 61s);
  EXPECT_EQ(first.place().world_size, 2);
}

// 120
TEST_P(SeveralNodes, LeaveTheWaitListWhenTheirTimeIsUp) {
  make_world(limits(1, 2));
  const auto nodes = make_round({"a"});
  Process& late = world().add("b");
  late.begin_join(5s);
  ASSERT_TRUE(soon([&] { return nodes[0]->status().waiting == 1; }));
  ASSERT_TRUE(world().run_until([&] { return late.joined().has_value(); }, 7s));
  ASSERT_FALSE(late.joined()->has_value());
  EXPECT_EQ(late.joined()->error().kind, ErrorKind::Timeout);
  EXPECT_TRUE(world().state().wait_list.empty());
  ASSERT_TRUE(soon([&] { return nodes[0]->status().waiting == 0; }));
  EXPECT_TRUE(nodes[0]->status().member);
}

// 121
TEST_P(SeveralNodes, SayThatTheyCannotReachTheStoreWhenItsHostDies) {
  make_world(limits(2, 2));
  const auto nodes = make_round({"a", "b"});
  world().kill_server(sim::Crash::Loud);
  // What was known stays known for a while.
  std::optional<Result<Status>> early;
  TaskScope scope;
  const auto look = [](Driver& driver, std::optional<Result<Status>>& outcome) -> Task<void> {
    outcome = co_await driver.look();
  };
  world().run_for(1s);
  scope.start(look(nodes[0]->driver(), early));
  ASSERT_TRUE(world().run_until([&] { return early.has_value(); }, 30s));
  EXPECT_TRUE(early->has_value());
  world().run_for(40s);
  std::optional<Result<Status>> late;
  scope.start(look(nodes[0]->driver(), late));
  ASSERT_TRUE(world().run_until([&] { return late.has_value(); }, 30s));
  ASSERT_FALSE(late->has_value());
  EXPECT_EQ(late->error().kind, ErrorKind::Unavailable);
  nodes[1]->begin_join(5s);
  nodes[0]->begin_close();
  ASSERT_TRUE(world().run_until([&] { return nodes[1]->joined() && nodes[0]->done(); }, 60s));
  ASSERT_FALSE(nodes[1]->joined()->has_value());
  EXPECT_EQ(nodes[1]->joined()->error().kind, ErrorKind::Unavailable);
  ASSERT_FALSE(nodes[0]->done()->has_value());
  EXPECT_EQ(nodes[0]->done()->error().kind, ErrorKind::Unavailable);
}

// 122
TEST_P(SeveralNodes, DoNotMeetAgainForOneThatFindsNoSeat) {
  make_world(limits(1, 2));
  const auto nodes = make_round({"b"});
  Process& second = world().add("a");
  Process& third = world().add("c");
  second.begin_join();
  third.begin_join();
  ASSERT_TRUE(soon([&] { return world().state().wait_list.size() == 2; }));
  nodes[0]->begin_join();
  ASSERT_TRUE(soon([&] { return world().state().complete && world().state().round == 1; }));
  world().run_for(60s);
  EXPECT_EQ(world().state().round, 1U);
  EXPECT_EQ(world().state().participants.size(), 2U);
  EXPECT_EQ(world().state().redundancy_list.size(), 1U);
  EXPECT_TRUE(world().state().wait_list.empty());
  int in_count = 0;
  for (const auto& process : world().processes()) {
    if (!process->is_in()) continue;
    ++in_count;
    EXPECT_EQ(process->status().waiting, 0);
    EXPECT_FALSE(process->status().lost);
  }
  EXPECT_EQ(in_count, 2);
}

// 123
TEST_P(SeveralNodes, SeeTheFrozenSizeEvenIfAMemberHasLeftAgain) {
  make_world(limits(2, 2));
  Process& fast = world().add("a");
  Process& slow = world().add("b");
  slow.begin_join();
  ASSERT_TRUE(soon([&] { return world().state().participants.size() == 1; }));
  // Stopped before it can see that the round is complete.
  world().network().pause(slow.host());
  fast.begin_join();
  ASSERT_TRUE(soon([&] { return fast.is_in(); }));
  fast.begin_leave();
  ASSERT_TRUE(soon([&] { return fast.done().has_value(); }));
  ASSERT_EQ(world().state().participants.size(), 1U);
  world().network().resume(slow.host());
  ASSERT_TRUE(soon([&] { return slow.is_in(); }));
  EXPECT_EQ(slow.place().world_size, 2);
  EXPECT_EQ(slow.place().rank, 1);
  EXPECT_TRUE(world().run_until([&] { return slow.status().lost; }, 6s));
}

// 126
TEST_P(SeveralNodes, NeedNoClocksThatAgree) {
  Settings settings = limits(2, 3);
  settings.timeouts.last_call = 10s;
  make_world(settings);
  world().set_clock_ahead(world().network().host("b"), 60s);
  world().set_clock_ahead(world().network().host("server"), 30min);
  Process& first = world().add("a");
  Process& second = world().add("b");
  first.begin_join();
  second.begin_join();
  ASSERT_TRUE(soon([&] { return world().state().deadline.has_value(); }));
  const TimePoint begin = world().now();
  ASSERT_TRUE(world().run_until_all_are_in(20s));
  EXPECT_GE(world().now() - begin, 9900ms);
  EXPECT_LE(world().now() - begin, 10500ms);
  world().run_for(60s);
  EXPECT_EQ(world().state().participants.size(), 2U);
  EXPECT_FALSE(world().state().lost);
  EXPECT_TRUE(first.status().member);
  EXPECT_TRUE(second.status().member);
}

// 127
TEST_P(SeveralNodes, AreDifferentNodesEvenWithEqualNamesAndProcessIds) {
  const Settings settings = limits(2, 2);
  make_world(settings);
  Process& first = world().add("a", settings, Node{"container", 1, 0, 0x1111});
  Process& second = world().add("b", settings, Node{"container", 1, 0, 0x2222});
  first.begin_join();
  second.begin_join();
  ASSERT_TRUE(world().run_until_all_are_in(5s));
  EXPECT_EQ(world().state().participants.size(), 2U);
  EXPECT_EQ(first.place().rank, 0);
  EXPECT_EQ(second.place().rank, 1);
}

// 128
TEST_P(SeveralNodes, MustAgreeOnTheLimits) {
  make_world(limits(2, 2));
  Process& first = world().add("a");
  first.begin_join();
  ASSERT_TRUE(soon([&] { return world().state().participants.size() == 1; }));
  Process& other = world().add("b", limits(2, 3), Node{"b", 1, 0, 7});
  other.begin_join();
  ASSERT_TRUE(soon([&] { return other.joined().has_value(); }));
  ASSERT_FALSE(other.joined()->has_value());
  EXPECT_EQ(other.joined()->error().kind, ErrorKind::Invalid);
  EXPECT_EQ(world().state().participants.size(), 1U);
  Process& third = world().add("c");
  third.begin_join();
  EXPECT_TRUE(soon([&] { return first.is_in() && third.is_in(); }));
}

// -- what a restart of the store does
// --------------------------------------------------------------

TEST_P(SeveralNodes, CarryOnOrMeetAgainWhenTheServerHasForgottenThem) {
  make_world(limits(2, 3));
  const auto nodes = make_round({"a", "b"});
  world().kill_server(sim::Crash::Loud);
  world().run_for(2s);
  world().restart_server();
  world().run_for(30s);
  if (is_hosted()) {
    // The server has taken the run over from what they say.
    for (const Process* node : nodes) EXPECT_TRUE(node->status().member);
    EXPECT_EQ(world().state().participants.size(), 2U);
    EXPECT_EQ(world().state().birth, nodes[0]->place().id.birth);
    EXPECT_FALSE(world().state().lost);
  } else {
    for (const Process* node : nodes) EXPECT_FALSE(node->status().member);
  }
  const RoundId before = nodes[0]->place().id;
  for (Process* node : nodes) node->begin_join();
  ASSERT_TRUE(world().run_until_all_are_in(10s));
  EXPECT_EQ(nodes[0]->place().id, nodes[1]->place().id);
  EXPECT_NE(nodes[0]->place().id, before);
}

TEST_P(SeveralNodes, FormARoundWhoseServerWasRestartedInBetween) {
  make_world(limits(2, 2));
  Process& first = world().add("a");
  first.begin_join();
  ASSERT_TRUE(soon([&] { return world().state().participants.size() == 1; }));
  world().kill_server(sim::Crash::Silent);
  world().run_for(5s);
  world().restart_server();
  Process& second = world().add("b");
  second.begin_join();
  ASSERT_TRUE(world().run_until_all_are_in(30s));
  EXPECT_EQ(first.place().id, second.place().id);
}

// -- many -----------------------------------------------------------------------------------------

// What all nodes together have said and heard.
struct Traffic {
  std::size_t messages = 0;
  std::size_t bytes = 0;
};

class CountedTalk final : public store::Talk {
 public:
  CountedTalk(std::unique_ptr<store::Talk> inner, Traffic& traffic)
      : inner_(std::move(inner)), traffic_(traffic) {}
  void say(std::string message) override {
    ++traffic_.messages;
    traffic_.bytes += message.size();
    inner_->say(std::move(message));
  }
  void set_patience(Duration patience) override { inner_->set_patience(patience); }
  Task<Result<std::string>> next(TimePoint deadline) override {
    auto message = co_await inner_->next(deadline);
    if (message) {
      ++traffic_.messages;
      traffic_.bytes += message->size();
    }
    co_return message;
  }

 private:
  std::unique_ptr<store::Talk> inner_;
  Traffic& traffic_;
};

class CountedServices final : public store::ServiceClient {
 public:
  CountedServices(store::ServiceClient& inner, Traffic& traffic)
      : inner_(inner), traffic_(traffic) {}
  Task<Result<std::unique_ptr<store::Talk>>> open(store::ServiceId service,
                                                  std::string message) override {
    ++traffic_.messages;
    traffic_.bytes += message.size();
    auto talk = co_await inner_.open(service, std::move(message));
    if (!talk) co_return fail(std::move(talk.error()));
    std::unique_ptr<store::Talk> counted =
        std::make_unique<CountedTalk>(std::move(*talk), traffic_);
    co_return counted;
  }

 private:
  store::ServiceClient& inner_;
  Traffic& traffic_;
};

// N nodes that join within 0.3 s of one another; they share some hosts, which is cheaper to
// simulate.
class Crowd : public ::testing::Test {
 protected:
  static constexpr std::size_t kHostCount = 16;

  void make(std::size_t count, Kind kind) {
    WorldOptions options;
    options.kind = kind;
    options.settings = limits(static_cast<std::int64_t>(count), static_cast<std::int64_t>(count));
    // All connect at once, and no more than so many are let in at a time.
    options.sabotage.services = [this](store::ServiceClient& services) {
      return std::make_unique<CountedServices>(services, traffic);
    };
    world = std::make_unique<World>(options);
    Random random(1);
    for (std::size_t index = 0; index < count; ++index) {
      Process& process = world->add(fmt::format("host-{}", index % kHostCount));
      arrivals.start(arrive(process, Duration(random.below(300'000'000))));
    }
  }
  Task<void> arrive(Process& process, Duration when) {
    const TimePoint until = TimePoint() + when;
    co_await sleep_until(world->loop(), until);
    process.begin_join();
  }
  bool all_in(Duration limit) {
    // Looking at everybody after every turn would cost more than the rest.
    std::size_t in_count = 0;
    return world->loop().run_until(
        [&] {
          while (in_count < world->processes().size() && world->processes()[in_count]->is_in()) {
            ++in_count;
          }
          return in_count == world->processes().size();
        },
        TimePoint() + limit);
  }
  void expect_all_agree() {
    std::set<std::int64_t> ranks;
    for (const auto& process : world->processes()) {
      ranks.insert(process->place().rank);
      ASSERT_EQ(process->place().id, world->processes()[0]->place().id);
      ASSERT_EQ(process->place().world_size, std::ssize(world->processes()));
    }
    EXPECT_EQ(ranks.size(), world->processes().size());
    EXPECT_EQ(*ranks.rbegin(), std::ssize(world->processes()) - 1);
    for (const std::string& fault : world->ledger().faults()) ADD_FAILURE() << fault;
  }

  const tests::LogCapture log;
  Traffic traffic;
  std::unique_ptr<World> world;
  TaskScope arrivals;
};

// 129
TEST_F(Crowd, OfAThousandNodesJoinsWithAFewMessagesEach) {
  make(1000, Kind::Hosted);
  ASSERT_TRUE(all_in(1s));
  EXPECT_LE(traffic.messages, 4U * 1000U);
  EXPECT_LE(traffic.bytes, 250U * 1000U);
  expect_all_agree();
}

TEST_F(Crowd, OfTenThousandNodesJoinsWithinASecond) {
  make(10'000, Kind::Hosted);
  ASSERT_TRUE(all_in(1s));
  EXPECT_LE(traffic.messages, 4U * 10'000U);
  expect_all_agree();
}

// All leave and meet again: three steps a node, and no more messages than the first time.
TEST_F(Crowd, OfAThousandNodesMeetsAgainAsFast) {
  make(1000, Kind::Hosted);
  ASSERT_TRUE(all_in(1s));
  traffic = {};
  const TimePoint begin = world->now();
  for (const auto& process : world->processes()) process->begin_join();
  ASSERT_TRUE(all_in(2s));
  EXPECT_LE(world->now() - begin, 100ms);
  EXPECT_LE(traffic.messages, 6U * 1000U);
  expect_all_agree();
}

// The compare-and-set driver is for stores that are not ours, and does not scale as well; but it
// does not collapse either.
// What each of them would write alone, one writes for those who come while it writes.
TEST_F(Crowd, OfAHundredNodesJoinsOverAPlainStoreWithFewWrites) {
  make(100, Kind::Modern);
  ASSERT_TRUE(all_in(10s));
  expect_all_agree();
  EXPECT_LT(world->server().shared_write_count(), 50U);
  const std::uint64_t before = world->server().shared_write_count();
  for (const auto& process : world->processes()) process->begin_join();
  ASSERT_TRUE(all_in(20s));
  expect_all_agree();
  EXPECT_EQ(world->processes()[0]->place().id.round, 1U);
  EXPECT_LT(world->server().shared_write_count() - before, 10U);
}

}  // namespace
}  // namespace muster::rendezvous::testing
