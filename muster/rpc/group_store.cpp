#include "muster/rpc/group_store.h"

#include "muster/rpc/member.h"
#include "muster/rpc/texts.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <utility>

namespace muster::rpc {
namespace {

// With the version of everything that a group keeps, so that an older or newer Muster is refused
// here and not later.
constexpr std::string_view kDynamic = "MusterRG1 dynamic";
constexpr std::string_view kStaticStart = "MusterRG1 static ";

constexpr BackoffOptions kAfterFailure = {.first = std::chrono::milliseconds(20),
                                          .max = std::chrono::seconds(1)};
constexpr BackoffOptions kAfterConflict = {.first = std::chrono::milliseconds(2),
                                           .max = std::chrono::milliseconds(100)};

std::string text_of(std::optional<std::int64_t> world_size) {
  if (!world_size) return std::string(kDynamic);
  return fmt::format("{}{}", kStaticStart, *world_size);
}

// Why a group with the kind `found` is none for this worker.
Error disagreement(std::string_view found, std::optional<std::int64_t> world_size) {
  if (found == kDynamic) return {ErrorKind::Invalid, mixed_group_text(false)};
  std::int64_t size = 0;
  if (found.starts_with(kStaticStart)) {
    const std::string_view digits = found.substr(kStaticStart.size());
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, size);
    if (error != std::errc() || stop != end) size = 0;
  }
  if (size <= 0) {
    return corrupt_value(kGroupKindKey, "it does not say what kind of RPC group this is").value();
  }
  if (!world_size) return {ErrorKind::Invalid, mixed_group_text(true)};
  return {ErrorKind::Invalid,
          fmt::format("the RPC group was started with a world size of {}, this worker with {}; "
                      "give all workers the same",
                      size, *world_size)};
}

}  // namespace

std::optional<Duration> StoreRetries::after_failure(const Error& error) {
  const bool may_go_better =
      error.kind == ErrorKind::Unavailable || error.kind == ErrorKind::Closed;
  if (!may_go_better || failure_count_ >= kFailuresMax) return std::nullopt;
  return backoff(kAfterFailure, failure_count_++, random_);
}

std::optional<Duration> StoreRetries::after_conflict() {
  failure_count_ = 0;
  if (conflict_count_ >= kConflictsMax) return std::nullopt;
  return backoff(kAfterConflict, conflict_count_++, random_);
}

Task<Result<>> agree_on_kind(Loop& loop, store::Store& store,
                             std::optional<std::int64_t> world_size, std::uint64_t seed) {
  StoreRetries retries(seed);
  const std::string wanted = text_of(world_size);
  for (;;) {
    std::string key(kGroupKindKey);
    std::string desired = wanted;
    const auto swapped = co_await store.compare_set(std::move(key), "", std::move(desired));
    if (swapped) {
      // The one that is there may be ours, from an attempt whose answer was lost.
      if (swapped->stored || swapped->value == wanted) co_return Result<>();
      co_return fail(disagreement(swapped->value, world_size));
    }
    const auto pause = retries.after_failure(swapped.error());
    if (!pause) co_return fail(swapped.error());
    const TimePoint next = after(loop.now(), *pause);
    co_await sleep_until(loop, next);
  }
}

Task<Result<std::string>> agree_on_secret(Loop& loop, store::Store& store, std::string mine,
                                          std::uint64_t seed) {
  StoreRetries retries(seed);
  for (;;) {
    std::string key(kGroupSecretKey);
    std::string desired = mine;
    // Whoever comes first makes it; that may have been us, in an attempt whose answer was lost.
    const auto swapped = co_await store.compare_set(std::move(key), "", std::move(desired));
    if (swapped) co_return swapped->value;
    const auto pause = retries.after_failure(swapped.error());
    if (!pause) co_return fail(swapped.error());
    const TimePoint next = after(loop.now(), *pause);
    co_await sleep_until(loop, next);
  }
}

}  // namespace muster::rpc
