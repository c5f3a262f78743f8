#include "muster/rendezvous/node.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <thread>
#include <unistd.h>
#include <vector>

namespace muster::rendezvous {
namespace {

TEST(Node, EqualsOnlyANodeWithTheSameFourFields) {
  const Node node{.addr = "a", .pid = 1, .local_id = 2, .nonce = 3};
  EXPECT_EQ(node, (Node{.addr = "a", .pid = 1, .local_id = 2, .nonce = 3}));
  EXPECT_NE(node, (Node{.addr = "b", .pid = 1, .local_id = 2, .nonce = 3}));
  EXPECT_NE(node, (Node{.addr = "a", .pid = 9, .local_id = 2, .nonce = 3}));
  EXPECT_NE(node, (Node{.addr = "a", .pid = 1, .local_id = 9, .nonce = 3}));
  EXPECT_NE(node, (Node{.addr = "a", .pid = 1, .local_id = 2, .nonce = 9}));
}

TEST(Node, IsOrderedByAddressThenPidThenLocalIdAndByTheNonceLast) {
  const std::vector<Node> sorted = {
      {.addr = "", .pid = 9, .local_id = 9, .nonce = 9},
      {.addr = "10.0.0.10", .pid = 7, .local_id = 0, .nonce = 0},
      {.addr = "10.0.0.2", .pid = 2, .local_id = 0, .nonce = 9},   // as text, behind .10
      {.addr = "10.0.0.2", .pid = 10, .local_id = 2, .nonce = 9},  // as a number, behind 2
      {.addr = "10.0.0.2", .pid = 10, .local_id = 10, .nonce = 3},
      {.addr = "10.0.0.2", .pid = 10, .local_id = 10, .nonce = 1ULL << 63},
      {.addr = "a", .pid = 0, .local_id = 0, .nonce = 0},
      {.addr = "ab", .pid = 0, .local_id = 0, .nonce = 0},
      {.addr = "b", .pid = -1, .local_id = 0, .nonce = 0},
      {.addr = "b", .pid = 0, .local_id = 0, .nonce = 0},
      {.addr = "\xC3\xBC", .pid = 0, .local_id = 0, .nonce = 0},  // bytes have no sign
  };
  for (std::size_t left = 0; left < sorted.size(); ++left) {
    for (std::size_t right = 0; right < sorted.size(); ++right)
      EXPECT_EQ(sorted[left] <=> sorted[right], left <=> right) << left << " " << right;
  }
}

TEST(Node, IsDescribedWithoutItsNonce) {
  EXPECT_EQ(describe(Node{.addr = "dummy1", .pid = 2, .local_id = 3, .nonce = 4}), "dummy1_2_3");
}

TEST(MakeNode, CountsTheDescriptorsOfThisProcessAcrossThreads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 50;
  Random first_random(0);
  const std::int64_t before = make_node("host", first_random).local_id;
  std::vector<std::vector<std::int64_t>> ids(kThreads);
  std::vector<std::thread> threads;
  for (int index = 0; index < kThreads; ++index) {
    threads.emplace_back([&own = ids[static_cast<std::size_t>(index)], index] {
      Random random(static_cast<std::uint64_t>(index));
      for (int count = 0; count < kEach; ++count) own.push_back(make_node("host", random).local_id);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::int64_t> all;
  for (const auto& own : ids) {
    EXPECT_TRUE(std::ranges::is_sorted(own));
    all.insert(own.begin(), own.end());
  }
  EXPECT_EQ(all.size(), static_cast<std::size_t>(kThreads * kEach));
  EXPECT_EQ(*all.begin(), before + 1);
  EXPECT_EQ(*all.rbegin(), before + kThreads * kEach);
}

TEST(MakeNode, TellsApartNodesWithOneHostNameAndPid) {
  Random random(1);
  Node first = make_node("host", random);
  const Node second = make_node("host", random);
  EXPECT_EQ(first.addr, "host");
  EXPECT_EQ(first.pid, ::getpid());
  first.local_id = second.local_id;
  EXPECT_NE(first, second);
}

}  // namespace
}  // namespace muster::rendezvous
