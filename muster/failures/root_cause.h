// Which of many failures came first. Pure.
//
// A failed worker takes others with it: some die because their peer is gone, some because their
// agent stops them. Looking at whole seconds, or at when somebody noticed, names the wrong one.
// Here the order comes from the kernel:
//
//  1. Collateral failures (stopped by an agent, or dead after the news of another failure, without
//     having recorded a failure of their own before) come last and are never the root cause.
//  2. A worker failed when it wrote its error file, else when the kernel ended it; both to the
//     nanosecond. On one node the kernel's order of exits is trusted more than the clock; between
//     nodes, by how much their clocks are known to differ is taken off first.
//  3. What is left are nodes whose clocks read the same: the lower node rank goes first.
#pragma once

#include "muster/failures/failure.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace muster::failures {

// The failures of several nodes as one list, in order of global rank. A worker that is listed twice
// (an agent told its failures again, with more details) counts once; the later list wins.
std::vector<Failure> merge(const std::vector<std::vector<Failure>>& lists);

// Positions in `failures`, the first to fail first, collateral ones at the end.
std::vector<std::size_t> in_order_of_time(const std::vector<Failure>& failures);

// The position of the root cause; nothing if there are no failures, or only collateral ones (the
// agent that saw the first one did not live to tell).
std::optional<std::size_t> root_cause(const std::vector<Failure>& failures);

}  // namespace muster::failures
