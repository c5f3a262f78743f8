// EndedIds: what a worker remembers of references and forks that are over, so that a message which
// comes late does not bring them back.
//
// Bounded: the oldest is forgotten first. A message about an id that was forgotten is taken for one
// about something new, so the memory must outlast what a network can hold back: at the default, the
// time in which 65536 references end.
//
// Pure; owned by one Ledger.
#pragma once

#include "muster/rref/ids.h"

#include <boost/unordered/unordered_flat_map.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace muster::rref {

inline constexpr std::size_t kEndedIdsMax = 65536;

class EndedIds {
 public:
  enum class How : std::uint8_t {
    Over,       // it was there, and has ended
    Cancelled,  // a fork that its parent took back before it came
  };

  // Requires: max > 0.
  explicit EndedIds(std::size_t max = kEndedIdsMax);

  // The first word about an id counts, until it is forgotten.
  void remember(GlobalId id, How how);
  // It lives again: an owner shares a value that nobody else had any more.
  void forget(GlobalId id);
  // All that a worker drew: another process will draw the same.
  void forget_all_of(WorkerId worker);
  std::optional<How> find(GlobalId id) const;
  bool contains(GlobalId id) const { return find(id).has_value(); }
  std::size_t size() const { return by_id_.size(); }

 private:
  struct Entry {
    std::uint32_t turn = 0;  // tells an id that was forgotten and remembered again from itself
    How how = How::Over;
  };
  struct Place {
    GlobalId id;
    std::uint32_t turn = 0;
  };

  std::size_t max_;
  std::uint32_t next_turn_ = 0;
  boost::unordered_flat_map<GlobalId, Entry, std::hash<GlobalId>> by_id_;
  std::deque<Place> oldest_first_;
};

}  // namespace muster::rref
