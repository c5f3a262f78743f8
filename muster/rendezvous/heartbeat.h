// When a node speaks next.
#pragma once

#include "muster/base/clock.h"

namespace muster::rendezvous {

// An interval between heartbeats has this many ticks.
inline constexpr int kTicks = 100;

// `wait`, changed by at most half a tick so that it ends on a tick of the wall clock; never
// nothing.
//
// The nodes of a group speak at different times, lest the server hears all of them at once; but a
// server that wakes up for each of ten thousand spends most of its time on waking up. Nodes whose
// clocks agree speak on the same ticks, so that it hears a hundredth of them together. Nothing
// depends on clocks that do not.
Duration until_tick(Duration wait, Duration interval, Duration wall_time);

}  // namespace muster::rendezvous
