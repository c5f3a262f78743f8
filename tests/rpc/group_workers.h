// What the tests of groups share: workers that join and remember what they are told.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/rpc/group.h"
#include "muster/store/memory_store.h"  // for the tests, which may not name it
#include "muster/store/store.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::rpc::testing {

// The member of that name and id, somewhere else in each incarnation.
inline Member member(std::string name, std::int64_t id, std::uint64_t incarnation) {
  std::string address = "host-" + std::to_string(incarnation) + ":4400";
  auto info = WorkerInfo::create_member(std::move(name), id);
  return Member{std::move(*info), incarnation, std::move(address), ""};
}

// Owned by the test. Requires: `loop` and `store` outlive it.
class GroupWorker final : public GroupEvents {
 public:
  GroupWorker(Loop& loop, store::Store& store, Member me)
      : self(std::move(me)), loop_(loop), store_(store) {}

  void join_static(std::int64_t world_size, TimePoint deadline) {
    scope_.start(keep(join_static_group(loop_, store_, self, world_size, *this, deadline)));
  }
  void join_dynamic(GroupOptions options, TimePoint deadline) {
    scope_.start(keep(join_dynamic_group(loop_, store_, self, options, *this, deadline)));
  }
  void leave(TimePoint deadline) { scope_.start(keep_leave(deadline)); }
  // As when its process is killed: nothing is said to anybody.
  void die() {
    scope_.cancel_all();
    group.reset();
  }

  // Whether the join has ended, one way or the other.
  bool done() const { return group != nullptr || error.has_value(); }
  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const Member& one : members) list.push_back(one.info.name());
    return list;
  }
  const Member* find(std::string_view name) const {
    for (const Member& one : members) {
      if (one.info.name() == name) return &one;
    }
    return nullptr;
  }

  void on_members(const std::vector<Member>& now) override {
    members = now;
    ++told_count;
    if (when_told) when_told();
  }

  const Member self;
  std::unique_ptr<Group> group;  // once it has joined
  std::optional<Error> error;    // when it could not
  std::optional<Result<>> left;
  std::vector<Member> members;  // as it was told last
  int told_count = 0;
  // Called then, if they are set.
  std::function<void()> when_joined;
  std::function<void()> when_told;

 private:
  Task<void> keep(Task<Result<std::unique_ptr<Group>>> joining) {
    auto joined = co_await joining;
    if (joined) {
      group = std::move(*joined);
      if (when_joined) when_joined();
    } else {
      error = joined.error();
    }
  }
  Task<void> keep_leave(TimePoint deadline) {
    auto outcome = co_await group->leave(deadline);
    left = std::move(outcome);
  }

  Loop& loop_;
  store::Store& store_;
  TaskScope scope_;
};

inline ::testing::AssertionResult failed_with(const std::optional<Error>& error, ErrorKind kind,
                                              std::string_view part) {
  if (!error) return ::testing::AssertionFailure() << "it did not fail";
  if (error->kind == kind && error->message.find(part) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << name_of(error->kind) << ": " << error->message;
}

}  // namespace muster::rpc::testing
