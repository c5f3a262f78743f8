#include "muster/failures/root_cause.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace muster::failures {
namespace {

struct Facts {
  int rank = 0;
  int node = 0;
  std::int64_t exited = 0;
  std::uint64_t order = 0;
  std::int64_t recorded = 0;
  bool collateral = false;
  std::int64_t clock_lead = 0;
};

Failure failure(const Facts& facts) {
  Failure made;
  made.global_rank = facts.rank;
  made.node_rank = facts.node;
  made.pid = 100 + facts.rank;
  made.exit_code = 1;
  made.exited_nanoseconds = facts.exited;
  made.order = facts.order;
  made.recorded_nanoseconds = facts.recorded;
  made.collateral = facts.collateral;
  made.clock_lead_nanoseconds = facts.clock_lead;
  return made;
}

TEST(RootCause, IsNothingWithoutFailures) { EXPECT_EQ(root_cause({}), std::nullopt); }

TEST(RootCause, IsTheWorkerThatEndedFirstNotTheLowestRank) {
  // Thirty milliseconds apart, within one second.
  const std::vector<Failure> failures = {
      failure({.rank = 0, .exited = 1'030'000'000, .order = 2}),
      failure({.rank = 1, .exited = 1'000'000'000, .order = 1}),
  };
  EXPECT_EQ(root_cause(failures), 1U);
}

TEST(RootCause, FollowsTheKernelWhenTimesAreEqual) {
  const std::vector<Failure> failures = {
      failure({.rank = 0, .exited = 500, .order = 9}),
      failure({.rank = 1, .exited = 500, .order = 8}),
  };
  EXPECT_EQ(root_cause(failures), 1U);
}

TEST(RootCause, FollowsTheKernelWhenTheClockWasSetBack) {
  const std::vector<Failure> failures = {
      failure({.rank = 0, .exited = 9'000, .order = 1}),
      failure({.rank = 1, .exited = 1'000, .order = 2}),
      failure({.rank = 2, .exited = 5'000, .order = 3}),
  };
  EXPECT_EQ(in_order_of_time(failures), (std::vector<std::size_t>{0, 1, 2}));
}

TEST(RootCause, IsTheWorkerThatSaidFirstThatItFails) {
  // Rank 0 raised an exception, then took its time to end; rank 1 lost its peer and aborted at
  // once.
  const std::vector<Failure> failures = {
      failure({.rank = 0, .exited = 9'000, .order = 2, .recorded = 1'000}),
      failure({.rank = 1, .exited = 4'000, .order = 1}),
  };
  EXPECT_EQ(root_cause(failures), 0U);
}

TEST(RootCause, IsNeverCollateral) {
  const std::vector<Failure> failures = {
      failure({.rank = 0, .exited = 100, .order = 1, .collateral = true}),
      failure({.rank = 1, .exited = 200, .order = 2}),
      failure({.rank = 2, .exited = 50, .order = 0, .collateral = true}),
  };
  EXPECT_EQ(root_cause(failures), 1U);
  EXPECT_EQ(in_order_of_time(failures), (std::vector<std::size_t>{1, 2, 0}));
  EXPECT_EQ(root_cause({failures[0], failures[2]}), std::nullopt);
}

TEST(RootCause, IsComparedAcrossNodes) {
  const auto merged = merge({
      {failure({.rank = 0, .node = 0, .exited = 300, .order = 1}),
       failure({.rank = 1, .node = 0, .exited = 310, .order = 2})},
      {failure({.rank = 3, .node = 1, .exited = 200, .order = 77}),
       failure({.rank = 2, .node = 1, .exited = 250, .order = 78})},
  });
  ASSERT_EQ(merged.size(), 4U);
  for (std::size_t index = 0; index < merged.size(); ++index)
    EXPECT_EQ(merged[index].global_rank, static_cast<int>(index));
  EXPECT_EQ(root_cause(merged), 3U);
}

TEST(RootCause, DoesNotDependOnWhatTheClocksOfTheNodesShow) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  // In truth rank 1 failed at second 1000, and rank 0 died of it two milliseconds later.
  for (const std::int64_t lead : {600 * kSecond, -600 * kSecond, std::int64_t{0}}) {
    const std::vector<Failure> failures = {
        failure({.rank = 0, .node = 0, .exited = 1000 * kSecond + 2'000'000}),
        failure({.rank = 1, .node = 1, .exited = 1000 * kSecond + lead, .clock_lead = lead}),
        failure({.rank = 2,
                 .node = 2,
                 .exited = 1001 * kSecond - lead,
                 .recorded = 1000 * kSecond + 1'000'000 - lead,
                 .clock_lead = -lead}),
    };
    EXPECT_EQ(in_order_of_time(failures), (std::vector<std::size_t>{1, 2, 0})) << lead;
  }
}

TEST(RootCause, BearsALeadThatMakesNoSense) {
  const std::vector<Failure> failures = {
      failure({.rank = 0, .exited = 2}),
      failure({.rank = 1, .node = 1, .exited = 1, .clock_lead = INT64_MIN}),
  };
  EXPECT_EQ(root_cause(failures), 1U);
}

TEST(RootCause, DoesNotCompareTheExitOrderOfDifferentNodes) {
  const std::vector<Failure> failures = {
      failure({.rank = 0, .node = 0, .exited = 300, .order = 1}),
      failure({.rank = 1, .node = 1, .exited = 200, .order = 50}),
      failure({.rank = 2, .node = 2, .exited = 200, .order = 2}),
  };
  EXPECT_EQ(in_order_of_time(failures), (std::vector<std::size_t>{1, 2, 0}));
}

TEST(RootCause, CountsAWorkerOnceThatWasReportedTwice) {
  Failure later = failure({.rank = 4, .node = 1, .exited = 5});
  later.message = "with details";
  const auto merged = merge({{failure({.rank = 4, .node = 1, .exited = 5})}, {later}});
  ASSERT_EQ(merged.size(), 1U);
  EXPECT_EQ(merged[0].message, "with details");
}

// Whatever the clocks did, the order is the same for every agent, in whichever order it learnt of
// the failures, and it keeps the kernel's order of those on one node that wrote no error file.
TEST(RootCause, DoesNotDependOnTheOrderOfTheList) {
  std::mt19937 random(20260101);
  const auto below = [&random](unsigned limit) { return static_cast<int>(random() % limit); };
  for (int repetition = 0; repetition < 300; ++repetition) {
    std::vector<Failure> failures;
    const int count = 1 + below(12);
    for (int rank = 0; rank < count; ++rank) {
      failures.push_back(failure({.rank = rank,
                                  .node = below(3),
                                  .exited = 1 + below(10),
                                  .order = static_cast<std::uint64_t>(rank),
                                  .recorded = below(3) == 0 ? 1 + below(10) : 0,
                                  .collateral = below(4) == 0}));
    }
    const auto ranks_of = [](const std::vector<Failure>& list) {
      std::vector<int> ranks;
      for (const std::size_t index : in_order_of_time(list))
        ranks.push_back(list[index].global_rank);
      return ranks;
    };
    const std::vector<int> expected = ranks_of(failures);
    const auto position = [&expected](int rank) {
      return std::find(expected.begin(), expected.end(), rank) - expected.begin();
    };
    for (const Failure& left : failures) {
      for (const Failure& right : failures) {
        const bool comparable = left.node_rank == right.node_rank && left.order < right.order &&
                                left.collateral == right.collateral &&
                                left.recorded_nanoseconds == 0 && right.recorded_nanoseconds == 0;
        if (comparable) {
          EXPECT_LT(position(left.global_rank), position(right.global_rank));
        }
      }
    }
    std::shuffle(failures.begin(), failures.end(), random);
    EXPECT_EQ(ranks_of(failures), expected);
  }
}

}  // namespace
}  // namespace muster::failures
