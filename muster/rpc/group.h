// Group: who can be called, and where. Workers find each other through a Store.
//
// A static group has a size that is known from the start: ranks 0 … size - 1 come once, and joining
// ends when all have come. A dynamic group has none: workers come and go, each holds a lease that
// it renews, and whoever stops renewing it is taken out by the others.
//
// Lives on one loop, with its store; owned by an agent, which is told of every change.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/task.h"
#include "muster/rpc/device_maps.h"
#include "muster/rpc/worker_info.h"
#include "muster/store/store.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::rpc {

// A worker as the others reach it.
struct Member {
  WorkerInfo info;
  // Tells a worker from one of the same name that was here before; never used again. Whoever joins
  // draws one at random, other than 0.
  std::uint64_t incarnation = 0;
  std::string address;  // "host:port", an IPv6 host in brackets
  // Where it can be met by processes of the same machine; empty when that is not offered.
  std::string local_address;
  // Its accelerators, and where it sends what is on them.
  DeviceOptions devices{};

  friend bool operator==(const Member&, const Member&) = default;
};

struct GroupOptions {
  // Dynamic groups: how often a lease is renewed, and after how long without a renewal, by the
  // observer's own clock, the worker counts as dead.
  Duration renew_interval = std::chrono::seconds(1);
  Duration lease = std::chrono::seconds(5);
};

class GroupEvents {
 public:
  virtual ~GroupEvents() = default;
  // All members as they are now, by id, this worker included. Told before `join` ends, and after
  // every change. Others may call this worker from then on.
  // A worker that was stopped for longer than its lease is taken out of a dynamic group; when it
  // goes on it joins again by itself, and is told of a list in which it has a new incarnation. A
  // list without this worker means that others have its name or id meanwhile: it is out for good.
  // Requires: does not destroy the group.
  virtual void on_members(const std::vector<Member>& members) = 0;
  // This worker is out of a dynamic group and about to join it again, perhaps because the store has
  // lost everything: what else it needs there is put back first. Tried again when it fails.
  virtual Task<Result<>> before_return() { co_return Result<>(); }
};

class Group {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  virtual bool is_static() const = 0;

  // A fresh look for the member of that name, for one whose connection broke: it may have been
  // started again somewhere else. Invalid if there is none.
  virtual Task<Result<Member>> look_up(std::string name) = 0;

  // Its connection broke. In a dynamic group its lease is looked at; a member that does not renew
  // it any more is taken out.
  virtual void suspect(const Member& member) = 0;

  // Takes this worker out of its group. No more is told of the members of a dynamic group then.
  // Those of a static one stay as they are, but whoever joins afterwards does not take this worker
  // for one who is there, and waits for it; a store that does not answer at once is not waited for.
  // Destroying a group without that is like dying: the others notice when the lease is over.
  virtual Task<Result<>> leave(TimePoint deadline) = 0;

  // All workers of a static group have agreed that it is over; each of them says so here before it
  // goes. Whoever joins afterwards waits for a new group, and finds nothing of this one. Nothing to
  // do in a dynamic group.
  virtual Task<Result<>> end(TimePoint deadline) = 0;
};

// Joins the group under `store` (the agent gives a view of its own: see PrefixStore).
// With a `world_size`: static. Ends when all have come, or at the deadline with an error that lists
// the missing ranks. Whoever has joined in vain has left nothing behind that others take for it.
// Invalid: the name is not unique, or the group is of the other kind; or the
// workers' devices do not fit together, which all of them find out.
// Without: dynamic. Ends when every member that is alive knows this worker. A name or an id whose
// holder still renews its lease is refused (Invalid); that of a dead one is taken over, which takes
// a lease to find out: give the deadline more time than that. A worker whose devices do not fit
// those of the members is refused (Invalid), and they do not notice.
// A static worker that was started again with its name and rank takes the place of its former self.
// Requires: loop, store and events outlive the group.
Task<Result<std::unique_ptr<Group>>> join_static_group(Loop& loop, store::Store& store, Member self,
                                                       std::int64_t world_size, GroupEvents& events,
                                                       TimePoint deadline);
Task<Result<std::unique_ptr<Group>>> join_dynamic_group(Loop& loop, store::Store& store,
                                                        Member self, GroupOptions options,
                                                        GroupEvents& events, TimePoint deadline);

}  // namespace muster::rpc
