// The fixture of the tests of Table, which are in several files.
#pragma once

#include "muster/store/table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::store {

inline bool operator==(const Notice& left, const Notice& right) {
  return left.watcher == right.watcher && left.kind == right.kind && left.key == right.key &&
         left.old_value == right.old_value && left.new_value == right.new_value;
}
inline void PrintTo(const Notice& notice, std::ostream* out) {
  *out << notice.watcher << " " << name_of(notice.kind) << " " << notice.key << ": "
       << notice.old_value << " -> " << notice.new_value;
}

}  // namespace muster::store

namespace muster::store::testing {

using Ids = std::vector<WaiterId>;
using Names = std::vector<std::string_view>;
using Notices = std::vector<Notice>;
using Kind = Change::Kind;
using Need = store::Table::Need;

class Table : public ::testing::Test {
 protected:
  // What the last calls did, and forgets it.
  Ids released() { return std::exchange(outcome.released, {}); }
  Notices notices() { return std::exchange(outcome.notices, {}); }

  void set(std::string_view key, std::string_view value) { table.set(key, value, outcome); }
  bool wait(WaiterId waiter, const Names& keys, Need need = Need::Any) {
    return table.wait(waiter, keys, need);
  }
  void push(std::string_view queue, std::string_view item) { table.push(queue, item, outcome); }
  bool barrier(WaiterId waiter, std::string_view key, std::int64_t member_count) {
    const Result<bool> complete = table.barrier(waiter, key, member_count, outcome);
    EXPECT_TRUE(complete);
    return complete && *complete;
  }
  std::string value(std::string_view key) const {
    const std::string* const found = table.find(key);
    return found == nullptr ? "(absent)" : *found;
  }
  std::string pop(std::string_view queue, WaiterId waiter = 0) {
    return table.pop(queue, waiter).value_or("(empty)");
  }

  store::Table table;
  Outcome outcome;
};

}  // namespace muster::store::testing
