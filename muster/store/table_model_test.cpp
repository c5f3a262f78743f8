// A Table against a model.
#include "muster/base/random.h"
#include "muster/store/table.h"
#include "muster/store/table_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace muster::store::testing {
namespace {

// ---- against a model that looks everything up the slow way

class Model {
 public:
  struct Waiting {
    WaiterId id;
    Need need;
    std::set<std::string> missing;
  };
  struct Watching {
    std::set<std::string> keys;
    std::set<std::string> prefixes;
  };

  std::map<std::string, std::string> entries;
  std::map<std::string, std::vector<std::string>> queues;
  std::vector<Waiting> waiting;  // in the order of arrival
  std::map<std::string, std::set<WaiterId>> claims;
  std::map<WatcherId, Watching> watching;
  Outcome outcome;

  bool waits(WaiterId id) const {
    return std::any_of(waiting.begin(), waiting.end(),
                       [&](const Waiting& one) { return one.id == id; });
  }
  bool there(const std::string& key, Need need) const {
    return (need != Need::Queue && entries.contains(key)) ||
           (need != Need::Key && queues.contains(key));
  }
  void tell(Kind kind, const std::string& key, const std::string& old_value,
            const std::string& new_value) {
    for (const auto& [id, watched] : watching) {
      const bool concerned =
          watched.keys.contains(key) ||
          std::any_of(watched.prefixes.begin(), watched.prefixes.end(),
                      [&](const std::string& prefix) { return key.starts_with(prefix); });
      if (concerned) outcome.notices.push_back({id, kind, key, old_value, new_value});
    }
  }
  void put(const std::string& key, const std::string& value) {
    const bool is_new = !entries.contains(key);
    const std::string old_value = std::exchange(entries[key], value);
    tell(is_new ? Kind::Created : Kind::Updated, key, old_value, value);
  }
  void strike(std::size_t index, const std::string& key) {
    waiting[index].missing.erase(key);
    if (waiting[index].missing.empty()) outcome.released.push_back(waiting[index].id);
  }
  void sweep() {
    std::erase_if(waiting, [](const Waiting& one) { return one.missing.empty(); });
  }
  void release_all(const std::string& key) {
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].need != Need::Queue && waiting[i].missing.contains(key)) strike(i, key);
    }
    sweep();
  }
  void release_one(const std::string& queue) {
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].need == Need::Key || !waiting[i].missing.contains(queue)) continue;
      claims[queue].insert(waiting[i].id);
      strike(i, queue);
      break;
    }
    sweep();
  }
  void set(const std::string& key, const std::string& value) {
    put(key, value);
    release_all(key);
  }
  std::optional<std::int64_t> add(const std::string& key, std::int64_t delta, bool wake) {
    std::int64_t number = 0;
    if (entries.contains(key)) {
      const std::string& text = entries[key];
      char* end = nullptr;
      errno = 0;
      number = std::strtoll(text.c_str(), &end, 10);
      if (end == text.c_str() || errno != 0) return std::nullopt;
    }
    const auto sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(number) +
                                               static_cast<std::uint64_t>(delta));
    put(key, std::to_string(sum));
    if (wake) release_all(key);
    return sum;
  }
  bool wait(WaiterId id, const std::vector<std::string>& keys, Need need) {
    Waiting one{id, need, {}};
    for (const std::string& key : keys) {
      if (!there(key, need)) one.missing.insert(key);
    }
    if (one.missing.empty()) return true;
    waiting.push_back(one);
    return false;
  }
  std::optional<bool> barrier(WaiterId id, const std::string& key, std::int64_t member_count) {
    const std::optional<std::int64_t> count = add(key, 1, false);
    if (!count) return std::nullopt;
    if (*count >= member_count) {
      release_all(key);
      return true;
    }
    waiting.push_back({id, Need::Key, {key}});
    return false;
  }
  std::optional<std::string> pop(const std::string& queue, WaiterId id) {
    if (!queues.contains(queue)) return std::nullopt;
    std::vector<std::string>& items = queues[queue];
    const std::string item = items.front();
    items.erase(items.begin());
    claims[queue].erase(id);
    if (items.empty()) {
      queues.erase(queue);
      claims.erase(queue);
    }
    return item;
  }
  void forget(WaiterId id) {
    std::erase_if(waiting, [&](const Waiting& one) { return one.id == id; });
    std::vector<std::string> passed_on;
    for (auto& [queue, claimants] : claims) {
      if (claimants.erase(id) > 0) passed_on.push_back(queue);
    }
    for (const std::string& queue : passed_on) {
      if (claims[queue].size() < queues[queue].size()) release_one(queue);
    }
  }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& [key, value] : entries)
      sum += key.size() + value.size() + store::Table::kEntryOverheadBytes;
    for (const auto& [name, items] : queues) {
      sum += name.size() + store::Table::kEntryOverheadBytes;
      for (const std::string& item : items) sum += item.size() + store::Table::kEntryOverheadBytes;
    }
    return sum;
  }
};

class TableModel : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  const std::vector<std::string> names = {"",  "a",   "ab",  "abc",
                                          "b", "q/1", "q/2", std::string("\0x", 2)};
  const std::vector<std::string> values = {"",
                                           "0",
                                           "7",
                                           "-3 and more",
                                           " 41",
                                           "text",
                                           "v1",
                                           "v22",
                                           "v1v",
                                           "9223372036854775807",
                                           std::string(3000, 'z')};

  const std::string& any(const std::vector<std::string>& list) {
    return list[random.below(list.size())];
  }
  WaiterId any_waiter() { return 1 + random.below(12); }

  void step() {
    const std::string& name = any(names);
    const std::string& value = any(values);
    switch (random.below(16)) {
      case 0:
      case 1:
        table.set(name, value, outcome);
        return model.set(name, value);
      case 2: {
        const auto delta = static_cast<std::int64_t>(random.below(100)) - 50;
        const Result<std::int64_t> sum = table.add(name, delta, outcome);
        const std::optional<std::int64_t> expected = model.add(name, delta, true);
        ASSERT_EQ(sum.has_value(), expected.has_value());
        EXPECT_EQ(sum.value_or(0), expected.value_or(0));
        return;
      }
      case 3:
        return compare_set(name, any(values), value);
      case 4:
      case 5: {
        const bool was_there = model.entries.contains(name);
        EXPECT_EQ(table.erase(name, outcome), was_there);
        if (was_there) model.tell(Kind::Deleted, name, model.entries[name], "");
        model.entries.erase(name);
        return;
      }
      case 6:
        table.append(name, value, outcome);
        return model.set(name, (model.entries.contains(name) ? model.entries[name] : "") + value);
      case 7:
      case 8:
        table.push(name, value, outcome);
        model.queues[name].push_back(value);
        return model.release_one(name);
      case 9:
      case 10: {
        const WaiterId id = random.chance(500) ? any_waiter() : 0;
        EXPECT_EQ(table.pop(name, id), model.pop(name, id));
        return;
      }
      case 11:
      case 12:
        return wait(any_waiter());
      case 13:
        return barrier(any_waiter(), name, 1 + static_cast<std::int64_t>(random.below(60)));
      case 14: {
        const WaiterId id = any_waiter();
        table.forget(id, outcome);
        return model.forget(id);
      }
      default:
        return watch(1 + random.below(5), name);
    }
  }

  void compare_set(const std::string& name, std::string expected, const std::string& desired) {
    if (random.chance(500) && model.entries.contains(name)) expected = model.entries[name];
    const CompareSet result = table.compare_set(name, expected, desired, outcome);
    const bool absent = !model.entries.contains(name);
    const bool stored = absent ? expected.empty() : model.entries[name] == expected;
    EXPECT_EQ(result.stored, stored);
    EXPECT_EQ(result.value, stored ? desired : absent ? expected : model.entries[name]);
    if (stored) model.set(name, desired);
  }

  void wait(WaiterId id) {
    if (model.waits(id)) return;
    std::vector<std::string> keys;
    for (std::uint64_t count = random.below(5); count > 0; --count) keys.push_back(any(names));
    const auto need = static_cast<Need>(random.below(3));
    const Names views(keys.begin(), keys.end());
    EXPECT_EQ(table.wait(id, views, need), model.wait(id, keys, need));
  }

  void barrier(WaiterId id, const std::string& name, std::int64_t member_count) {
    if (model.waits(id)) return;
    const Result<bool> complete = table.barrier(id, name, member_count, outcome);
    const std::optional<bool> expected = model.barrier(id, name, member_count);
    ASSERT_EQ(complete.has_value(), expected.has_value());
    EXPECT_EQ(complete.value_or(false), expected.value_or(false));
  }

  void watch(WatcherId id, const std::string& name) {
    switch (random.below(3)) {
      case 0:
        table.watch_key(id, name);
        model.watching[id].keys.insert(name);
        return;
      case 1:
        table.watch_prefix(id, name);
        model.watching[id].prefixes.insert(name);
        return;
      default:
        table.unwatch(id);
        model.watching.erase(id);
    }
  }

  void compare() {
    EXPECT_EQ(outcome.released, model.outcome.released);
    EXPECT_EQ(outcome.notices, model.outcome.notices);
    EXPECT_EQ(table.key_count(), model.entries.size());
    std::vector<std::string> keys;
    for (const auto& [key, value] : model.entries) {
      keys.push_back(key);
      ASSERT_NE(table.find(key), nullptr) << key;
      EXPECT_EQ(*table.find(key), value);
    }
    EXPECT_EQ(table.keys(""), keys);
    for (const std::string& name : names) {
      EXPECT_EQ(table.queue_length(name),
                model.queues.contains(name) ? model.queues[name].size() : 0);
      EXPECT_EQ(table.present(name), model.there(name, Need::Any));
    }
    EXPECT_EQ(table.waiter_count(), model.waiting.size());
    EXPECT_EQ(table.bytes(), model.bytes());
    outcome.clear();
    model.outcome.clear();
  }

  Random random{GetParam()};
  store::Table table;
  Outcome outcome;
  Model model;
};

TEST_P(TableModel, DoesWhatTheModelDoes) {
  for (int i = 0; i < 4000 && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    step();
    compare();
  }
}

TEST_P(TableModel, IsEmptyInTheEnd) {
  for (int i = 0; i < 1000; ++i) step();
  for (WaiterId id = 1; id <= 12; ++id) table.forget(id, outcome);
  for (const std::string& name : names) {
    table.erase(name, outcome);
    while (table.pop(name, 0)) continue;
  }
  EXPECT_EQ(table.bytes(), 0U);
  EXPECT_EQ(table.waiter_count(), 0U);
  EXPECT_EQ(table.key_count(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, TableModel, ::testing::Range<std::uint64_t>(1, 25));

}  // namespace
}  // namespace muster::store::testing
