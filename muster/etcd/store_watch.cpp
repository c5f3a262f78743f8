#include "muster/etcd/store_watch.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <utility>

namespace muster::etcd {

using store::Change;

StoreWatch::StoreWatch(Client& client, std::string start, std::string key,
                       store::Store::WatchScope scope)
    : client_(client),
      start_(std::move(start)),
      key_(std::move(key)),
      is_prefix_(scope == store::Store::WatchScope::Prefix) {}

Task<Result<>> StoreWatch::begin() {
  Range range;
  range.key = start_ + key_;
  if (is_prefix_) range.range_end = prefix_end(range.key);
  WatchRange watch_range;
  watch_range.key = range.key;
  watch_range.range_end = range.range_end;
  Result<RangeReply> reply = co_await client_.range_all(std::move(range));
  if (!reply) co_return fail(reply.error());

  std::set<std::string, std::less<>> gone = std::exchange(known_, {});
  if (!is_prefix_ && reply->kvs.empty() && gone.empty())
    changes_.push_back({Change::Kind::Absent, key_, ""});
  for (KeyValue& kv : reply->kvs) {
    std::string name = kv.key.substr(start_.size());
    gone.erase(name);
    known_.insert(name);
    changes_.push_back({Change::Kind::Present, std::move(name), std::move(kv.value)});
  }
  for (const std::string& name : gone) changes_.push_back({Change::Kind::Deleted, name, ""});

  watch_range.start_revision = reply->revision + 1;
  watcher_ = client_.watch(std::move(watch_range));
  co_return Result<>();
}

Task<Result<Change>> StoreWatch::next(TimePoint deadline) {
  if (changes_.empty()) {
    Task<Result<>> filling = fill();
    std::string what = fmt::format("timed out waiting for a change of {}", log::quote(key_));
    const Result<> filled =
        co_await with_deadline(client_.loop(), deadline, std::move(filling), std::move(what));
    if (!filled) co_return fail(filled.error());
  }
  Change change = std::move(changes_.front());
  changes_.pop_front();
  co_return change;
}

Task<Result<>> StoreWatch::fill() {
  while (changes_.empty()) {
    const Result<Watcher::Batch> batch = co_await watcher_->next();
    if (!batch) co_return fail(batch.error());
    if (batch->compacted) {
      const Result<> begun = co_await begin();
      if (!begun) co_return fail(begun.error());
      continue;
    }
    for (const Event& event : batch->events) keep(event);
  }
  co_return Result<>();
}

void StoreWatch::keep(const Event& event) {
  Change change;
  change.key = event.kv.key.substr(start_.size());
  if (event.kind == Event::Kind::Delete) {
    change.kind = Change::Kind::Deleted;
    known_.erase(change.key);
  } else {
    change.kind = event.kv.create_revision == event.kv.mod_revision ? Change::Kind::Created
                                                                    : Change::Kind::Updated;
    change.value = event.kv.value;
    known_.insert(change.key);
  }
  changes_.push_back(std::move(change));
}

}  // namespace muster::etcd
