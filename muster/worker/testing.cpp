#include "muster/worker/testing.h"

#include "muster/base/assert.h"
#include "muster/rref/keeper.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <thread>

namespace muster::rpc::testing {
namespace {

// Known on every worker.
const Procedure<OwnersAndForks()>& count_procedure() {
  static const auto* const kProcedure =
      new Procedure<OwnersAndForks()>("muster.testing.owners_and_forks");
  return *kProcedure;
}
const Procedure<void()>& nothing_procedure() {
  static const auto* const kProcedure = new Procedure<void()>("muster.testing.nothing");
  return *kProcedure;
}

constexpr Duration kLookInterval = std::chrono::milliseconds(10);

// Looks again and again; the last text is for the error.
Result<> wait_until(Duration timeout, const std::function<bool(std::string& seen)>& holds) {
  const SystemClock clock;
  const TimePoint deadline = after(clock.now(), timeout);
  std::string seen;
  while (!holds(seen)) {
    if (clock.now() >= deadline) {
      return fail(ErrorKind::Timeout, fmt::format("{} after {}", seen, muster::describe(timeout)));
    }
    std::this_thread::sleep_for(kLookInterval);
  }
  return {};
}

std::shared_ptr<rref::Keeper> keeper() {
  const auto agent = current_agent();
  return agent ? rref::Keeper::of(*agent) : nullptr;
}

}  // namespace

std::string worker_name(std::int64_t rank) { return fmt::format("worker{}", rank); }

FaultPreset default_faults() {
  return {.messages_to_fail = {"RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE",
                               "CLEANUP_AUTOGRAD_CONTEXT_REQ"},
          .messages_to_delay = {{"PYTHON_CALL", 1.5}, {"SCRIPT_CALL", 1.5}},
          .fail_count = 3};
}

OwnersAndForks owners_and_forks() {
  const auto references = keeper();
  if (!references) return {};
  const auto now = references->counters();
  return {static_cast<std::int64_t>(now.owner_rrefs), static_cast<std::int64_t>(now.forks)};
}

Result<> wait_until_flushed(Duration timeout) {
  const auto references = keeper();
  if (!references) return {};
  const auto is_flushed = [](const rref::Ledger::Counters& now) {
    return now.pending_futures == 0 && now.pending_users == 0;
  };
  if (references->wait_until(after(SystemClock().now(), timeout), is_flushed)) return {};
  const auto now = references->counters();
  return fail(ErrorKind::Timeout,
              fmt::format("{} control messages are still under way and {} references not confirmed "
                          "after {}",
                          now.pending_futures, now.pending_users, muster::describe(timeout)));
}

Result<> wait_until_owners_and_forks_on(const Destination& worker, const OwnersAndForks& wanted,
                                        Duration timeout) {
  return wait_until(timeout, [&](std::string& seen) {
    const auto counted =
        call(Destination(worker).within(std::chrono::seconds(5)), count_procedure());
    if (!counted) {
      seen = render(counted.error());
      return false;
    }
    seen = fmt::format("there are {} owners and {} forks, not {} and {},", counted->owners,
                       counted->forks, wanted.owners, wanted.forks);
    return *counted == wanted;
  });
}

Result<std::string> wait_until_failure(const Destination& worker, const std::string& part,
                                       Duration timeout) {
  std::string text;
  auto waited = wait_until(timeout, [&](std::string& seen) {
    const auto outcome = call(worker, nothing_procedure());
    text = outcome ? std::string() : render(outcome.error());
    seen = outcome ? "calls still succeed" : fmt::format("calls fail otherwise ({})", text);
    return !outcome && text.find(part) != std::string::npos;
  });
  if (!waited) return fail(waited.error());
  return text;
}

void add_functions() {
  static const bool kAdded = [] {
    const auto counted =
        define(count_procedure(), [] { return owners_and_forks(); }, {.run = Run::Inline});
    const auto nothing = define(nothing_procedure(), [] {}, {.run = Run::Inline});
    return counted && nothing;
  }();
  MUSTER_ASSERT(kAdded);
}

}  // namespace muster::rpc::testing
