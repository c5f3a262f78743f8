#include "muster/backends/this_machine.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <unistd.h>
#include <vector>

namespace muster::backends {
namespace {

IpAddress ip(std::string_view text) {
  const auto address = IpAddress::parse(text);
  EXPECT_TRUE(address) << text;
  return address.value_or(IpAddress());
}

const MachineFacts kFacts{.host_name = "node-1",
                          .canonical_names = {"node-1.example.com"},
                          .addresses = {ip("10.0.0.1"), ip("2001:db8::1")},
                          .interface_addresses = {ip("127.0.0.1"), ip("192.168.7.1")}};

// Row 17
TEST(ThisMachine, IsLocalhostAndEveryLoopbackAddressInAnySpelling) {
  for (const char* host : {"localhost", "127.0.0.1", "127.9.8.7", "::1", "0:0:0:0:0:0:0:1",
                           "0000:0000:0000:0000:0000:0000:0000:0001", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_this_machine(MachineFacts(), host, {})) << host;
  }
}

// Row 17
TEST(ThisMachine, IsWhatIsCalledByItsNameOrItsCanonicalName) {
  EXPECT_TRUE(is_this_machine(kFacts, "node-1", {}));
  EXPECT_TRUE(is_this_machine(kFacts, "NODE-1", {}));
  EXPECT_TRUE(is_this_machine(kFacts, "node-1.example.com", {}));
}

// Row 17
TEST(ThisMachine, IsEachOfItsAddressesInAnySpelling) {
  for (const char* host : {"10.0.0.1", "2001:db8::1", "2001:0DB8:0:0:0:0:0:1", "::ffff:10.0.0.1"})
    EXPECT_TRUE(is_this_machine(kFacts, host, {})) << host;
}

TEST(ThisMachine, IsAnAddressOfAnyOfItsInterfaces) {
  EXPECT_TRUE(is_this_machine(kFacts, "192.168.7.1", {}));
  EXPECT_TRUE(is_this_machine(kFacts, "storage-net", {ip("192.168.7.1")}));
}

// Row 18
TEST(ThisMachine, IsNoOtherNameOrAddress) {
  for (const char* host : {"dummy", "0.0.0.0", "::2", "::", "10.0.0.2", "node-2", "node",
                           "node-1.example", "", "128.0.0.1"}) {
    EXPECT_FALSE(is_this_machine(kFacts, host, {})) << host;
    EXPECT_FALSE(is_this_machine(MachineFacts(), host, {})) << host;
  }
}

// Row 18
TEST(ThisMachine, IsNotANameOfAnAddressThatItDoesNotHave) {
  EXPECT_FALSE(is_this_machine(kFacts, "node-2", {ip("10.0.0.2"), ip("2001:db8::2")}));
}

// Row 19
TEST(ThisMachine, IsAnotherNameOfAnAddressThatItHas) {
  EXPECT_TRUE(is_this_machine(kFacts, "store.example.com", {ip("10.0.0.9"), ip("10.0.0.1")}));
}

TEST(ThisMachine, IsStillFoundWhenItsOwnNameCannotBeResolved) {
  MachineFacts facts = kFacts;
  facts.canonical_names.clear();
  facts.addresses.clear();
  EXPECT_TRUE(is_this_machine(facts, "node-1", {}));
  EXPECT_TRUE(is_this_machine(facts, "192.168.7.1", {}));
  EXPECT_FALSE(is_this_machine(facts, "node-2", {ip("10.0.0.1")}));
}

// Rows 17 and 18, with what this machine says about itself.
TEST(ThisMachine, RecognisesItself) {
  std::array<char, 256> name{};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  const MachineFacts facts = collect_machine_facts();
  EXPECT_EQ(facts.host_name, name.data());
  EXPECT_TRUE(is_this_machine(std::string("localhost")));
  EXPECT_TRUE(is_this_machine(facts.host_name));
  EXPECT_TRUE(is_this_machine(fully_qualified_name(facts)));
  for (const auto& addresses : {facts.addresses, facts.interface_addresses}) {
    for (const IpAddress& address : addresses)
      EXPECT_TRUE(is_this_machine(facts, "any-name", {address}));
  }
  EXPECT_FALSE(is_this_machine(std::string("0.0.0.0")));
  EXPECT_FALSE(is_this_machine(std::string("::2")));
  EXPECT_FALSE(is_this_machine(std::string("no-such-host.invalid")));
}

TEST(Resolve, GivesNothingForANameThatIsNone) {
  EXPECT_TRUE(resolve("no-such-host.invalid").empty());
  EXPECT_TRUE(resolve("").empty());
  EXPECT_EQ(resolve("127.0.0.1"), std::vector<IpAddress>{ip("127.0.0.1")});
}

TEST(FullyQualifiedName, IsTheCanonicalNameIfThatHasADomain) {
  EXPECT_EQ(fully_qualified_name(kFacts), "node-1.example.com");
  EXPECT_EQ(
      fully_qualified_name(MachineFacts{.host_name = "node-1", .canonical_names = {"node-1"}}),
      "node-1");
  EXPECT_EQ(fully_qualified_name(MachineFacts{.host_name = "node-1"}), "node-1");
  EXPECT_FALSE(fully_qualified_name().empty());
}

TEST(FreePort, IsAPort) {
  const auto port = find_free_port();
  ASSERT_TRUE(port) << port.error().message;
  EXPECT_GT(*port, 0);
  EXPECT_LT(*port, 65536);
}

TEST(IpAddress, IsNotEverythingWithDots) {
  for (const char* text :
       {"", "localhost", "127.1", "1.2.3.4.5", "256.0.0.1", "::g", "[::1]", "1.2.3.4 "})
    EXPECT_FALSE(IpAddress::parse(text)) << text;
}

}  // namespace
}  // namespace muster::backends
