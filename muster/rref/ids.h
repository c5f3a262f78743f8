// GlobalId: the name of a remote reference, and of each of its forks, in the whole group.
//
// A value of eight bytes: the id of the worker that drew it, and a number that this worker drew
// from its IdSource. References and forks draw from the same source, so no two of them are ever
// called the same.
//
// The creator's handle of a remote reference is the fork right behind the reference
// (`creation_fork`): both are drawn together. A reference that a worker makes on itself by a remote
// call stands for its own fork, which is how the owner recognises the case.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace muster::rref {

// As in WorkerInfo.
using WorkerId = std::int16_t;

inline constexpr std::int64_t kLocalIdMax = (std::int64_t{1} << 48) - 1;

class GlobalId {
 public:
  GlobalId() = default;
  // Requires: 0 <= local <= kLocalIdMax.
  GlobalId(WorkerId created_on, std::int64_t local);

  WorkerId created_on() const { return static_cast<WorkerId>(bits_ >> kLocalBits); }
  std::int64_t local() const { return bits_ & kLocalIdMax; }
  // The worker in the upper 16 bits and the local id in the lower 48: the whole value.
  std::uint64_t bits() const { return static_cast<std::uint64_t>(bits_); }

  // "GloballyUniqueId(created_on=0, local_id=22)"
  std::string text() const;

  // By worker, then by local id.
  friend bool operator<(const GlobalId& left, const GlobalId& right) {
    return left.bits_ < right.bits_;
  }
  friend bool operator==(const GlobalId&, const GlobalId&) = default;

 private:
  static constexpr int kLocalBits = 48;

  std::int64_t bits_ = 0;
};
static_assert(sizeof(GlobalId) == 8);

// The fork id of the handle that `remote` gives to the creator of `rref`.
GlobalId creation_fork(GlobalId rref);

// Where a worker draws its ids from: 0, 1, 2, ... One for the whole process, whatever agents come
// and go in it, so any thread may draw.
//
// Where workers die and return, ids must tell who drew them: the next process with the same worker
// id must not draw what the former one has drawn, and nobody should wait for what the former one
// did not live to create. So each member of such a group draws from a series of its own, which
// begins at first_of_incarnation; also one that was cut off and joins again. Others use series 0.
class IdSource {
 public:
  explicit IdSource(std::int64_t first = 0) : next_(first) {}
  // Goes on with another series. Requires: this one was never used before.
  void begin_at(std::int64_t first) { next_.store(first, std::memory_order_relaxed); }
  IdSource(const IdSource&) = delete;
  IdSource& operator=(const IdSource&) = delete;

  // The first of `count` numbers that follow one another. Requires: none is beyond kLocalIdMax,
  // which takes years at a million a second.
  std::int64_t draw(std::int64_t count = 1);

 private:
  std::atomic<std::int64_t> next_;
};

// There are 4096 series of 2^36 ids each; a member that needs more has to join again. Which one an
// id belongs to:
std::int64_t series_of(GlobalId id);
std::int64_t series_of(std::int64_t local);
// The first id of the member that is known to its group by this number (a random one). Two members
// share a series only if the last 12 bits of their numbers agree.
std::int64_t first_of_incarnation(std::uint64_t incarnation);

// ---- texts, as programs know them ---------------------------------------------------------------

// "OwnerRRef(GloballyUniqueId(...))": what str() shows.
std::string owner_text(GlobalId rref);
// "UserRRef(RRefId = GloballyUniqueId(...), ForkId = GloballyUniqueId(...))"
std::string user_text(GlobalId rref, GlobalId fork);
// "OwnerRRef(rref_id=GloballyUniqueId(...))": inside errors.
std::string owner_error_text(GlobalId rref);
// "UserRRef(rref_id=GloballyUniqueId(...), fork_id=GloballyUniqueId(...))"
std::string user_error_text(GlobalId rref, GlobalId fork);

}  // namespace muster::rref

template <>
struct std::hash<muster::rref::GlobalId> {
  std::size_t operator()(const muster::rref::GlobalId& id) const noexcept { return id.bits(); }
};
