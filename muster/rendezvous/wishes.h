// Wishes: how one write can do for many nodes what each of them wants.
//
// A compare-and-set lets one of N writers win and N-1 try again. So a node that wants to join takes
// a number (an atomic add) and, unless nobody is before it, leaves what it wants under that number
// and waits; whoever writes next reads all wishes that have not been dealt with and grants them.
// Which have been, the state itself says (`WishMarks`), in the same write as what they were
// granted: so a wish is granted at most once, whoever dies when, and nothing depends on the removal
// of wishes that were granted.
//
// A number that was taken and has no text yet is kept apart as missing, so that it neither holds up
// those after it nor is forgotten. There are at most `kWishesMissingMax` of them: if more come, the
// oldest are given up, and their nodes see to themselves.
//
// Pure.
#pragma once

#include "muster/base/clock.h"
#include "muster/rendezvous/backend.h"
#include "muster/rendezvous/host_protocol.h"
#include "muster/rendezvous/state.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::rendezvous {

inline constexpr std::size_t kWishesMissingMax = 64;
// Of more, only the latest are read.
inline constexpr std::uint64_t kWishesReadMax = 16'384;

// Whether it has not been dealt with.
bool is_open(const WishMarks& marks, std::uint64_t number);

// The numbers of all wishes that have not been, when `given` numbers have been given out. In order.
std::vector<std::uint64_t> open_wishes(const WishMarks& marks, std::uint64_t given);

// Marks wishes, which were read in the order of `open_wishes`, as dealt with, and returns them.
// Those that are missing, and those that find no room among the missing, are left out.
std::vector<Wish> take_wishes(std::vector<Wish> wishes, WishMarks& marks);

// Does for a node that wants to join what it would do itself. Nothing if it does not fit in.
void grant(const Hello& wish, TimePoint now, State& state);

}  // namespace muster::rendezvous
