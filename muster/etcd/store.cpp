#include "muster/etcd/store.h"

#include "muster/base/log.h"
#include "muster/etcd/journal.h"
#include "muster/etcd/store_queues.h"
#include "muster/etcd/store_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace muster::etcd {
namespace {

using store::CompareSet;
using store::Watch;

// etcd takes 128 operations in a transaction by default; a few are ours.
constexpr std::size_t kTxnOperationsMax = 100;
// Each key of a look takes two.
constexpr std::size_t kKeysPerLook = kTxnOperationsMax / 2;
// And requests of 1.5 MiB.
constexpr std::size_t kTxnBytesMax = std::size_t{1} << 20U;
// In a message; a wait may be for thousands.
constexpr std::size_t kKeysNamedMax = 3;
constexpr BackoffOptions kContention = {std::chrono::milliseconds(2),
                                        std::chrono::milliseconds(250)};

// As in the other stores: spaces, a sign, digits; what follows is ignored.
std::optional<std::int64_t> parse_counter(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || (text.front() >= '\t' && text.front() <= '\r')))
    text.remove_prefix(1);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::int64_t number = 0;
  const auto [stop, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc()) return std::nullopt;
  return number;
}

std::int64_t add_wrapping(std::int64_t left, std::int64_t right) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(left) +
                                   static_cast<std::uint64_t>(right));
}

std::string describe_wait(const std::map<std::string, std::int64_t>& keys) {
  std::string text = keys.size() == 1 ? "timed out waiting for key" : "timed out waiting for keys";
  std::size_t named_count = 0;
  for (const auto& [key, revision] : keys) {
    if (named_count == kKeysNamedMax) break;
    text += fmt::format("{} {}", named_count == 0 ? "" : ",", log::quote(key));
    ++named_count;
  }
  if (keys.size() > named_count) text += fmt::format(" and {} more", keys.size() - named_count);
  return text;
}

class EtcdStore final : public store::Store {
 public:
  EtcdStore(Client& client, std::string root)
      : client_(client),
        root_(std::move(root)),
        keys_start_(root_ + "k/"),
        journal_(client, root_),
        queues_(client, journal_, root_) {}

  Task<Result<>> set(std::string key, std::string value) override;
  Task<Result<std::string>> get(std::string key, TimePoint deadline) override;
  Task<Result<std::optional<std::string>>> try_get(std::string key) override;
  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override;
  Task<Result<CompareSet>> compare_set(std::string key, std::string expected,
                                       std::string desired) override;
  Task<Result<bool>> check(std::vector<std::string> keys) override;
  Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) override;
  Task<Result<bool>> delete_key(std::string key) override;
  Task<Result<std::int64_t>> num_keys() override;
  Task<Result<>> append(std::string key, std::string data) override;
  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys,
                                                   TimePoint deadline) override;
  Task<Result<>> multi_set(std::vector<store::KeyValue> pairs) override;
  Task<Result<>> queue_push(std::string queue, std::string item) override {
    return queues_.push(std::move(queue), std::move(item));
  }
  Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) override {
    return queues_.pop(std::move(queue), deadline);
  }
  Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) override {
    return queues_.try_pop(std::move(queue));
  }
  Task<Result<std::int64_t>> queue_length(std::string queue) override {
    return queues_.length(std::move(queue));
  }
  Task<Result<std::vector<std::string>>> list_keys(std::string prefix) override;
  Task<Result<>> barrier(std::string key, std::int64_t member_count, TimePoint deadline) override;
  Task<Result<std::unique_ptr<Watch>>> watch(std::string key, WatchScope scope) override;

 private:
  // What a wait has and what it still waits for.
  struct Gathering {
    bool with_values = false;  // of the keys; otherwise a queue that holds something counts, too
    std::map<std::string, std::string> found;
    // With the revision at which each was not there.
    std::map<std::string, std::int64_t> missing;

    void want(const std::vector<std::string>& keys) {
      for (const std::string& key : keys) missing.emplace(key, 0);
    }
  };
  // Looks for the first `count` of those that are missing.
  Task<Result<>> look(Gathering& gathering, std::size_t count);
  Task<Result<>> look_for_all(Gathering& gathering);
  // Waits for the key, or for an item of the queue of its name. Nothing if that cannot be known any
  // more.
  Task<Result<std::optional<std::string>>> await_one(std::string key, std::int64_t revision,
                                                     bool with_queue);
  using FirstPut = Oneshot<Result<std::optional<std::string>>>;
  Task<void> await_put(WatchRange range, FirstPut& outcome);
  // Waits until nothing is missing.
  Task<Result<>> follow(Gathering& gathering);
  // Waits for all keys. What is there is found even if the deadline has passed.
  Task<Result<>> gather(Gathering& gathering, TimePoint deadline);

  // Replaces the value by `next(value)` in a loop of reads and compared writes, until it returns
  // nothing or the write counts.
  using Next = std::function<Result<std::optional<std::string>>(const std::string* value)>;
  Task<Result<>> update(std::string key, Next next);

  Task<Result<>> await_barrier(std::string done_key, std::int64_t revision);

  std::string full(std::string_view key) const { return keys_start_ + std::string(key); }

  Client& client_;
  const std::string root_;
  const std::string keys_start_;
  Journal journal_;
  StoreQueues queues_;
};

// ---- one key

Task<Result<>> EtcdStore::set(std::string key, std::string value) {
  Txn txn;
  txn.success.emplace_back(Put{full(key), std::move(value)});
  const auto written = co_await journal_.write(std::move(txn));
  if (!written) co_return fail(written.error());
  co_return Result<>();
}

Task<Result<std::optional<std::string>>> EtcdStore::try_get(std::string key) {
  Range range;
  range.key = full(key);
  Result<RangeReply> reply = co_await client_.range(std::move(range));
  if (!reply) co_return fail(reply.error());
  std::optional<std::string> value;
  if (!reply->kvs.empty()) value = std::move(reply->kvs.front().value);
  co_return value;
}

Task<Result<>> EtcdStore::update(std::string key, Next next) {
  const std::string name = full(key);
  Range range;
  range.key = name;
  Result<RangeReply> read = co_await client_.range(std::move(range));
  if (!read) co_return fail(read.error());
  std::vector<KeyValue> found = std::move(read->kvs);
  for (int attempt = 0;; ++attempt) {
    Result<std::optional<std::string>> value = next(found.empty() ? nullptr : &found.front().value);
    if (!value) co_return fail(value.error());
    if (!*value) co_return Result<>();
    Txn txn;
    txn.compares.push_back(
        {name, Compare::Target::ModRevision, found.empty() ? 0 : found.front().mod_revision});
    txn.success.emplace_back(Put{name, std::move(**value)});
    txn.failure.emplace_back(Range{name});
    Result<Journal::Outcome> outcome = co_await journal_.write(std::move(txn));
    if (!outcome) co_return fail(outcome.error());
    if (outcome->succeeded) co_return Result<>();
    if (outcome->replies.empty())
      co_return fail(ErrorKind::Unavailable, "etcd answered without what was asked");
    found = std::move(outcome->replies.front().kvs);
    const TimePoint again = client_.loop().now() + backoff(kContention, attempt, client_.random());
    co_await sleep_until(client_.loop(), again);
  }
}

Task<Result<std::int64_t>> EtcdStore::add(std::string key, std::int64_t delta) {
  std::int64_t sum = 0;
  Next next = [&key, &sum, delta](const std::string* value) -> Result<std::optional<std::string>> {
    sum = delta;
    if (value != nullptr) {
      const std::optional<std::int64_t> number = parse_counter(*value);
      if (!number) {
        return fail(ErrorKind::Invalid,
                    fmt::format("cannot add to key {}: its value {} is not a 64-bit number",
                                log::quote(key), log::quote(*value)));
      }
      sum = add_wrapping(*number, delta);
    }
    return std::optional<std::string>(std::to_string(sum));
  };
  const Result<> updated = co_await update(key, std::move(next));
  if (!updated) co_return fail(updated.error());
  co_return sum;
}

Task<Result<>> EtcdStore::append(std::string key, std::string data) {
  Next next = [&data](const std::string* value) -> Result<std::optional<std::string>> {
    return std::optional<std::string>(value == nullptr ? data : *value + data);
  };
  co_return co_await update(key, std::move(next));
}

Task<Result<CompareSet>> EtcdStore::compare_set(std::string key, std::string expected,
                                                std::string desired) {
  CompareSet result;
  Next next = [&](const std::string* value) -> Result<std::optional<std::string>> {
    const bool matches = value == nullptr ? expected.empty() : *value == expected;
    result.stored = matches;
    result.value = matches ? desired : value == nullptr ? expected : *value;
    if (!matches) return std::optional<std::string>();
    return std::optional<std::string>(desired);
  };
  const Result<> updated = co_await update(key, std::move(next));
  if (!updated) co_return fail(updated.error());
  co_return result;
}

Task<Result<bool>> EtcdStore::delete_key(std::string key) {
  Txn txn;
  txn.success.emplace_back(Delete{full(key)});
  const Result<Journal::Outcome> outcome = co_await journal_.write(std::move(txn));
  if (!outcome) co_return fail(outcome.error());
  if (!outcome->recalled) co_return !outcome->replies.empty() && outcome->replies[0].count > 0;
  Range before;
  before.key = full(key);
  before.revision = outcome->revision - 1;
  before.count_only = true;
  const Result<RangeReply> reply = co_await client_.range(std::move(before));
  if (!reply) co_return fail(reply.error());
  co_return reply->count > 0;
}

// ---- many keys

Task<Result<std::int64_t>> EtcdStore::num_keys() {
  Range range;
  range.key = keys_start_;
  range.range_end = prefix_end(keys_start_);
  range.count_only = true;
  const Result<RangeReply> reply = co_await client_.range(std::move(range));
  if (!reply) co_return fail(reply.error());
  co_return reply->count;
}

Task<Result<std::vector<std::string>>> EtcdStore::list_keys(std::string prefix) {
  Range range;
  range.key = full(prefix);
  range.range_end = prefix_end(range.key);
  range.keys_only = true;
  const Result<RangeReply> reply = co_await client_.range_all(std::move(range));
  if (!reply) co_return fail(reply.error());
  std::vector<std::string> keys;
  for (const KeyValue& kv : reply->kvs) keys.push_back(kv.key.substr(keys_start_.size()));
  co_return keys;
}

Task<Result<>> EtcdStore::multi_set(std::vector<store::KeyValue> pairs) {
  std::size_t index = 0;
  while (index < pairs.size()) {
    Txn txn;
    std::set<std::string_view> names;
    std::size_t bytes = 0;
    for (; index < pairs.size() && txn.success.size() < kTxnOperationsMax; ++index) {
      store::KeyValue& pair = pairs[index];
      bytes += pair.key.size() + pair.value.size();
      if (bytes > kTxnBytesMax && !txn.success.empty()) break;
      // etcd writes a key once in a transaction; the next one is later.
      if (!names.insert(pair.key).second) break;
      txn.success.emplace_back(Put{full(pair.key), std::move(pair.value)});
    }
    const auto written = co_await journal_.write(std::move(txn));
    if (!written) co_return fail(written.error());
  }
  co_return Result<>();
}

// ---- waiting

Task<Result<>> EtcdStore::look(Gathering& gathering, std::size_t count) {
  std::vector<std::string> keys;
  Txn txn;
  for (const auto& [key, revision] : gathering.missing) {
    if (keys.size() == count) break;
    keys.push_back(key);
    Range range;
    range.key = full(key);
    range.count_only = !gathering.with_values;
    txn.success.emplace_back(std::move(range));
    if (gathering.with_values) continue;
    Range items;
    items.key = queues_.items_prefix(key);
    items.range_end = prefix_end(items.key);
    items.count_only = true;
    txn.success.emplace_back(std::move(items));
  }
  const std::size_t ranges_per_key = gathering.with_values ? 1 : 2;
  Result<TxnReply> reply = co_await client_.txn(std::move(txn), Client::Repeat::Allowed);
  if (!reply) co_return fail(reply.error());
  if (reply->replies.size() != keys.size() * ranges_per_key)
    co_return fail(ErrorKind::Unavailable, "etcd answered without what was asked");
  for (std::size_t index = 0; index < keys.size(); ++index) {
    OperationReply& own = reply->replies[index * ranges_per_key];
    const OperationReply& last = reply->replies[(index + 1) * ranges_per_key - 1];
    const auto missing = gathering.missing.find(keys[index]);
    if (own.count == 0 && last.count == 0) {
      // Only what has never been looked for: it has to have existed since then.
      if (missing->second == 0) missing->second = reply->revision;
      continue;
    }
    std::string& value = gathering.found[keys[index]];
    if (!own.kvs.empty()) value = std::move(own.kvs.front().value);
    gathering.missing.erase(missing);
  }
  co_return Result<>();
}

Task<Result<>> EtcdStore::look_for_all(Gathering& gathering) {
  // In pieces, since a transaction has a limit. A piece in which everything was found leaves the
  // next one in the first place; the others are put aside.
  std::map<std::string, std::int64_t> left;
  while (!gathering.missing.empty()) {
    const Result<> looked = co_await look(gathering, kKeysPerLook);
    if (!looked) co_return fail(looked.error());
    while (!gathering.missing.empty() && gathering.missing.begin()->second != 0)
      left.insert(gathering.missing.extract(gathering.missing.begin()));
  }
  gathering.missing = std::move(left);
  co_return Result<>();
}

Task<Result<>> EtcdStore::follow(Gathering& gathering) {
  // One after the other; each from when it was not there, so none is missed.
  while (!gathering.missing.empty()) {
    const std::string key = gathering.missing.begin()->first;
    const std::int64_t revision = gathering.missing.begin()->second;
    const bool with_queue = !gathering.with_values;
    Result<std::optional<std::string>> value = co_await await_one(key, revision, with_queue);
    if (!value) co_return fail(value.error());
    if (*value) {
      gathering.missing.erase(key);
      gathering.found[key] = std::move(**value);
      // While we waited for this one, others may have come: that spares us their watches.
      if (gathering.missing.empty()) break;
      const Result<> looked = co_await look(gathering, kKeysPerLook);
      if (!looked) co_return fail(looked.error());
      continue;
    }
    // The past was compacted: from now on, then.
    for (auto& [name, since] : gathering.missing) since = 0;
    const Result<> looked = co_await look_for_all(gathering);
    if (!looked) co_return fail(looked.error());
  }
  co_return Result<>();
}

Task<Result<std::optional<std::string>>> EtcdStore::await_one(std::string key,
                                                              std::int64_t revision,
                                                              bool with_queue) {
  FirstPut outcome(client_.loop());
  TaskScope scope;
  WatchRange range;
  range.key = full(key);
  range.start_revision = revision + 1;
  range.deletes = false;
  scope.start(await_put(range, outcome));
  if (with_queue) {
    range.key = queues_.items_prefix(key);
    range.range_end = prefix_end(range.key);
    scope.start(await_put(range, outcome));
  }
  co_return co_await outcome;
}

Task<void> EtcdStore::await_put(WatchRange range, FirstPut& outcome) {
  const std::unique_ptr<Watcher> watcher = client_.watch(std::move(range));
  Result<Watcher::Batch> batch = co_await watcher->next();
  if (!batch) {
    outcome.set(fail(batch.error()));
  } else if (batch->compacted) {
    outcome.set(std::optional<std::string>());
  } else {
    outcome.set(std::optional<std::string>(std::move(batch->events.front().kv.value)));
  }
}

Task<Result<>> EtcdStore::gather(Gathering& gathering, TimePoint deadline) {
  Loop& loop = client_.loop();
  std::string what = describe_wait(gathering.missing);
  const TimePoint look_limit =
      std::max(deadline, after(loop.now(), client_.options().request_timeout));
  Task<Result<>> looking = look_for_all(gathering);
  const Result<> looked =
      co_await with_deadline(loop, look_limit, std::move(looking), std::move(what));
  if (!looked || gathering.missing.empty()) co_return looked;
  what = describe_wait(gathering.missing);
  Task<Result<>> following = follow(gathering);
  co_return co_await with_deadline(loop, deadline, std::move(following), std::move(what));
}

Task<Result<std::string>> EtcdStore::get(std::string key, TimePoint deadline) {
  Gathering gathering;
  gathering.with_values = true;
  gathering.missing.emplace(key, 0);
  const Result<> gathered = co_await gather(gathering, deadline);
  if (!gathered) co_return fail(gathered.error());
  co_return std::move(gathering.found[key]);
}

Task<Result<std::vector<std::string>>> EtcdStore::multi_get(std::vector<std::string> keys,
                                                            TimePoint deadline) {
  Gathering gathering;
  gathering.with_values = true;
  gathering.want(keys);
  const Result<> gathered = co_await gather(gathering, deadline);
  if (!gathered) co_return fail(gathered.error());
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) values.push_back(gathering.found[key]);
  co_return values;
}

Task<Result<>> EtcdStore::wait(std::vector<std::string> keys, TimePoint deadline) {
  Gathering gathering;
  gathering.want(keys);
  co_return co_await gather(gathering, deadline);
}

Task<Result<bool>> EtcdStore::check(std::vector<std::string> keys) {
  Gathering gathering;
  gathering.want(keys);
  const Result<> looked = co_await look_for_all(gathering);
  if (!looked) co_return fail(looked.error());
  co_return gathering.missing.empty();
}

// ---- barrier and watch

Task<Result<>> EtcdStore::barrier(std::string key, std::int64_t member_count, TimePoint deadline) {
  // The last one to come says so in the same transaction; nobody compares and loses.
  const std::string count_key = root_ + "b/" + key;
  const std::string done_key = root_ + "d/" + key;
  Txn txn;
  txn.compares.push_back({count_key, Compare::Target::Version, member_count - 1});
  txn.success.emplace_back(Put{count_key, ""});
  txn.success.emplace_back(Put{done_key, ""});
  txn.failure.emplace_back(Put{count_key, ""});
  txn.failure.emplace_back(Range{count_key});
  const Result<Journal::Outcome> came = co_await journal_.write(std::move(txn));
  if (!came) co_return fail(came.error());
  if (came->succeeded && !came->recalled) co_return Result<>();

  // How many came up to and including us.
  std::vector<KeyValue> counted;
  if (came->recalled) {
    Range range;
    range.key = count_key;
    range.revision = came->revision;
    Result<RangeReply> count = co_await client_.range(std::move(range));
    if (!count) co_return fail(count.error());
    counted = std::move(count->kvs);
  } else if (came->replies.size() > 1) {
    counted = came->replies[1].kvs;
  }
  if (!counted.empty() && counted.front().version >= member_count) co_return Result<>();
  Task<Result<>> waiting = await_barrier(done_key, came->revision);
  std::string what = fmt::format("timed out at barrier {}: not all {} members came",
                                 log::quote(key), member_count);
  co_return co_await with_deadline(client_.loop(), deadline, std::move(waiting), std::move(what));
}

Task<Result<>> EtcdStore::await_barrier(std::string done_key, std::int64_t revision) {
  while (true) {
    WatchRange watch_range;
    watch_range.key = done_key;
    watch_range.start_revision = revision + 1;
    const std::unique_ptr<Watcher> watcher = client_.watch(std::move(watch_range));
    const Result<Watcher::Batch> batch = co_await watcher->next();
    if (!batch) co_return fail(batch.error());
    if (!batch->compacted) co_return Result<>();
    Range range;
    range.key = done_key;
    const Result<RangeReply> done = co_await client_.range(std::move(range));
    if (!done) co_return fail(done.error());
    if (!done->kvs.empty()) co_return Result<>();
    revision = done->revision;
  }
}

Task<Result<std::unique_ptr<Watch>>> EtcdStore::watch(std::string key, WatchScope scope) {
  auto watch = std::make_unique<StoreWatch>(client_, keys_start_, std::move(key), scope);
  const Result<> begun = co_await watch->begin();
  if (!begun) co_return fail(begun.error());
  std::unique_ptr<Watch> result = std::move(watch);
  co_return result;
}

}  // namespace

std::unique_ptr<store::Store> make_store(Client& client, std::string root) {
  return std::make_unique<EtcdStore>(client, std::move(root));
}

Task<Result<>> clear_store(Client& client, std::string root) {
  Txn txn;
  txn.success.emplace_back(Delete{root, prefix_end(root)});
  const auto cleared = co_await client.txn(std::move(txn), Client::Repeat::Allowed);
  if (!cleared) co_return fail(cleared.error());
  co_return Result<>();
}

}  // namespace muster::etcd
