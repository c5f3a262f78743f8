// DynamicGroup: a group that workers join and leave as they like; see group.h.
//
// The decisions are in membership.h, what is in the store is described in member_board.h. A group
// that has joined does three things, as long as it lives:
//  - it follows the list, and tells its owner of every change;
//  - it renews its lease, and says there which list it acts on. A newcomer is in when all others
//    say that they act on a list with it;
//  - it observes the leases of some others, and takes out whose lease is over.
//
// A worker that was stopped for longer than its lease is taken out like one that died. When it goes
// on it notices, and joins again as a new incarnation: its owner is told of a list in which this
// worker has that incarnation. If its name or id has been taken meanwhile, it stays out for good:
// its owner is told of lists without this worker.
//
// Owned by an agent; lives on its loop.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/rpc/group.h"
#include "muster/rpc/member_board.h"
#include "muster/rpc/membership.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace muster::rpc {

// Wakes one coroutine that waits for something to do.
class Bell {
 public:
  explicit Bell(Loop& loop) : loop_(loop) {}
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  // Heard by whoever waits, or else by the next who does.
  void ring();
  // Until it is rung, or until `deadline`. One waiter at a time.
  Task<void> heard(TimePoint deadline);

 private:
  struct Waiter;
  Loop& loop_;
  bool rung_ = false;
  Waiter* waiter_ = nullptr;
};

class DynamicGroup final : public Group {
 public:
  DynamicGroup(Loop& loop, store::Store& store, Member self, GroupOptions options,
               GroupEvents& events);

  // Once, before anything else. When it fails, nothing is left in the store, as far as the store
  // can be reached; what is left has a lease that is soon over.
  Task<Result<>> join(TimePoint deadline);

  bool is_static() const override { return false; }
  Task<Result<Member>> look_up(std::string name) override;
  void suspect(const Member& member) override;
  Task<Result<>> leave(TimePoint deadline) override;
  Task<Result<>> end(TimePoint) override { co_return Result<>(); }

 private:
  enum class State {
    In,   // or on the way in
    Out,  // somebody else has our place
    Left,
  };

  Task<Result<>> come_in();
  // Puts `self_` into the list, in the place of whoever had its name or id and is dead.
  Task<Result<>> enter();
  // Looks at the leases of `holders`; adds those that are dead to `gone`. Invalid if one lives.
  Task<Result<>> judge(std::vector<Member> holders, Leases& leases, Incarnations& gone);
  // Until all who were here when we came act on a list with us.
  Task<Result<>> become_known();
  // Those of whom that is not known yet.
  std::vector<std::uint64_t> unaware() const;
  std::string unaware_text(Duration waited) const;
  // Takes `self_` out of the list.
  Task<Result<>> withdraw();

  Task<void> follow();
  Task<void> renew();
  Task<void> observe();
  // Looks at these leases, and takes out those that are over.
  Task<void> look_at(std::vector<std::uint64_t> incarnations);
  Task<void> take_out(Incarnations silent);
  // A lease of one who is out. If it stays it is in nobody's way.
  Task<void> drop(std::uint64_t incarnation);

  // This is the list now. False if it is not, and should be read again.
  Task<bool> take(MemberList list);
  // We are not in the list any more. False if that is how it stays.
  Task<bool> come_back();
  void tell(MemberList list);

  Loop& loop_;
  store::Store& store_;
  Member self_;
  const GroupOptions options_;
  GroupEvents& events_;
  MemberBoard board_;
  Random random_;
  State state_ = State::In;
  std::optional<Error> refusal_;  // why we are not in yet
  MemberList entered_;            // the first one with us in it
  bool is_known_ = false;         // to all the others; joining has ended
  Incarnations aware_;            // until then: those that act on that list, or on a newer one
  MemberList list_;               // the newest, which the owner has been told of
  Leases leases_;
  Bell renew_bell_;
  Bell observe_bell_;
  TaskScope scope_;
};

}  // namespace muster::rpc
