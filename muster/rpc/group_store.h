// What both kinds of groups need of a store: to agree on the kind, and to try again.
#pragma once

#include "muster/base/error.h"
#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/store/store.h"

#include <cstdint>
#include <optional>
#include <string>

namespace muster::rpc {

// When something that the store did not do is tried again, and when no more. Pauses have full
// jitter: workers that failed together must not return together. A value.
class StoreRetries {
 public:
  // The same seed gives the same pauses.
  explicit StoreRetries(std::uint64_t seed) : random_(seed) {}

  // So many failures in a row are taken for the end of the store. Each of them may already have
  // taken the store's own patience.
  static constexpr int kFailuresMax = 16;
  // Somebody else was first. Of those who are, one succeeds each time, so this many mean that
  // something is wrong.
  static constexpr int kConflictsMax = 2000;

  // The pause before the next attempt, or nothing when `error` is to be reported. Tries again only
  // what may go better: the store was away, or nobody knows whether it did what it was asked.
  std::optional<Duration> after_failure(const Error& error);
  std::optional<Duration> after_conflict();
  // It worked, or at least the store answered.
  void answered() { failure_count_ = 0; }

 private:
  Random random_;
  int failure_count_ = 0;
  int conflict_count_ = 0;
};

inline constexpr std::string_view kGroupKindKey = "kind";

// Says under kGroupKindKey what this worker takes the group for: static with `world_size`, or
// dynamic without one. Whoever is first decides; Invalid for a worker that came differently.
// Requires: `loop` and `store` outlive the task.
Task<Result<>> agree_on_kind(Loop& loop, store::Store& store,
                             std::optional<std::int64_t> world_size, std::uint64_t seed);

inline constexpr std::string_view kGroupSecretKey = "job";

// The secret that only those know who can read the store: `mine`, or that of whoever was first.
// Requires: `loop` and `store` outlive the task.
Task<Result<std::string>> agree_on_secret(Loop& loop, store::Store& store, std::string mine,
                                          std::uint64_t seed);

}  // namespace muster::rpc
