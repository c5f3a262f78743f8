// MemberBoard: what a dynamic group keeps in its store, read and written as what it is.
//
//   members        the MemberList
//   lease/HEX      the Lease of the member with that incarnation, in 16 hexadecimal digits; written
//                  by it alone
//
// Owned by one group; lives on its loop. Of the store only what every PyTorch server can do is
// used.
#pragma once

#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/rpc/membership.h"
#include "muster/store/store.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::rpc {

inline constexpr std::string_view kMembersKey = "members";
std::string lease_key(std::uint64_t incarnation);

class MemberBoard {
 public:
  // The same seed gives the same pauses. Requires: `loop` and `store` outlive the board.
  MemberBoard(Loop& loop, store::Store& store, std::uint64_t seed)
      : loop_(loop), store_(store), random_(seed) {}

  Task<Result<MemberList>> read();

  // The list that should be stored instead, or nothing to leave it. May be asked several times;
  // only the last answer counts.
  using Decide = std::function<std::optional<MemberList>(const MemberList&)>;
  // Makes the list what `decide` makes of it, and returns it. Tries again, with pauses, while
  // others change it, or when it is not known whether the store did what it was asked: `decide`
  // must recognise its own work.
  Task<Result<MemberList>> change(Decide decide);

  // Tells of the list now and of every change; see `parse`.
  Task<Result<std::unique_ptr<store::Watch>>> watch();
  // The list that a watch reported. One that is not there is empty.
  Result<MemberList> parse(const store::Change& change);

  Task<Result<>> write_lease(std::uint64_t incarnation, Lease lease);
  Task<Result<>> drop_lease(std::uint64_t incarnation);
  // The values of these leases, in order; empty where there is none.
  Task<Result<std::vector<std::string>>> look(std::vector<std::uint64_t> incarnations);

 private:
  Result<MemberList> parse(std::string_view bytes);

  Loop& loop_;
  store::Store& store_;
  Random random_;
  // Versions never fall, not even when the store has lost the list: those who acknowledged an old
  // one must not seem to know a new one.
  std::uint64_t newest_version_ = 0;
};

}  // namespace muster::rpc
