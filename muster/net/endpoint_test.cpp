#include "muster/net/transport.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::net {
namespace {

constexpr int kDefaultPort = 29500;

Endpoint parsed(std::string_view text) {
  const auto endpoint = parse_endpoint(text, kDefaultPort);
  EXPECT_TRUE(endpoint) << text << ": " << (endpoint ? "" : endpoint.error().message);
  return endpoint.value_or(Endpoint{"?", -1});
}

std::string refusal(std::string_view text) {
  const auto endpoint = parse_endpoint(text, kDefaultPort);
  EXPECT_FALSE(endpoint) << text;
  if (endpoint) return "";
  EXPECT_EQ(endpoint.error().kind, ErrorKind::Invalid);
  return endpoint.error().message;
}

TEST(Endpoint, IsAHostAndAPort) {
  EXPECT_EQ(parsed("node-3:4400"), (Endpoint{"node-3", 4400}));
  EXPECT_EQ(parsed("10.0.0.7:1"), (Endpoint{"10.0.0.7", 1}));
  EXPECT_EQ(parsed("node-3:0"), (Endpoint{"node-3", 0}));
  EXPECT_EQ(parsed("node-3:65535"), (Endpoint{"node-3", 65535}));
}

TEST(Endpoint, HasTheDefaultPortWhereNoneIsGiven) {
  EXPECT_EQ(parsed("node-3"), (Endpoint{"node-3", kDefaultPort}));
  EXPECT_EQ(parsed("[::1]"), (Endpoint{"::1", kDefaultPort}));
  EXPECT_EQ(parsed(""), (Endpoint{"", kDefaultPort}));
}

TEST(Endpoint, WithoutAHostMeansAnyHost) {
  EXPECT_EQ(parsed(":4400"), (Endpoint{"", 4400}));
  EXPECT_EQ(parsed("[]:4400"), (Endpoint{"", 4400}));
}

TEST(Endpoint, TakesAnAddressOfIpv6InBracketsOrWithoutAPort) {
  EXPECT_EQ(parsed("[::1]:4400"), (Endpoint{"::1", 4400}));
  EXPECT_EQ(parsed("[fe80::1%eth0]:4400"), (Endpoint{"fe80::1%eth0", 4400}));
  EXPECT_EQ(parsed("::1"), (Endpoint{"::1", kDefaultPort}));
  EXPECT_EQ(parsed("2001:db8::4400"), (Endpoint{"2001:db8::4400", kDefaultPort}));
}

TEST(Endpoint, RefusesWhatIsNoPortAndQuotesIt) {
  for (const char* text : {"node-3:", "node-3:http", "node-3:-1", "node-3:65536", "node-3: 80",
                           "node-3:+80", "node-3:80 ", "node-3:99999999999999999999", "[::1]:"}) {
    const std::string message = refusal(text);
    EXPECT_NE(message.find('"' + std::string(text) + '"'), std::string::npos) << message;
    EXPECT_NE(message.find("0 to 65535"), std::string::npos) << message;
  }
}

TEST(Endpoint, RefusesBracketsThatDoNotMatch) {
  EXPECT_EQ(refusal("[::1"), R"("[::1" has no closing bracket)");
  EXPECT_EQ(refusal("[::1]4400"),
            R"("[::1]4400" has "4400" behind the bracket; only :PORT may follow)");
}

TEST(Endpoint, IsDescribedTheWayItIsParsed) {
  for (const Endpoint& endpoint :
       {Endpoint{"node-3", 4400}, Endpoint{"::1", 29500}, Endpoint{"", 7}}) {
    EXPECT_EQ(parsed(describe(endpoint)), endpoint);
  }
  EXPECT_EQ(describe(Endpoint{"node-3", 4400}), "node-3:4400");
  EXPECT_EQ(describe(Endpoint{"::1", 4400}), "[::1]:4400");
}

}  // namespace
}  // namespace muster::net
