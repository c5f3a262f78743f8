#include "muster/logs/prefix.h"

#include <gtest/gtest.h>

namespace muster::logs {
namespace {

const PrefixFields kFields{.role = "trainer", .rank = 13, .local_rank = 5, .hostname = "node-3"};

TEST(Prefix, IsRoleAndLocalRankByDefault) { EXPECT_EQ(make_prefix("", kFields), "[trainer5]:"); }

TEST(Prefix, ReplacesKnownNamesWithAndWithoutBraces) {
  EXPECT_EQ(make_prefix("${role_name}/${rank}/${local_rank}@${hostname}> ", kFields),
            "trainer/13/5@node-3> ");
  EXPECT_EQ(make_prefix("$role_name:$rank ", kFields), "trainer:13 ");
}

TEST(Prefix, LeavesUnknownNamesAndMalformedReferencesAsTheyAre) {
  EXPECT_EQ(make_prefix("${other} $rankx ${rank $ ${} $1 $", kFields),
            "${other} $rankx ${rank $ ${} $1 $");
  EXPECT_EQ(make_prefix("$${rank} $$x $$$rank", kFields), "${rank} $x $13");
  EXPECT_EQ(make_prefix("${Rank}", kFields), "${Rank}");
}

TEST(Prefix, HasTheColourOfItsRank) {
  EXPECT_EQ(in_colour("[a0]:", 0), "\x1b[0;36m[a0]:\x1b[0m");
  EXPECT_EQ(in_colour("[a0]:", 10), in_colour("[a0]:", 0));
  EXPECT_NE(in_colour("[a0]:", 1), in_colour("[a0]:", 0));
}

TEST(Prefix, IsColouredOnTerminalsThatWantIt) {
  EXPECT_TRUE(wants_colour(true, nullptr, "xterm"));
  EXPECT_TRUE(wants_colour(true, "", nullptr));
  EXPECT_FALSE(wants_colour(false, nullptr, "xterm"));
  EXPECT_FALSE(wants_colour(true, "1", "xterm"));
  EXPECT_FALSE(wants_colour(true, nullptr, "dumb"));
}

TEST(Prefix, UsesTheShortHostName) {
  EXPECT_EQ(short_host_name("node-3.example.org"), "node-3");
  EXPECT_EQ(short_host_name("node-3"), "node-3");
}

}  // namespace
}  // namespace muster::logs
