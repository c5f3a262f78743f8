// Membership: who is in a dynamic group, who may come in, and whose lease is over.
//
// One list says who is in. It has a version that grows with every change, and is replaced as a
// whole, by compare-and-set; so each change is decided by a function from the list as it is to the
// list as it should be. Whoever leaves or is taken out is gone without a trace: its name and its id
// are free again, and the incarnation tells it from whoever takes them.
//
// Pure: no store, no clock.
#pragma once

#include "muster/base/clock.h"
#include "muster/base/error.h"
#include "muster/rpc/group.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {

using Incarnations = std::set<std::uint64_t>;

struct MemberList {
  std::uint64_t version = 0;    // 0: there has been no list yet
  std::vector<Member> members;  // by id; no two have the same id, name or incarnation

  const Member* find(std::uint64_t incarnation) const;
  const Member* find_name(std::string_view name) const;

  friend bool operator==(const MemberList&, const MemberList&) = default;
};

// As bytes: "MusterRL", u32 format version 2, u64 version, u32 count, then that many members as in
// member.h. Whatever breaks a promise of MemberList is Corrupt; `key` is for the message.
std::string encode_list(const MemberList& list);
Result<MemberList> decode_list(std::string_view key, std::string_view bytes);

struct Admission {
  // The list to store; nothing if the newcomer is in already, or others are in its way.
  std::optional<MemberList> next;
  // Those that have its name or its id.
  std::vector<Member> holders;
};
// Lets `newcomer` in, in the place of those holders of its name and id that are `gone`.
Admission admit(const MemberList& list, const Member& newcomer, const Incarnations& gone);
// The list without them; nothing if none of them is in it.
std::optional<MemberList> without(const MemberList& list, const Incarnations& leaving);
// Why `newcomer` is refused while `holder` lives.
std::string refusal_text(const Member& newcomer, const Member& holder);

// The lease of a member as it is kept in the store: "BEAT VERSION".
struct Lease {
  std::uint64_t beat = 0;          // grows with every renewal
  std::uint64_t acknowledged = 0;  // the newest list that this member acts on

  friend bool operator==(const Lease&, const Lease&) = default;
};
std::string encode_lease(const Lease& lease);
// Nothing for what no member has written.
std::optional<Lease> decode_lease(std::string_view text);

// What one observer has seen of the others' leases, on its own clock: a lease lasts as long as its
// value keeps changing before the observer's eyes. What the value says does not matter.
//
// Silence is counted from look to look, and no gap between two looks counts for much more than it
// should have been: an observer that was stopped, or whose store was away, has not seen anybody be
// silent meanwhile.
//
// To observe everybody would cost each member N reads. So the two members of the lowest
// incarnations observe all others, and all others observe those two: whoever dies, somebody
// notices. Incarnations are random, unlike ids, so that a machine that dies seldom takes both
// observers with it. If they are silent all the same, each of the others looks for itself, until
// they are out: at those who follow it by incarnation, which is everybody in a group that is not
// very large.
class Leases {
 public:
  // `look_interval`: how often the observer means to look.
  Leases(Duration lease, Duration look_interval) : lease_(lease), look_interval_(look_interval) {}

  // Whom the member `self` looks at now, in the order of the list.
  std::vector<std::uint64_t> whom_to_watch(const MemberList& list, std::uint64_t self) const;
  // Looks at this one, too, until it is over or has been renewed.
  void suspect(std::uint64_t incarnation);

  // What a look at `when` found; an empty value if there was none, which is silence: whoever lives
  // writes something.
  void note(std::uint64_t incarnation, std::string_view value, TimePoint when);
  // It has been silent for the whole lease.
  bool is_over(std::uint64_t incarnation) const;
  // It was renewed between two looks, so its holder lives.
  bool was_renewed(std::uint64_t incarnation) const;
  // Whoever is not in the list is of no more interest.
  void forget_absent(const MemberList& list);

 private:
  struct Sight {
    std::string value;
    TimePoint seen;  // the last look
    Duration silence = Duration::zero();
    bool renewed = false;
  };
  static constexpr std::size_t kObserverCount = 2;
  // So many each of the others looks at when the observers are silent.
  static constexpr std::size_t kFollowersMax = 64;

  // It has been silent for so long that somebody else should do its work.
  bool is_silent(std::uint64_t incarnation) const;

  const Duration lease_;
  const Duration look_interval_;
  std::map<std::uint64_t, Sight> sights_;
  // Whether each has been looked at since: a renewal before that says nothing about now.
  std::map<std::uint64_t, bool> suspects_;
};

}  // namespace muster::rpc
