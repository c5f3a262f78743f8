#include "muster/rpc/own_address.h"

#include "tests/server/log_capture.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace muster::rpc {
namespace {

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

}  // namespace
}  // namespace muster::rpc
