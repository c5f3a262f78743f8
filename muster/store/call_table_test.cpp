#include "muster/store/call_table.h"

#include "muster/base/random.h"
#include "muster/store/extension_link.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace muster::store {
namespace {

class NoSink final : public ReplySink {
 public:
  void on_reply(const wire::Reply&) override {}
  void on_lost(const std::string&, bool) override {}
};

TEST(CallTable, FindsACallUntilItIsRemoved) {
  CallTable table;
  NoSink sink;
  EXPECT_EQ(table.find(1), nullptr);
  const std::uint32_t id = table.add(sink, 70);
  ASSERT_NE(table.find(id), nullptr);
  EXPECT_EQ(table.find(id)->sink, &sink);
  EXPECT_EQ(table.find(id)->first_byte, 70U);
  EXPECT_TRUE(table.remove(id));
  EXPECT_FALSE(table.remove(id));
  EXPECT_EQ(table.find(id), nullptr);
  EXPECT_EQ(table.size(), 0U);
}

TEST(CallTable, GivesIdsThatCountUp) {
  CallTable table;
  NoSink sink;
  for (std::uint32_t expected = 1; expected <= 1000; ++expected) {
    EXPECT_EQ(table.add(sink, expected), expected);
    EXPECT_TRUE(table.remove(expected));
  }
}

TEST(CallTable, TakesNoOtherIdForTheOneInTheSamePlace) {
  CallTable table;
  NoSink sink;
  const std::uint32_t id = table.add(sink, 1);
  for (std::uint32_t other = id + 1; other < id + 100'000; ++other) {
    ASSERT_EQ(table.find(other), nullptr) << other;
  }
  EXPECT_EQ(table.find(0), nullptr);
}

TEST(CallTable, SkipsNoIdWhileItIsSmall) {
  CallTable table;
  NoSink sink;
  const std::uint32_t waiting = table.add(sink, 0);
  for (std::uint32_t expected = 2; expected <= 60; ++expected) {
    EXPECT_EQ(table.add(sink, 0), expected);
    EXPECT_TRUE(table.remove(expected));
  }
  EXPECT_NE(table.find(waiting), nullptr);
}

TEST(CallTable, PassesOverCallsThatWaitLong) {
  CallTable table;
  NoSink sink;
  std::vector<std::uint32_t> waiting;
  for (int count = 0; count < 5; ++count) waiting.push_back(table.add(sink, 0));
  for (int count = 0; count < 1000; ++count) EXPECT_TRUE(table.remove(table.add(sink, 0)));
  for (const std::uint32_t id : waiting) EXPECT_NE(table.find(id), nullptr);
  EXPECT_EQ(table.size(), waiting.size());
}

TEST(CallTable, NeverGivesZeroAndNoIdThatIsInUse) {
  CallTable table(std::numeric_limits<std::uint32_t>::max() - 5);
  NoSink sink;
  std::map<std::uint32_t, bool> given;
  for (int count = 0; count < 20; ++count) {
    const std::uint32_t id = table.add(sink, 0);
    EXPECT_NE(id, 0U);
    EXPECT_TRUE(given.emplace(id, true).second);
  }
}

TEST(CallTable, SkipsAnIdForWhatNobodyWaitsFor) {
  CallTable table;
  NoSink sink;
  const std::uint32_t first = table.add(sink, 0);
  const std::uint32_t skipped = table.skip();
  EXPECT_NE(skipped, first);
  EXPECT_EQ(table.find(skipped), nullptr);
  EXPECT_NE(table.add(sink, 0), skipped);
}

TEST(CallTable, ReturnsAllInTheOrderOfTheirBytes) {
  CallTable table(std::numeric_limits<std::uint32_t>::max() - 5);
  NoSink sink;
  for (std::uint64_t byte = 0; byte < 100; ++byte) table.add(sink, byte);
  const auto all = table.take_all();
  ASSERT_EQ(all.size(), 100U);
  for (std::uint64_t byte = 0; byte < 100; ++byte) EXPECT_EQ(all[byte].first_byte, byte);
  EXPECT_EQ(table.size(), 0U);
  EXPECT_EQ(table.find(all[0].id), nullptr);
  EXPECT_NE(table.add(sink, 0), 0U);
}

TEST(CallTable, AgreesWithAMap) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    CallTable table;
    NoSink sink;
    std::map<std::uint32_t, std::uint64_t> model;
    for (std::uint64_t step = 0; step < 5000; ++step) {
      if (model.empty() || random.chance(505)) {
        EXPECT_TRUE(model.emplace(table.add(sink, step), step).second);
      } else {
        auto chosen = model.begin();
        std::advance(chosen, static_cast<std::ptrdiff_t>(random.below(model.size())));
        EXPECT_TRUE(table.remove(chosen->first));
        model.erase(chosen);
      }
      ASSERT_EQ(table.size(), model.size());
    }
    for (const auto& [id, byte] : model) {
      ASSERT_NE(table.find(id), nullptr);
      EXPECT_EQ(table.find(id)->first_byte, byte);
    }
  }
}

}  // namespace
}  // namespace muster::store
