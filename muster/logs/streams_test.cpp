#include "muster/logs/streams.h"

#include <gtest/gtest.h>

namespace muster::logs {
namespace {

Mask mask_of(std::string_view text, int local_rank) {
  const Result<StreamMap> streams = parse_streams(text);
  EXPECT_TRUE(streams) << text;
  return streams ? streams->of(local_rank) : Mask::None;
}

TEST(Streams, TakesOneDigitForAllRanks) {
  EXPECT_EQ(mask_of("0", 5), Mask::None);
  EXPECT_EQ(mask_of("1", 0), Mask::Out);
  EXPECT_EQ(mask_of("2", 11), Mask::Err);
  EXPECT_EQ(mask_of("3", 500), Mask::Both);
}

TEST(Streams, TakesPairsAndLeavesOtherRanksAlone) {
  EXPECT_EQ(mask_of("0:1,1:2,2:3", 0), Mask::Out);
  EXPECT_EQ(mask_of("0:1,1:2,2:3", 1), Mask::Err);
  EXPECT_EQ(mask_of("0:1,1:2,2:3", 2), Mask::Both);
  EXPECT_EQ(mask_of("0:1,1:2,2:3", 3), Mask::None);
}

TEST(Streams, AddressesRanksAboveNineAndRanges) {
  EXPECT_EQ(mask_of("10:3", 10), Mask::Both);
  EXPECT_EQ(mask_of("10:3", 1), Mask::None);
  EXPECT_EQ(mask_of("0-3:1,10-127:2", 3), Mask::Out);
  EXPECT_EQ(mask_of("0-3:1,10-127:2", 4), Mask::None);
  EXPECT_EQ(mask_of("0-3:1,10-127:2", 127), Mask::Err);
  EXPECT_EQ(mask_of("0-3:1,10-127:2", 128), Mask::None);
}

TEST(Streams, LetsTheLaterPairWin) {
  EXPECT_EQ(mask_of("0-7:3,2:0", 2), Mask::None);
  EXPECT_EQ(mask_of("0-7:3,2:0", 3), Mask::Both);
}

TEST(Streams, RefusesWhatSelectsNothingAndSaysWhatToWrite) {
  for (const char* text : {"", "4", "x", "-1", "12", "0:4", "0:", ":1", "0:1,", ",0:1", "0=1",
                           "3-1:1", "a:1", "0:1 ", "-1:1", "1--2:1", "99999999999:1", "0:12"}) {
    const Result<StreamMap> streams = parse_streams(text);
    ASSERT_FALSE(streams) << text;
    EXPECT_EQ(streams.error().kind, ErrorKind::Invalid);
    EXPECT_NE(streams.error().message.find("0:3,1-7:1"), std::string::npos);
  }
}

TEST(Ranks, AreNumbersAndRanges) {
  const Result<RankSet> ranks = parse_ranks("0,3,8-11");
  ASSERT_TRUE(ranks);
  EXPECT_TRUE(ranks->contains(0));
  EXPECT_FALSE(ranks->contains(1));
  EXPECT_TRUE(ranks->contains(3));
  EXPECT_FALSE(ranks->contains(7));
  EXPECT_TRUE(ranks->contains(8));
  EXPECT_TRUE(ranks->contains(11));
  EXPECT_FALSE(ranks->contains(12));
}

TEST(Ranks, ContainEveryRankWhenNoneIsNamed) {
  const Result<RankSet> ranks = parse_ranks("");
  ASSERT_TRUE(ranks);
  EXPECT_TRUE(ranks->is_empty());
  EXPECT_TRUE(ranks->contains(0));
  EXPECT_TRUE(ranks->contains(1000));
}

TEST(Ranks, RefuseWhatIsNoList) {
  for (const char* text : {"a", "1,", ",1", "1 2", "3-1", "-1", "1.5", "1,,2"}) {
    const Result<RankSet> ranks = parse_ranks(text);
    ASSERT_FALSE(ranks) << text;
    EXPECT_NE(ranks.error().message.find("0,3,8-11"), std::string::npos);
  }
}

TEST(DuplicateFilters, AreSplitAtCommasAndADoubledCommaIsOne) {
  using Filters = std::vector<std::string>;
  EXPECT_EQ(parse_duplicate_filters("error"), (Filters{"error"}));
  EXPECT_EQ(parse_duplicate_filters("error,loss="), (Filters{"error", "loss="}));
  EXPECT_EQ(parse_duplicate_filters("a,,b,c"), (Filters{"a,b", "c"}));
  EXPECT_EQ(parse_duplicate_filters(",,"), (Filters{","}));
  EXPECT_EQ(parse_duplicate_filters(""), (Filters{""}));
}

TEST(DuplicateFilters, MatchPartsOfALineAndTheEmptyOneMatchesAll) {
  EXPECT_TRUE(matches_any({"x", "rror"}, "an error"));
  EXPECT_FALSE(matches_any({"Error"}, "an error"));
  EXPECT_TRUE(matches_any({""}, ""));
  EXPECT_FALSE(matches_any({}, "an error"));
}

// The whole table of redirect, tee, filter and null device, for a rank above nine as well.
TEST(Targets, FollowRedirectTeeFilterAndNullDevice) {
  struct Row {
    const char* redirects;
    const char* tee;
    const char* ranks;
    bool null_device;
    Target of_out;  // of rank 10
    Target of_err;
  };
  const Row rows[] = {
      {"0", "0", "", false, Target::Inherit, Target::Inherit},
      {"3", "0", "", false, Target::File, Target::File},
      {"0", "3", "", false, Target::Tee, Target::Tee},
      {"3", "3", "", false, Target::Tee, Target::Tee},
      {"1", "2", "", false, Target::File, Target::Tee},
      {"10:1", "10:2", "", false, Target::File, Target::Tee},
      {"1:1", "1:2", "", false, Target::Inherit, Target::Inherit},
      {"0-20:2", "0", "", false, Target::Inherit, Target::File},
      {"0", "0", "10", false, Target::Inherit, Target::Inherit},
      {"3", "0", "10", false, Target::File, Target::File},
      {"0", "3", "8-12", false, Target::Tee, Target::Tee},
      {"0", "0", "0", false, Target::Null, Target::Null},
      {"1", "0", "0", false, Target::File, Target::Null},
      {"0", "1", "0,1", false, Target::File, Target::Null},
      {"3", "3", "0", false, Target::File, Target::File},
      {"0", "0", "", true, Target::Inherit, Target::Inherit},
      {"3", "0", "", true, Target::Null, Target::Null},
      {"0", "3", "", true, Target::Tee, Target::Tee},
      {"3", "1", "", true, Target::Tee, Target::Null},
      {"0", "3", "0", true, Target::Null, Target::Null},
  };
  for (const Row& row : rows) {
    const Routing routing{.redirects = *parse_streams(row.redirects),
                          .tee = *parse_streams(row.tee),
                          .console_ranks = *parse_ranks(row.ranks),
                          .null_device = row.null_device};
    SCOPED_TRACE(testing::Message() << "redirects=" << row.redirects << " tee=" << row.tee
                                    << " ranks=" << row.ranks << " null=" << row.null_device);
    EXPECT_EQ(target_of(routing, 10, Stream::Out), row.of_out);
    EXPECT_EQ(target_of(routing, 10, Stream::Err), row.of_err);
  }
}

}  // namespace
}  // namespace muster::logs
