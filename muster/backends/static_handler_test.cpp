#include "muster/backends/static_handler.h"

#include "muster/backends/hosted_store.h"
#include "muster/store/tcp_store.h"
#include "tests/backends/machines.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace muster::backends {
namespace {

using namespace rendezvous;
using namespace std::chrono_literals;
using testing::Agent;

// The numbers in comments are the rows of the specification.
class StaticTest : public testing::MachinesTest {
 protected:
  Agent& node(std::int64_t rank, std::int64_t size) {
    Agent& node = agent("host-" + std::to_string(rank));
    node.parameters.backend = "static";
    node.parameters.endpoint = "host-0:7000";
    node.parameters.min_nodes = size;
    node.parameters.max_nodes = size;
    node.parameters.config["rank"] = rank;
    return node;
  }
  Agent& created(std::int64_t rank, std::int64_t size) {
    Agent& made = node(rank, size);
    EXPECT_TRUE(made.create(create_static));
    return made;
  }
  void expect_refused(Agent& node, std::string_view word) {
    const auto created = node.create(create_static);
    ASSERT_FALSE(created);
    EXPECT_EQ(created.error().kind, ErrorKind::Invalid);
    EXPECT_NE(created.error().message.find(word), std::string::npos) << created.error().message;
  }

  tests::LogCapture log;
};

// 46
TEST_F(StaticTest, EveryNodeNeedsARank) {
  Agent& without = node(0, 2);
  without.parameters.config.clear();
  expect_refused(without, "--node-rank");
  without.parameters.config["rank"] = Value();
  expect_refused(without, "--node-rank");
}
TEST_F(StaticTest, RanksAreThoseOfTheNodes) {
  for (const int rank : {-1, 2, 100}) {
    Agent& wrong = node(0, 2);
    wrong.parameters.config["rank"] = rank;
    expect_refused(wrong, "rank");
  }
}
TEST_F(StaticTest, TheEndpointNamesHostAndPort) {
  for (const char* endpoint : {"", "  ", "localhost", "[::1]"}) {
    Agent& without = node(0, 2);
    without.parameters.endpoint = endpoint;
    expect_refused(without, "port");
  }
  Agent& bad = node(0, 2);
  bad.parameters.endpoint = "host-0:70000";
  expect_refused(bad, "port");
}
TEST_F(StaticTest, TheRunNeedsAName) {
  Agent& without = node(0, 1);
  without.parameters.run_id = "";
  expect_refused(without, "run id");
}
TEST_F(StaticTest, ARankMayBeText) {
  Agent& typed = node(0, 1);
  typed.parameters.config["rank"] = " 0 ";
  ASSERT_TRUE(typed.create(create_static));
}

// 47
TEST_F(StaticTest, ANodeAloneIsInARoundAtOnceAndAgain) {
  Agent& alone = created(0, 1);
  for (const std::uint64_t round : {0U, 1U}) {
    join_all({&alone});
    const Info& info = **alone.info;
    EXPECT_EQ(info.rank, 0);
    EXPECT_EQ(info.world_size, 1);
    EXPECT_EQ(info.round, round);
    EXPECT_EQ(info.bootstrap, (StoreInfo{"host-0", 7000}));
    EXPECT_TRUE(loop.block_on(info.store->set("key", "value")));
    auto value = loop.block_on(info.store->get("key", loop.now() + 1s));
    ASSERT_TRUE(value);
    EXPECT_EQ(*value, "value");
  }
}
TEST_F(StaticTest, TheHostWaitsForAllAndTheOthersForTheHost) {
  Agent& third = created(2, 3);
  third.join();
  loop.advance(10s);
  EXPECT_FALSE(third.info);
  Agent& host = created(0, 3);
  host.join();
  loop.advance(10s);
  // Who has found the host does not wait for more.
  EXPECT_TRUE(third.joined());
  EXPECT_FALSE(host.info);
  Agent& second = created(1, 3);
  second.join();
  loop.advance(10s);
  EXPECT_TRUE(host.joined());
  EXPECT_TRUE(second.joined());
  EXPECT_EQ((*second.info)->rank, 1);
}
TEST_F(StaticTest, AHostThatIsNotThereIsAConnectionErrorInTime) {
  Agent& second = node(1, 2);
  second.parameters.config["timeout"] = 5;
  ASSERT_TRUE(second.create(create_static));
  second.join();
  loop.advance(6s);
  ASSERT_TRUE(second.info && !*second.info);
  EXPECT_EQ(second.info->error().kind, ErrorKind::Unavailable);
  EXPECT_NE(second.info->error().message.find("host-0:7000"), std::string::npos);
}
TEST_F(StaticTest, TheHostSaysWhoHasNotComeAndCanGoOnWaiting) {
  Agent& host = node(0, 4);
  host.parameters.config["timeout"] = 5;
  ASSERT_TRUE(host.create(create_static));
  Agent& second = created(1, 4);
  host.join();
  second.join();
  loop.advance(6s);
  ASSERT_TRUE(host.info && !*host.info);
  EXPECT_EQ(host.info->error().kind, ErrorKind::Timeout);
  EXPECT_NE(host.info->error().message.find("only 2 of 4 nodes"), std::string::npos);
  EXPECT_NE(host.info->error().message.find("ranks 2, 3"), std::string::npos)
      << host.info->error().message;
  // The store stays, with those who have come.
  Agent& third = created(2, 4);
  Agent& fourth = created(3, 4);
  join_all({&host, &third, &fourth});
  EXPECT_EQ((*host.info)->round, (*second.info)->round);
}
TEST_F(StaticTest, APortThatIsTakenIsAConnectionError) {
  const auto other = HostedStore::start(loop, random, network.host("host-0"), {"", 7000});
  ASSERT_TRUE(other);
  Agent& host = created(0, 1);
  host.join();
  loop.advance(1s);
  ASSERT_TRUE(host.info && !*host.info);
  EXPECT_EQ(host.info->error().kind, ErrorKind::Unavailable);
}

TEST_F(StaticTest, LaterRoundsDoNotSeeTheKeysOfEarlierOnes) {
  Agent& host = created(0, 2);
  Agent& second = created(1, 2);
  join_all({&host, &second});
  ASSERT_TRUE(loop.block_on((*host.info)->store->set("key", "old")));
  join_all({&host, &second});
  EXPECT_EQ((*host.info)->round, 1U);
  const auto value = loop.block_on((*second.info)->store->try_get("key"));
  ASSERT_TRUE(value);
  EXPECT_FALSE(*value);
}
TEST_F(StaticTest, WorkersOfALaterRoundDoNotFindWhatThoseOfAnEarlierOneWrote) {
  Agent& host = created(0, 2);
  Agent& second = created(1, 2);
  join_all({&host, &second});
  store::TcpStoreOptions options;
  options.endpoint = {"host-0", 7000};
  auto worker = loop.block_on(
      store::connect_tcp_store(second.host.loop(), second.host, random, std::move(options)));
  ASSERT_TRUE(worker) << worker.error().message;
  ASSERT_TRUE(loop.block_on((*worker)->set("rank0", "an address")));
  ASSERT_TRUE(loop.block_on(host.handler->renew_bootstrap()));
  EXPECT_TRUE(*loop.block_on((*worker)->check({"rank0"}))) << "the round has just begun";
  join_all({&host, &second});
  ASSERT_TRUE(loop.block_on((*second.info)->store->set("of the agents", "")));
  ASSERT_TRUE(loop.block_on(host.handler->renew_bootstrap()));
  EXPECT_FALSE(*loop.block_on((*worker)->check({"rank0"})));
  EXPECT_TRUE(*loop.block_on((*host.info)->store->check({"of the agents"})));
  worker->reset();
}
TEST_F(StaticTest, ANodeThatIsStartedAnewDoesNotComeBackToTheRoundItWasIn) {
  Agent& host = created(0, 2);
  Agent& second = created(1, 2);
  join_all({&host, &second});
  second.die();
  Agent& again = created(1, 2);
  again.join();
  loop.advance(1s);
  ASSERT_TRUE(again.joined());
  EXPECT_EQ((*again.info)->round, 1U);
  join_all({&host});
  EXPECT_EQ((*host.info)->round, 1U);
}
TEST_F(StaticTest, NodesThatWereStartedAnewDifferentlyOftenMeet) {
  Agent& host = created(0, 3);
  Agent& second = created(1, 3);
  Agent& third = created(2, 3);
  join_all({&host, &second, &third});
  Agent* last = &third;
  for (int restart = 0; restart < 3; ++restart) {
    last->die();
    last = &created(2, 3);
    last->join();
    loop.advance(1s);
    ASSERT_TRUE(last->joined());
  }
  join_all({&host, &second});
  EXPECT_EQ((*last->info)->round, 3U);
  EXPECT_EQ((*host.info)->round, 3U);
  EXPECT_EQ((*second.info)->round, 3U);
  join_all({&host, &second, last});
  EXPECT_EQ((*host.info)->round, 4U);
  EXPECT_EQ((*last->info)->round, 4U);
}

TEST_F(StaticTest, AllElseHasFixedAnswers) {
  Agent& alone = created(0, 1);
  Handler& handler = *alone.handler;
  EXPECT_EQ(handler.backend(), "static");
  EXPECT_EQ(handler.run_id(), "run");
  EXPECT_TRUE(handler.use_agent_store());
  EXPECT_FALSE(handler.status().member);
  join_all({&alone});
  EXPECT_TRUE(handler.status().member);
  EXPECT_FALSE(*loop.block_on(handler.is_closed()));
  EXPECT_TRUE(loop.block_on(handler.set_closed()));
  EXPECT_FALSE(*loop.block_on(handler.is_closed()));
  EXPECT_EQ(*loop.block_on(handler.num_nodes_waiting()), 0);
  EXPECT_TRUE(loop.block_on(handler.leave()));
  EXPECT_TRUE(*loop.block_on(handler.shutdown()));
  // Nothing ever changes.
  const TimePoint deadline = loop.now() + 5s;
  EXPECT_TRUE(loop.block_on(handler.wait_status(handler.status(), deadline)));
  EXPECT_EQ(loop.now(), deadline);
}
TEST_F(StaticTest, OneCallAtATime) {
  Agent& host = created(0, 2);
  host.join();
  loop.advance(1s);
  const auto second = loop.block_on(host.handler->next_rendezvous());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, ErrorKind::Invalid);
}
TEST_F(StaticTest, ACallThatIsGivenUpCanBeRepeated) {
  Agent& host = created(0, 2);
  host.join();
  loop.advance(1s);
  host.give_up();
  join_all({&host, &created(1, 2)});
  EXPECT_EQ((*host.info)->round, 0U);
}

}  // namespace
}  // namespace muster::backends
