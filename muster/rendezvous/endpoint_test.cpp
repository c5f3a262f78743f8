#include "muster/rendezvous/endpoint.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rendezvous {
namespace {

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string refusal(std::string_view text) {
  const auto endpoint = parse_endpoint(text, 99);
  if (endpoint) return "accepted as " + describe(*endpoint);
  EXPECT_EQ(endpoint.error().kind, ErrorKind::Invalid);
  return endpoint.error().message;
}

// Row 16, and row 42 as far as it is about parsing.
TEST(Endpoint, IsAHostAndAPortOrTheDefaultPort) {
  const std::vector<std::pair<std::string_view, Endpoint>> cases = {
      {"", {"localhost", 99}},
      {"   ", {"localhost", 99}},
      {"a", {"a", 99}},
      {"a:0", {"a", 0}},
      {"a:65535", {"a", 65535}},
      {"a:099", {"a", 99}},
      {"a:00001", {"a", 1}},
      {" host:5 ", {"host", 5}},
      {"\thost:5\n", {"host", 5}},
      {"[::1]", {"::1", 99}},
      {"[::1]:5", {"::1", 5}},
      {"::1:29400", {"::1", 29400}},
      {"a:b:5", {"a:b", 5}},
      {"host_1:5", {"host_1", 5}},
      {"-:5", {"-", 5}},
      {"10.0.0.1:29400", {"10.0.0.1", 29400}},
      {"[node]:7", {"node", 7}},
      {"Node-1.example.com", {"Node-1.example.com", 99}}};
  for (const auto& [text, expected] : cases) {
    const auto endpoint = parse_endpoint(text, 99);
    ASSERT_TRUE(endpoint) << text << ": " << endpoint.error().message;
    EXPECT_EQ(*endpoint, expected) << text;
  }
}

// Row 16
TEST(Endpoint, NeedsAPortOfOneToFiveDigitsBelow65536) {
  for (const std::string_view text : {"a:", "a:abc", "a:-1", "a:-", "a: 5", "a:65536", "a:70000",
                                      "a:000001", "[::1]:", "a:+5", "a:5a", "a:99999", "~:x"}) {
    EXPECT_TRUE(contains(refusal(text), "no valid port")) << text << ": " << refusal(text);
  }
}

// Row 16
TEST(Endpoint, NeedsAHostOfLettersDigitsUnderscoreDotColonAndHyphen) {
  for (const std::string_view text :
       {"~", "~:123", "a b", "dummy.com :123", ":123", "[]", "[]:5", "[", "[a", "]", "[a]b",
        "http://h:5", "[[a]]", "h\xC3\xBC:5", "[::1%eth0]:5", "a,b:5"}) {
    EXPECT_TRUE(contains(refusal(text), "no valid host")) << text << ": " << refusal(text);
  }
}

// Row 16: what would be misread.
TEST(Endpoint, TellsTheUserToBracketAnIpv6Address) {
  for (const std::string_view text :
       {"::1", "::", "fe80::1", "2001:db8:0:0:0:0:0:1", "::ffff:10.0.0.1", " ::1 ", "::1:2940"}) {
    EXPECT_TRUE(contains(refusal(text), "without brackets")) << text << ": " << refusal(text);
  }
  EXPECT_TRUE(contains(refusal("::1"), "[::1]:PORT")) << refusal("::1");
}

TEST(Endpoint, IsDescribedSoThatItParsesToItself) {
  for (const Endpoint& endpoint :
       {Endpoint{"localhost", 99}, Endpoint{"::1", 5}, Endpoint{"10.0.0.1", 0}}) {
    EXPECT_EQ(*parse_endpoint(describe(endpoint), 1), endpoint);
  }
  EXPECT_EQ(describe(Endpoint{"::1", 5}), "[::1]:5");
}

// Row 46, as far as it is about parsing.
TEST(Endpoint, TellsWhetherAPortWasGiven) {
  for (const std::string_view text : {"a:5", "[::1]:5", " a:0 ", "a:x"})
    EXPECT_TRUE(has_port(text)) << text;
  for (const std::string_view text : {"", " ", "a", "[::1]", "localhost", "::1"})
    EXPECT_FALSE(has_port(text)) << text;
}

TEST(EndpointList, FollowsTheRulesOfOneEndpointForEach) {
  EXPECT_EQ(*parse_endpoint_list("a:1,b:2,[::1]:3", 99),
            (std::vector<Endpoint>{{"a", 1}, {"b", 2}, {"::1", 3}}));
  EXPECT_EQ(*parse_endpoint_list(" a , b:2 ", 99), (std::vector<Endpoint>{{"a", 99}, {"b", 2}}));
  EXPECT_EQ(*parse_endpoint_list("", 99), (std::vector<Endpoint>{{"localhost", 99}}));
  EXPECT_EQ(*parse_endpoint_list("  ", 99), (std::vector<Endpoint>{{"localhost", 99}}));
  for (const std::string_view text : {"a:1,b:x", "a:1,~", "a:1,::1"}) {
    const auto endpoints = parse_endpoint_list(text, 99);
    ASSERT_FALSE(endpoints) << text;
    EXPECT_EQ(endpoints.error().kind, ErrorKind::Invalid);
  }
}

TEST(EndpointList, HasNoEmptyItems) {
  for (const std::string_view text : {"a:1,", ",a:1", "a:1,,b:2", " , ", ","}) {
    const auto endpoints = parse_endpoint_list(text, 99);
    ASSERT_FALSE(endpoints) << text;
    EXPECT_TRUE(contains(endpoints.error().message, "empty")) << endpoints.error().message;
  }
}

TEST(EndpointList, HasALimit) {
  std::string text = "a:1";
  for (std::size_t count = 1; count < kEndpointsMax; ++count) text += ",a:1";
  EXPECT_EQ(parse_endpoint_list(text, 99)->size(), kEndpointsMax);
  EXPECT_FALSE(parse_endpoint_list(text + ",a:1", 99));
}

}  // namespace
}  // namespace muster::rendezvous
