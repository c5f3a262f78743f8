#include "muster/rpc/own_address.h"

#include "tests/rpc/cluster.h"
#include "tests/rpc/raw_peer.h"
#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace muster::rpc {
namespace {

// Of nobody: documentation's.
constexpr const char* kForeign4 = "198.51.100.7";
constexpr const char* kForeign6 = "2001:db8::7";

TEST(NameOfTheStore, MeansThisMachineIfItIsALoopbackAddressOrLocalhost) {
  for (const char* const host :
       {"", "localhost", "LocalHost", "localhost.", "localhost.localdomain", "localhost4",
        "localhost6.localdomain6", "ip6-localhost", "ip6-loopback", "store.localhost", "127.0.0.1",
        "127.0.1.1", "127.255.255.255", "127.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"}) {
    EXPECT_TRUE(names_loopback(host)) << host;
  }
}

// Also of this machine itself, whatever that name stands for here.
TEST(NameOfTheStore, MeansPerhapsAnotherMachineIfItIsAnythingElse) {
  for (const char* const host :
       {"vm", "localhost.example.org", "mylocalhost", "local", "10.0.0.1", "128.0.0.1",
        "126.255.255.255", "::2", "fe80::1", "::ffff:10.0.0.1", "fd00::1"}) {
    EXPECT_FALSE(names_loopback(host)) << host;
  }
}

AddressCandidates found_at(std::vector<std::string> towards_store) {
  return {.towards_store = std::move(towards_store)};
}

TEST(OwnAddress, IsTheOneOnTheWayToTheStore) {
  AddressCandidates candidates = found_at({"10.0.0.1", "fd00::1"});
  candidates.on_default_route = {"192.168.0.1"};
  candidates.of_interfaces = {"172.17.0.1"};
  EXPECT_EQ(choose_address(candidates), "10.0.0.1");
}

TEST(OwnAddress, IsLoopbackIfNobodyIsElsewhere) {
  AddressCandidates candidates = found_at({"127.0.0.1", "10.0.0.1"});
  candidates.all_are_here = true;
  candidates.on_default_route = {"192.168.0.1"};
  EXPECT_EQ(choose_address(candidates), "127.0.0.1");
}

TEST(OwnAddress, IsAnotherThatTheNameOfTheStoreHasBeforeAnyElse) {
  AddressCandidates candidates = found_at({"127.0.0.1", "::1", "10.0.0.1"});
  candidates.on_default_route = {"192.168.0.1"};
  EXPECT_EQ(choose_address(candidates), "10.0.0.1");
}

TEST(OwnAddress, IsTheOneOnTheDefaultRouteIfTheNameOfTheStoreStandsForLoopback) {
  for (const char* const loopback : {"127.0.0.1", "127.0.1.1"}) {
    AddressCandidates candidates = found_at({loopback});
    candidates.on_default_route = {"10.0.0.1", "fd00::1"};
    candidates.of_interfaces = {"127.0.0.1", "172.17.0.1", "10.0.0.1"};
    EXPECT_EQ(choose_address(candidates), "10.0.0.1");
  }
}

TEST(OwnAddress, IsThatOfAnInterfaceIfThereIsNoDefaultRoute) {
  AddressCandidates candidates = found_at({"127.0.0.1"});
  candidates.of_interfaces = {"127.0.0.1", "fd00::1", "10.0.0.1", "10.0.0.2"};
  EXPECT_EQ(choose_address(candidates), "10.0.0.1");
}

TEST(OwnAddress, IsOfTheFamilyInWhichTheStoreWasFoundIfThereIsOne) {
  AddressCandidates candidates = found_at({"::1"});
  candidates.on_default_route = {"10.0.0.1", "fd00::1"};
  EXPECT_EQ(choose_address(candidates), "fd00::1");
  candidates.on_default_route = {"10.0.0.1"};
  candidates.of_interfaces = {"fd00::1"};
  EXPECT_EQ(choose_address(candidates), "10.0.0.1") << "what has a route is before what has none";
}

TEST(OwnAddress, IsNoneThatIsValidOnOneCableOnly) {
  AddressCandidates candidates = found_at({"::1"});
  candidates.on_default_route = {"fe80::1%eth0"};
  candidates.of_interfaces = {"::1", "fe80::1%lo", "169.254.3.4", "10.0.0.1"};
  EXPECT_EQ(choose_address(candidates), "10.0.0.1");
}

TEST(OwnAddress, IsLoopbackIfThereIsNothingElse) {
  AddressCandidates candidates = found_at({"127.0.1.1", "::1"});
  EXPECT_EQ(choose_address(candidates), "127.0.1.1");
  candidates.on_default_route = {"127.0.0.1"};
  candidates.of_interfaces = {"127.0.0.1", "::1", "fe80::1%lo"};
  EXPECT_EQ(choose_address(candidates), "127.0.1.1");
}

// ---- of this machine ----------------------------------------------------------------------------

TEST(OwnAddress, IsLoopbackForAStoreAtLoopbackAndNobodyIsWarned) {
  const tests::LogCapture log;
  EXPECT_EQ(address_for_others(net::Endpoint{"127.0.0.1", 1}, true).value(), "127.0.0.1");
  EXPECT_EQ(log.warnings(), std::vector<std::string>());
}

TEST(OwnAddress, IsNotFoundForAStoreWhoseNameStandsForNothing) {
  const auto found = address_for_others(net::Endpoint{"nobody.invalid", 1}, false);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().kind, ErrorKind::Unavailable);
  EXPECT_NE(found.error().message.find("cannot resolve nobody.invalid"), std::string::npos);
}

// Whichever it is here.
TEST(OwnAddress, CanBeBoundWhenTheStoreIsAFile) {
  const tests::LogCapture log;
  for (const bool spans_machines : {false, true}) {
    const std::string found = address_for_others(std::nullopt, spans_machines).value();
    EXPECT_EQ(address_to_bind(found).value(), found);
    EXPECT_EQ(log.warnings().size(), spans_machines && is_loopback(found) ? 1U : 0U);
  }
}

TEST(PlaceToListen, IsTheAddressItselfIfItIsOfThisMachine) {
  for (const char* const own : {"127.0.0.1", "127.0.1.1", "localhost", "0.0.0.0"}) {
    EXPECT_EQ(address_to_bind(own).value(), own);
  }
}

TEST(PlaceToListen, IsEveryAddressOfTheFamilyIfItIsNotOfThisMachine) {
  EXPECT_EQ(address_to_bind(kForeign4).value(), "0.0.0.0");
  if (!addresses_towards({"::1", 1})) GTEST_SKIP() << "SKIPPED: there is no IPv6 here";
  EXPECT_EQ(address_to_bind(kForeign6).value(), "::");
}

TEST(PlaceToListen, IsNoneForANameThatStandsForNothing) {
  const auto found = address_to_bind("nobody.invalid");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().kind, ErrorKind::Unavailable);
}

// Something between this worker and the others translates the address that they are told.
class Translated : public ::testing::Test {
 protected:
  void expect_told_and_reached(const std::string& told, const std::string& own) {
    const tests::LogCapture log;
    const testing::StoreHost store;
    testing::Worker worker;
    AgentOptions options = testing::options_for("worker0", 0, 1);
    options.host = told;
    ASSERT_TRUE(worker.start(options, store, testing::kPatience));
    const auto endpoint = net::parse_endpoint(worker.agent->address(), 0).value();
    EXPECT_EQ(endpoint.host, told);
    EXPECT_EQ(log.count("is no address of this machine"), 1U);
    net::EpollLoop loop;
    auto connecting = net::connect_socket(loop, {own, endpoint.port});
    auto socket = loop.block_on(std::move(connecting));
    ASSERT_TRUE(socket);
    testing::RawConnection connection(std::move(*socket));
    Hello hello;
    hello.job = "another";
    hello.from_name = "worker0";
    connection.send(encode(hello));
    const auto answer = connection.read();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->type, kRefused);
  }
};

TEST_F(Translated, AnAddressOfIpv4IsToldAndConnectionsToAnotherOneArrive) {
  expect_told_and_reached(kForeign4, "127.0.0.1");
}

TEST_F(Translated, AnAddressOfIpv6IsToldAndConnectionsToAnotherOneArrive) {
  if (!addresses_towards({"::1", 1})) GTEST_SKIP() << "SKIPPED: there is no IPv6 here";
  expect_told_and_reached(kForeign6, "::1");
}

}  // namespace
}  // namespace muster::rpc
