#include "muster/rpc/member_board.h"

#include "muster/base/log.h"
#include "muster/rpc/group_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::rpc {

std::string lease_key(std::uint64_t incarnation) {
  return fmt::format("lease/{:016x}", incarnation);
}

Result<MemberList> MemberBoard::parse(std::string_view bytes) {
  if (bytes.empty()) return MemberList();
  Result<MemberList> list = decode_list(kMembersKey, bytes);
  if (list) newest_version_ = std::max(newest_version_, list->version);
  return list;
}

Result<MemberList> MemberBoard::parse(const store::Change& change) {
  return parse(std::string_view(change.value));
}

Task<Result<MemberList>> MemberBoard::read() {
  std::string key(kMembersKey);
  const auto value = co_await store_.try_get(std::move(key));
  if (!value) co_return fail(value.error());
  co_return parse(value->has_value() ? std::string_view(**value) : std::string_view());
}

Task<Result<MemberList>> MemberBoard::change(Decide decide) {
  StoreRetries retries(random_.next());
  std::optional<std::string> bytes;  // as they are, if that is known
  for (;;) {
    std::optional<Error> error;
    if (!bytes) {
      std::string key(kMembersKey);
      auto value = co_await store_.try_get(std::move(key));
      if (value) {
        bytes = std::move(*value).value_or("");
      } else {
        error = value.error();
      }
    }
    std::optional<Duration> pause;
    if (bytes) {
      auto list = parse(std::string_view(*bytes));
      if (!list) co_return list;
      MemberList base = *list;
      base.version = std::max(base.version, newest_version_);
      std::optional<MemberList> next = decide(base);
      if (!next) co_return list;
      std::string key(kMembersKey);
      std::string expected = *bytes;
      std::string desired = encode_list(*next);
      auto swapped =
          co_await store_.compare_set(std::move(key), std::move(expected), std::move(desired));
      if (swapped && swapped->stored) {
        newest_version_ = std::max(newest_version_, next->version);
        co_return std::move(*next);
      }
      if (swapped) {
        // What we expected comes back when there is nothing.
        const bool is_gone = swapped->value == *bytes;
        bytes = is_gone ? "" : std::move(swapped->value);
        pause = retries.after_conflict();
        if (!pause) {
          co_return fail(ErrorKind::Unavailable,
                         fmt::format("others keep changing key {}", log::quote(kMembersKey)));
        }
      } else {
        error = swapped.error();
        bytes.reset();
      }
    }
    if (error) {
      pause = retries.after_failure(*error);
      if (!pause) co_return fail(std::move(*error));
    }
    const TimePoint next_try = after(loop_.now(), *pause);
    co_await sleep_until(loop_, next_try);
  }
}

Task<Result<std::unique_ptr<store::Watch>>> MemberBoard::watch() {
  std::string key(kMembersKey);
  return store_.watch(std::move(key), store::Store::WatchScope::Key);
}

Task<Result<>> MemberBoard::write_lease(std::uint64_t incarnation, Lease lease) {
  return store_.set(lease_key(incarnation), encode_lease(lease));
}

Task<Result<>> MemberBoard::drop_lease(std::uint64_t incarnation) {
  StoreRetries retries(random_.next());
  for (;;) {
    std::string key = lease_key(incarnation);
    const auto dropped = co_await store_.delete_key(std::move(key));
    if (dropped) co_return Result<>();
    const auto pause = retries.after_failure(dropped.error());
    if (!pause) co_return fail(dropped.error());
    const TimePoint next_try = after(loop_.now(), *pause);
    co_await sleep_until(loop_, next_try);
  }
}

Task<Result<std::vector<std::string>>> MemberBoard::look(std::vector<std::uint64_t> incarnations) {
  std::vector<std::string> keys;
  keys.reserve(incarnations.size());
  for (const std::uint64_t incarnation : incarnations) keys.push_back(lease_key(incarnation));
  // All of them at once, as long as all are there; one is missing only while somebody comes or
  // goes.
  std::vector<std::string> all = keys;
  const TimePoint now = loop_.now();
  auto values = co_await store_.multi_get(std::move(all), now);
  if (values || values.error().kind != ErrorKind::Timeout) co_return values;
  std::vector<std::string> found;
  found.reserve(keys.size());
  for (std::string& key : keys) {
    auto value = co_await store_.try_get(std::move(key));
    if (!value) co_return fail(value.error());
    found.push_back(std::move(*value).value_or(""));
  }
  co_return found;
}

}  // namespace muster::rpc
