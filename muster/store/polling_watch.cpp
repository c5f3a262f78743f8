#include "muster/store/polling_watch.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace muster::store {
namespace {

// Even a deadline that has passed leaves time for an answer that needs no waiting.
constexpr Duration kAnswerTime = std::chrono::milliseconds(200);
// Begins fast, slows down while nothing happens.
constexpr Duration kPollFirst = std::chrono::milliseconds(20);
constexpr Duration kPollMax = std::chrono::milliseconds(500);

}  // namespace

Task<Result<>> PollingWatch::poll() {
  std::vector<std::string> keys;
  if (scope_ == Store::WatchScope::Key) {
    keys.push_back(key_);
  } else {
    auto listed = co_await store_.list_keys(key_);
    if (!listed) co_return fail(listed.error());
    keys = std::move(*listed);
  }
  std::map<std::string, std::string> present;
  for (const std::string& key : keys) {
    auto value = co_await store_.try_get(key);
    if (!value) co_return fail(value.error());
    if (*value) present.emplace(key, std::move(**value));
  }
  for (const auto& [key, value] : present) {
    const auto before = known_.find(key);
    if (before != known_.end() && before->second == value) continue;
    const auto kind = !begun_                  ? Change::Kind::Present
                      : before == known_.end() ? Change::Kind::Created
                                               : Change::Kind::Updated;
    changes_.push_back({kind, key, value});
  }
  for (const auto& [key, value] : known_) {
    if (!present.contains(key)) changes_.push_back({Change::Kind::Deleted, key, ""});
  }
  if (!begun_ && scope_ == Store::WatchScope::Key && present.empty()) {
    changes_.push_back({Change::Kind::Absent, key_, ""});
  }
  begun_ = true;
  known_ = std::move(present);
  co_return Result<>();
}

Task<Result<Change>> PollingWatch::next(TimePoint deadline) {
  Duration pause = kPollFirst;
  for (;;) {
    if (!changes_.empty()) {
      Change change = std::move(changes_.front());
      changes_.pop_front();
      co_return change;
    }
    std::string what = fmt::format("no change of {} in time", log::quote(key_));
    const TimePoint latest = std::max(deadline, after(loop_.now(), kAnswerTime));
    auto polling = poll();
    const auto polled = co_await with_deadline(loop_, latest, std::move(polling), std::move(what));
    if (!polled) co_return fail(polled.error());
    if (!changes_.empty()) continue;
    if (loop_.now() >= deadline) {
      co_return fail(ErrorKind::Timeout, fmt::format("no change of {} in time", log::quote(key_)));
    }
    const TimePoint next_poll = std::min(deadline, after(loop_.now(), pause));
    pause = std::min(kPollMax, pause * 2);
    co_await sleep_until(loop_, next_poll);
  }
}

}  // namespace muster::store
