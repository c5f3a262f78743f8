#include "muster/observe/address.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace muster::observe {
namespace {

std::string parsed(std::string_view text) {
  const auto address = parse_http_address(text);
  if (!address) return "error";
  return *address ? net::describe(**address) : "off";
}

TEST(HttpAddress, IsOffAPortOrAHostAndAPort) {
  EXPECT_EQ(parsed("off"), "off");
  EXPECT_EQ(parsed("8080"), "127.0.0.1:8080");
  EXPECT_EQ(parsed("0"), "127.0.0.1:0");
  EXPECT_EQ(parsed("65535"), "127.0.0.1:65535");
  EXPECT_EQ(parsed("node-1:8080"), "node-1:8080");
  EXPECT_EQ(parsed("0.0.0.0:8080"), "0.0.0.0:8080");
  EXPECT_EQ(parsed("[::1]:8080"), "[::1]:8080");
}

TEST(HttpAddress, WithoutAHostIsEveryAddress) {
  const auto address = parse_http_address(":8080");
  ASSERT_TRUE(address && *address);
  EXPECT_EQ((*address)->host, "");
  EXPECT_EQ((*address)->port, 8080);
}

TEST(HttpAddress, IsAnErrorThatSaysWhatIsPossibleOtherwise) {
  for (const char* text : {"", "on", "host", "65536", "-1", "host:", "host:65536", "host:http",
                           "80 80", "::1", "[::1]", "[::1:80"}) {
    EXPECT_EQ(parsed(text), "error") << text;
  }
  EXPECT_EQ(parse_http_address("on").error().message,
            "the HTTP address \"on\" is none: use off, PORT (on loopback) or HOST:PORT");
}

TEST(HttpAddress, IsTheOptionsBeforeItIsTheVariables) {
  EXPECT_EQ(choose_http_address("off", "8080")->endpoint, std::nullopt);
  EXPECT_EQ(choose_http_address("1", "8080")->endpoint->port, 1);
  EXPECT_EQ(choose_http_address({}, "8080")->endpoint, (net::Endpoint{"127.0.0.1", 8080}));
  EXPECT_EQ(choose_http_address({}, {})->endpoint, std::nullopt);
  EXPECT_FALSE(choose_http_address("bad", "8080"));
}

TEST(HttpAddress, IsNotSpoiltByAVariableThatIsNoPort) {
  const auto address = choose_http_address({}, "eighty");
  ASSERT_TRUE(address);
  EXPECT_EQ(address->endpoint, std::nullopt);
  EXPECT_EQ(address->warning,
            "TORCHELASTIC_HEALTH_CHECK_PORT=\"eighty\" is not a port, there is no health server");
  EXPECT_TRUE(choose_http_address({}, "")->warning.empty());
}

}  // namespace
}  // namespace muster::observe
