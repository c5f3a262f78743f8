// CallTable: the calls that are under way on a link, by their ids.
//
// Ids count up, and a call's place is its id modulo the size of the table, so that finding one is
// an array access. The table is at most half full: an id whose place is taken by a call that waits
// long is skipped, which costs one step a call on average.
//
// Pure. Owned by the link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::store {

class ReplySink;

class CallTable {
 public:
  struct Call {
    std::uint32_t id = 0;  // none
    ReplySink* sink = nullptr;
    std::uint64_t first_byte = 0;  // where its bytes begin in all that the link ever sent
  };

  // `last_id` is the one given before the first; never 0 is given.
  explicit CallTable(std::uint32_t last_id = 0) : last_id_(last_id) {}

  // A new id. The call stays until it is removed.
  std::uint32_t add(ReplySink& sink, std::uint64_t first_byte);
  // A new id for a request whose reply is of no interest.
  std::uint32_t skip();
  // Nothing if there is no such call. Until the next call to the table.
  Call* find(std::uint32_t id) {
    if (id == 0 || places_.empty()) return nullptr;
    Call& call = places_[place_of(id)];
    return call.id == id ? &call : nullptr;
  }
  bool remove(std::uint32_t id);
  std::size_t size() const { return size_; }
  // Removes all, and returns them in the order in which their bytes were sent.
  std::vector<Call> take_all();

 private:
  std::size_t place_of(std::uint32_t id) const { return id & (places_.size() - 1); }
  bool is_taken(std::uint32_t id) const { return places_[place_of(id)].id != 0; }
  void grow();

  std::vector<Call> places_;  // a power of two, or none
  std::size_t size_ = 0;
  std::uint32_t last_id_;
};

}  // namespace muster::store
