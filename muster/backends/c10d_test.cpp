#include "muster/backends/c10d.h"

#include "muster/backends/hosted_store.h"
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
class C10dTest : public testing::MachinesTest {
 protected:
  C10dTest() { network.host("elsewhere"); }

  // A node that the endpoint does not name, so it only connects.
  Agent& guest(std::string_view name, std::string endpoint) {
    Agent& guest = agent(name);
    guest.parameters.endpoint = std::move(endpoint);
    guest.parameters.config["read_timeout"] = 2;
    return guest;
  }

  tests::LogCapture log;
};

struct Backend {
  const char* name;
  testing::Creator creator;
};

ErrorKind kind_of(const Result<>& result) {
  EXPECT_FALSE(result);
  return result ? ErrorKind::Cancelled : result.error().kind;
}
std::string message_of(const Result<>& result) { return result ? "" : result.error().message; }

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// 37
TEST_F(C10dTest, StoreTypesAreReadInLettersOfEitherCase) {
  Agent& node = agent("a");
  node.parameters.endpoint = "a:1234";
  node.parameters.config["store_type"] = " tCp ";
  ASSERT_TRUE(node.create(create_c10d));
  EXPECT_TRUE(node.events.has("hosts the store on port 1234"));
}
TEST_F(C10dTest, AnUnknownStoreTypeIsRefused) {
  Agent& node = agent("a");
  node.parameters.config["store_type"] = "dummy";
  const auto created = node.create(create_c10d);
  EXPECT_EQ(kind_of(created), ErrorKind::Invalid);
  EXPECT_TRUE(contains(message_of(created), "tcp or file")) << message_of(created);
}

// 38
TEST_F(C10dTest, ANodeThatIsToldToHostDoesSoWhateverTheEndpointNames) {
  Agent& node = agent("a");
  node.parameters.endpoint = "localhost:7000";
  node.parameters.config["is_host"] = true;
  ASSERT_TRUE(node.create(create_c10d));
  EXPECT_TRUE(node.machine.asked_names.empty());
  EXPECT_TRUE(guest("b", "a:7000").create(create_c10d));
}
TEST_F(C10dTest, HostingIsAnEventThatNamesThePort) {
  Agent& node = agent("a");
  node.parameters.endpoint = "a:7000";
  ASSERT_TRUE(node.create(create_c10d));
  ASSERT_EQ(node.events.all.size(), 1U);
  EXPECT_EQ(node.events.all[0].node_state, NodeState::Init);
  EXPECT_EQ(node.events.all[0].run_id, "run");
  EXPECT_EQ(node.events.all[0].master_endpoint, "a:7000");
}
TEST_F(C10dTest, AHostOnAnyPortSaysWhichItIs) {
  Agent& node = agent("a");
  node.parameters.endpoint = "a:0";
  ASSERT_TRUE(node.create(create_c10d));
  const std::string& message = node.events.all.at(0).message;
  const std::string port = message.substr(message.rfind(' ') + 1);
  EXPECT_NE(port, "0");
  EXPECT_TRUE(guest("b", "a:" + port).create(create_c10d));
}
TEST_F(C10dTest, AHostThatCannotHaveItsPortSaysThatItWasToldTo) {
  ASSERT_TRUE(HostedStore::start(loop, random, network.host("a"), {"", 7000}));
  const auto taken = HostedStore::start(loop, random, network.host("a"), {"", 7000});
  ASSERT_TRUE(taken);
  Agent& node = agent("a");
  node.parameters.endpoint = "a:7000";
  node.parameters.config["is_host"] = "yes";
  const auto created = node.create(create_c10d);
  EXPECT_EQ(kind_of(created), ErrorKind::Unavailable);
  EXPECT_TRUE(contains(message_of(created), "is_host")) << message_of(created);
}

// 39
TEST_F(C10dTest, ANodeThatIsToldNotToHostConnects) {
  const auto store = HostedStore::start(loop, random, network.host("a"), {"", 7000});
  ASSERT_TRUE(store);
  Agent& node = agent("a");
  node.parameters.endpoint = "a:7000";
  node.parameters.config["is_host"] = 0;
  ASSERT_TRUE(node.create(create_c10d));
  EXPECT_TRUE(node.events.all.empty());
}
TEST_F(C10dTest, OnlyTheHostMayLeaveThePortOpen) {
  const auto created = guest("b", "a:0").create(create_c10d);
  EXPECT_EQ(kind_of(created), ErrorKind::Invalid);
  EXPECT_TRUE(contains(message_of(created), "port 0")) << message_of(created);
}

// 40
TEST_F(C10dTest, ANodeOnTheNamedMachineConnectsIfAnotherHostsAlready) {
  const auto store = HostedStore::start(loop, random, network.host("a"), {"", 7000});
  ASSERT_TRUE(store);
  Agent& node = agent("a");
  node.parameters.endpoint = "a:7000";
  ASSERT_TRUE(node.create(create_c10d));
  EXPECT_EQ(node.machine.asked_names, std::vector<std::string>{"a"});
  EXPECT_FALSE(node.events.has("hosts"));
}

// 41
TEST_F(C10dTest, WhoFindsNoStoreGivesUpAfterTheTimeItHas) {
  Agent& node = guest("b", "elsewhere:7000");
  const TimePoint began = loop.now();
  const auto created = node.create(create_c10d);
  EXPECT_EQ(kind_of(created), ErrorKind::Unavailable);
  EXPECT_TRUE(contains(message_of(created), "elsewhere:7000")) << message_of(created);
  EXPECT_GE(loop.now() - began, 1500ms);
  EXPECT_LT(loop.now() - began, 3s);
  EXPECT_FALSE(node.events.has("hosts"));
}
TEST_F(C10dTest, NodesMayComeBeforeTheStoreDoes) {
  Agent& early = guest("b", "a:7000");
  early.parameters.config["read_timeout"] = 60;
  std::unique_ptr<HostedStore> store;
  Timer start(loop, [&] {
    auto started = HostedStore::start(loop, random, network.host("a"), {"", 7000});
    ASSERT_TRUE(started);
    store = std::move(*started);
  });
  start.set(loop.now() + 30s);
  EXPECT_TRUE(early.create(create_c10d));
}

// 42
TEST_F(C10dTest, WithoutAPortTheStoreIsWherePytorchsIs) {
  Agent& node = agent("a");
  node.parameters.endpoint = "a";
  ASSERT_TRUE(node.create(create_c10d));
  EXPECT_TRUE(node.events.has("port 29400"));
  EXPECT_TRUE(guest("b", "a").create(create_c10d));
  EXPECT_TRUE(guest("c", "a:29400").create(create_c10d));
}
TEST_F(C10dTest, WithoutAnEndpointTheStoreIsOnThisMachine) {
  Agent& node = agent("a");
  ASSERT_TRUE(node.create(create_c10d));
  EXPECT_TRUE(node.events.has("port 29400"));
}
TEST_F(C10dTest, TheMusterBackendHasThePortOfMustersStore) {
  const auto store = HostedStore::start(loop, random, network.host("a"), {"", kMusterPort});
  ASSERT_TRUE(store);
  Agent& node = guest("b", "a");
  node.parameters.backend = "muster";
  EXPECT_TRUE(node.create(create_muster));
}
TEST_F(C10dTest, TheMusterBackendNeverHosts) {
  Agent& node = agent("a");
  node.parameters.backend = "muster";
  node.parameters.endpoint = "a";
  node.parameters.config["read_timeout"] = 2;
  const auto created = node.create(create_muster);
  EXPECT_EQ(kind_of(created), ErrorKind::Unavailable);
  EXPECT_TRUE(contains(message_of(created), "muster store serve")) << message_of(created);
}

// 43
TEST_F(C10dTest, TimesThatAreNoneAreRefused) {
  for (const int seconds : {0, -10}) {
    Agent& node = guest("b", "a:7000");
    node.parameters.config["read_timeout"] = seconds;
    const auto created = node.create(create_c10d);
    EXPECT_EQ(kind_of(created), ErrorKind::Invalid);
    EXPECT_TRUE(contains(message_of(created), "read_timeout")) << message_of(created);
  }
}

// 44, but for temporary files, which tests with processes make
TEST_F(C10dTest, AFileThatCannotBeUsedIsAConnectionError) {
  for (const Backend& backend : {Backend{"c10d", create_c10d}, Backend{"file", create_file}}) {
    Agent& node = agent("a");
    node.parameters.backend = backend.name;
    node.parameters.endpoint = "/nowhere/at/all";
    if (node.parameters.backend == "c10d") node.parameters.config["store_type"] = "fIlE";
    const auto created = node.create(backend.creator);
    EXPECT_EQ(kind_of(created), ErrorKind::Unavailable);
    EXPECT_TRUE(contains(message_of(created), "/nowhere/at/all")) << message_of(created);
  }
}
TEST_F(C10dTest, TheFileBackendNeedsAFile) {
  Agent& node = agent("a");
  node.parameters.backend = "file";
  EXPECT_EQ(kind_of(node.create(create_file)), ErrorKind::Invalid);
}

TEST_F(C10dTest, OptionsThatDoNotExistAreRefusedBeforeAnythingIsDone) {
  for (const Backend& backend : {Backend{"c10d", create_c10d}, Backend{"muster", create_muster},
                                 Backend{"file", create_file}}) {
    Agent& node = agent("a");
    node.parameters.backend = backend.name;
    node.parameters.config["last_call_timout"] = 5;
    const auto created = node.create(backend.creator);
    EXPECT_EQ(kind_of(created), ErrorKind::Invalid);
    EXPECT_TRUE(contains(message_of(created), "did you mean last_call_timeout?"));
    EXPECT_TRUE(node.machine.asked_names.empty());
  }
}
TEST_F(C10dTest, AnOptionWithoutEffectIsOnlyWarnedAbout) {
  Agent& node = agent("a");
  node.parameters.config["timeout"] = 900;
  ASSERT_TRUE(node.create(create_c10d));
  ASSERT_EQ(log.warnings().size(), 1U);
  EXPECT_TRUE(contains(log.warnings()[0], "join_timeout"));
}
TEST_F(C10dTest, ABadEndpointOrRunIdIsRefused) {
  Agent& node = agent("a");
  node.parameters.endpoint = "a:70000";
  EXPECT_EQ(kind_of(node.create(create_c10d)), ErrorKind::Invalid);
  node.parameters.endpoint = "a";
  node.parameters.run_id = "";
  EXPECT_EQ(kind_of(node.create(create_c10d)), ErrorKind::Invalid);
}

// Rounds over the network of machines.
class C10dRoundTest : public C10dTest {
 protected:
  // `a` hosts.
  void start(std::initializer_list<std::string_view> names, std::int64_t min_nodes) {
    for (const std::string_view name : names) {
      Agent& node = agent(name);
      node.parameters.endpoint = "a:7000";
      node.parameters.min_nodes = min_nodes;
      node.parameters.max_nodes = static_cast<std::int64_t>(names.size());
      node.parameters.config["last_call_timeout"] = 1;
      ASSERT_TRUE(node.create(create_c10d));
      nodes.push_back(&node);
    }
  }

  std::vector<Agent*> nodes;
};

// 111
TEST_F(C10dRoundTest, NodesMeetAtTheOneThatTheEndpointNames) {
  start({"a", "b"}, 2);
  join_all({nodes[0], nodes[1]});
  const Info& a = **nodes[0]->info;
  const Info& b = **nodes[1]->info;
  EXPECT_EQ(a.rank, 0);
  EXPECT_EQ(b.rank, 1);
  EXPECT_EQ(a.world_size, 2);
  EXPECT_EQ(b.world_size, 2);
  EXPECT_EQ(a.round, b.round);
  EXPECT_EQ(a.bootstrap, b.bootstrap);
  // Without an address of their own, nodes go by the name of their machine.
  EXPECT_EQ(a.bootstrap.master_addr, "a.example.org");
}
// 107
TEST_F(C10dRoundTest, ALocalAddressIsWhereWorkersFindTheirStore) {
  Agent& node = agent("a");
  node.parameters.endpoint = "a:7000";
  node.parameters.local_addr = "127.0.0.2";
  ASSERT_TRUE(node.create(create_c10d));
  join_all({&node});
  EXPECT_EQ((*node.info)->bootstrap.master_addr, "127.0.0.2");
}
// 108
TEST_F(C10dRoundTest, OnlyAOneMeansThatAgentsHostNoStore) {
  start({"a"}, 1);
  auto& variables = nodes[0]->machine.variables;
  EXPECT_TRUE(nodes[0]->handler->use_agent_store());
  variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "true";
  EXPECT_TRUE(nodes[0]->handler->use_agent_store());
  variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1";
  EXPECT_FALSE(nodes[0]->handler->use_agent_store());
}
// 109
TEST_F(C10dRoundTest, TheWorkersStoreKeepsItsPortAndBeginsEmptyInEveryRound) {
  start({"a"}, 1);
  join_all({nodes[0]});
  const int port = (*nodes[0]->info)->bootstrap.master_port;
  store::TcpStoreOptions options;
  options.endpoint = {"a", port};
  auto worker = loop.block_on(
      store::connect_tcp_store(loop, network.host("b"), random, store::TcpStoreOptions(options)));
  ASSERT_TRUE(worker) << worker.error().message;
  ASSERT_TRUE(loop.block_on((*worker)->set("k", "v")));
  join_all({nodes[0]});
  EXPECT_EQ((*nodes[0]->info)->bootstrap.master_port, port);
  auto next =
      loop.block_on(store::connect_tcp_store(loop, network.host("c"), random, std::move(options)));
  ASSERT_TRUE(next) << next.error().message;
  auto value = loop.block_on((*next)->try_get("k"));
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_FALSE(*value);
}
// 110
TEST_F(C10dRoundTest, WhereAgentsHostNoneAFreePortOfRank0IsNamed) {
  start({"a", "b"}, 2);
  for (Agent* node : nodes) node->machine.variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1";
  join_all({nodes[0], nodes[1]});
  for (Agent* node : nodes) EXPECT_EQ((*node->info)->bootstrap.master_port, 10'001);
  join_all({nodes[0], nodes[1]});
  for (Agent* node : nodes) EXPECT_EQ((*node->info)->bootstrap.master_port, 10'002);
}
TEST_F(C10dRoundTest, TheStoreOfARoundOutlivesItsHandler) {
  start({"a", "b"}, 2);
  join_all({nodes[0], nodes[1]});
  const std::shared_ptr<store::Store> store = (*nodes[0]->info)->store;
  nodes[0]->die();
  EXPECT_TRUE(loop.block_on(store->set("key", "value")));
  auto value = loop.block_on((*nodes[1]->info)->store->get("key", loop.now() + 5s));
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_EQ(*value, "value");
}
TEST_F(C10dRoundTest, KeysOfARoundHaveTheNamesThatPytorchGivesThem) {
  start({"a"}, 1);
  join_all({nodes[0]});
  ASSERT_TRUE(loop.block_on((*nodes[0]->info)->store->set("k", "v")));
  store::TcpStoreOptions options;
  options.endpoint = {"a", 7000};
  auto client =
      loop.block_on(store::connect_tcp_store(loop, network.host("c"), random, std::move(options)));
  ASSERT_TRUE(client);
  auto value = loop.block_on((*client)->try_get("torch.rendezvous.run.0/k"));
  ASSERT_TRUE(value && *value);
  EXPECT_EQ(**value, "v");
}
TEST_F(C10dRoundTest, AMemberWhoseMachineVanishesIsMissed) {
  start({"a", "b", "c"}, 2);
  join_all({nodes[0], nodes[1], nodes[2]});
  network.crash(nodes[2]->host, sim::Crash::Loud);
  nodes[2]->die();
  const Status before = nodes[0]->handler->status();
  const TimePoint crashed = loop.now();
  const auto status = loop.block_on(nodes[0]->handler->wait_status(before, crashed + 60s));
  ASSERT_TRUE(status);
  EXPECT_TRUE(status->lost);
  // Long before its heartbeats are missed.
  EXPECT_LT(loop.now() - crashed, 1s);
  join_all({nodes[0], nodes[1]});
  EXPECT_EQ((*nodes[1]->info)->world_size, 2);
}

}  // namespace
}  // namespace muster::backends
