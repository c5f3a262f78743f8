#include "muster/failures/root_cause.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace muster::failures {
namespace {

// When each failure happened, by one clock. On one node, no exit counts as later than one that the
// kernel reported after it: the wall clock may have been set back between the two. Without this the
// comparison of times could contradict the kernel's order, and go round in circles.
std::vector<std::int64_t> times_of(const std::vector<Failure>& failures) {
  std::vector<std::size_t> latest_first(failures.size());
  std::iota(latest_first.begin(), latest_first.end(), std::size_t{0});
  std::sort(latest_first.begin(), latest_first.end(), [&](std::size_t left, std::size_t right) {
    return failures[left].order > failures[right].order;
  });
  std::vector<std::int64_t> times(failures.size());
  std::map<int, std::int64_t> earliest_exit_of_node;
  for (const std::size_t index : latest_first) {
    Failure failure = failures[index];
    const auto [earliest, is_first] =
        earliest_exit_of_node.emplace(failure.node_rank, failure.exited_nanoseconds);
    if (!is_first) earliest->second = std::min(earliest->second, failure.exited_nanoseconds);
    failure.exited_nanoseconds = earliest->second;
    // What another node says may be anything.
    if (__builtin_sub_overflow(failed_nanoseconds(failure), failure.clock_lead_nanoseconds,
                               &times[index])) {
      times[index] = failed_nanoseconds(failure);
    }
  }
  return times;
}

}  // namespace

std::vector<Failure> merge(const std::vector<std::vector<Failure>>& lists) {
  // A process is known by its node and pid; its rank orders the result.
  std::map<std::tuple<int, int, int>, Failure> merged;
  for (const std::vector<Failure>& list : lists)
    for (const Failure& failure : list)
      merged[{failure.global_rank, failure.node_rank, failure.pid}] = failure;
  std::vector<Failure> failures;
  failures.reserve(merged.size());
  for (auto& [key, failure] : merged) failures.push_back(std::move(failure));
  return failures;
}

std::vector<std::size_t> in_order_of_time(const std::vector<Failure>& failures) {
  const std::vector<std::int64_t> times = times_of(failures);
  const auto key_of = [&](std::size_t index) {
    const Failure& failure = failures[index];
    return std::make_tuple(failure.collateral, times[index], failure.node_rank, failure.order,
                           failure.global_rank, index);
  };
  std::vector<std::size_t> order(failures.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t left, std::size_t right) { return key_of(left) < key_of(right); });
  return order;
}

std::optional<std::size_t> root_cause(const std::vector<Failure>& failures) {
  const std::vector<std::size_t> order = in_order_of_time(failures);
  if (order.empty() || failures[order.front()].collateral) return std::nullopt;
  return order.front();
}

}  // namespace muster::failures
