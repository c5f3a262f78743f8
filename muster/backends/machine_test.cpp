#include "muster/backends/machine.h"

#include "muster/backends/builtin.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/rendezvous/registry.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace muster::backends {
namespace {

class SystemMachineTest : public ::testing::Test {
 protected:
  net::EpollLoop loop;
  net::TcpTransport transport{loop};
  SystemMachine machine{loop, transport};
};

TEST_F(SystemMachineTest, KnowsItsNames) {
  EXPECT_TRUE(loop.block_on(machine.is_called("localhost")));
  EXPECT_TRUE(loop.block_on(machine.is_called("127.0.0.1")));
  EXPECT_FALSE(loop.block_on(machine.is_called("0.0.0.0")));
  EXPECT_FALSE(loop.block_on(machine.name()).empty());
}
TEST_F(SystemMachineTest, ANodeThatDoesNotWaitForTheAnswerMayGo) {
  { const Task<bool> abandoned = machine.is_called("localhost"); }
  TaskScope scope;
  scope.start([](Task<bool> task) -> Task<void> {
    (void)co_await task;
  }(machine.is_called("a.name.that.takes.long.invalid")));
  scope.cancel_all();
  EXPECT_TRUE(loop.block_on(machine.is_called("localhost")));
}
TEST_F(SystemMachineTest, FindsFreePorts) {
  const auto port = machine.free_port();
  ASSERT_TRUE(port);
  const auto listener = transport.listen({"", *port}, [](std::unique_ptr<net::Stream>) {});
  EXPECT_TRUE(listener) << listener.error().message;
}
TEST_F(SystemMachineTest, ReadsTheEnvironment) {
  ASSERT_EQ(::setenv("MUSTER_TEST_VARIABLE", "value", 1), 0);
  EXPECT_EQ(machine.variable("MUSTER_TEST_VARIABLE"), "value");
  ASSERT_EQ(::unsetenv("MUSTER_TEST_VARIABLE"), 0);
  EXPECT_EQ(machine.variable("MUSTER_TEST_VARIABLE"), std::nullopt);
}

TEST_F(SystemMachineTest, BuiltInBackendsAreRegisteredByTheirNames) {
  rendezvous::Registry registry;
  add_builtin_backends(registry, loop, machine);
  EXPECT_EQ(registry.names(),
            (std::vector<std::string>{"c10d", "etcd", "etcd-v2", "file", "muster", "static"}));
  Random random(1);
  rendezvous::Environment environment{loop, random, nullptr};
  rendezvous::Parameters parameters;
  parameters.backend = "c01d";
  const auto unknown = loop.block_on(registry.create(parameters, environment));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().kind, ErrorKind::Invalid);
  EXPECT_NE(unknown.error().message.find("c10d"), std::string::npos);
}
TEST_F(SystemMachineTest, EveryBuiltInBackendMakesHandlersOfItsOwnNameOrSaysWhyNot) {
  rendezvous::Registry registry;
  add_builtin_backends(registry, loop, machine);
  Random random(1);
  rendezvous::Environment environment{loop, random, nullptr};
  for (const std::string& name : registry.names()) {
    rendezvous::Parameters parameters;
    parameters.backend = name;
    parameters.config["no_such_option"] = 1;
    parameters.run_id = "run";
    const auto made = loop.block_on(registry.create(parameters, environment));
    ASSERT_FALSE(made) << name;
    EXPECT_EQ(made.error().kind, ErrorKind::Invalid);
    EXPECT_NE(made.error().message.find(name), std::string::npos) << made.error().message;
  }
}

}  // namespace
}  // namespace muster::backends
