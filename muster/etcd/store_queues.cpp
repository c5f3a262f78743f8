#include "muster/etcd/store_queues.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <tuple>
#include <utility>

namespace muster::etcd {

using rendezvous::Turnstile;

namespace {

// How many items one look brings. Looking costs etcd a walk through the whole queue.
constexpr std::int64_t kLookAhead = 64;

}  // namespace

class StoreQueues::Use {
 public:
  Use(StoreQueues& queues, const std::string& prefix)
      : queues_(queues),
        at_(queues.queues_
                .emplace(std::piecewise_construct, std::forward_as_tuple(prefix),
                         std::forward_as_tuple(queues.client_.loop()))
                .first) {
    ++at_->second.user_count;
  }
  ~Use() {
    if (--at_->second.user_count == 0 && at_->second.oldest.empty()) queues_.queues_.erase(at_);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  Queue& queue() { return at_->second; }

 private:
  StoreQueues& queues_;
  std::map<std::string, Queue, std::less<>>::iterator at_;
};

// Shared by the taker and the task that claims, since either may go first.
struct StoreQueues::Claim {
  Claim(Loop& loop, Item item_to_claim) : item(std::move(item_to_claim)), done(loop) {}
  const Item item;
  std::optional<Result<std::optional<std::string>>> result;
  bool is_abandoned = false;
  Oneshot<bool> done;
};

// The taker's hand on the claim: gives the item back if the taker is cancelled before it has it.
class StoreQueues::Claimant {
 public:
  Claimant(StoreQueues& queues, std::shared_ptr<Claim> claim)
      : queues_(queues), claim_(std::move(claim)) {}
  ~Claimant() {
    if (has_received_) return;
    claim_->is_abandoned = true;
    if (!claim_->result) return;
    Result<std::optional<std::string>>& result = *claim_->result;
    if (result && *result)
      queues_.scope_.start(queues_.give_back(claim_->item.key, std::move(**result)));
  }
  Claimant(const Claimant&) = delete;
  Claimant& operator=(const Claimant&) = delete;

  Result<std::optional<std::string>> receive() {
    has_received_ = true;
    return std::move(*claim_->result);
  }

 private:
  StoreQueues& queues_;
  std::shared_ptr<Claim> claim_;
  bool has_received_ = false;
};

StoreQueues::StoreQueues(Client& client, Journal& journal, std::string root)
    : client_(client), journal_(journal), root_(std::move(root)) {}

std::string StoreQueues::items_prefix(std::string_view queue) const {
  return fmt::format("{}q/{}/{}/", root_, queue.size(), queue);
}

Task<Result<>> StoreQueues::push(std::string queue, std::string item) {
  Txn txn;
  txn.success.emplace_back(Put{items_prefix(queue) + random_id(client_.random()), std::move(item)});
  const auto pushed = co_await journal_.write(std::move(txn));
  if (!pushed) co_return fail(pushed.error());
  co_return Result<>();
}

Task<Result<std::string>> StoreQueues::pop(std::string queue, TimePoint deadline) {
  const std::string what = fmt::format("timed out waiting for queue {}", log::quote(queue));
  const std::string prefix = items_prefix(queue);
  Use use(*this, prefix);
  Task<Result<Turnstile::Pass>> standing = stand_in_line(use.queue());
  const Result<Turnstile::Pass> pass =
      co_await with_deadline(client_.loop(), deadline, std::move(standing), what);
  if (!pass) co_return fail(pass.error());
  while (true) {
    Result<Taken> taken = co_await take(prefix, use.queue());
    if (!taken) co_return fail(taken.error());
    if (taken->value) co_return std::move(*taken->value);
    Task<Result<>> waiting = await_push(prefix, taken->revision);
    const Result<> woken =
        co_await with_deadline(client_.loop(), deadline, std::move(waiting), what);
    if (!woken) co_return fail(woken.error());
  }
}

Task<Result<std::optional<std::string>>> StoreQueues::try_pop(std::string queue) {
  const std::string prefix = items_prefix(queue);
  Use use(*this, prefix);
  Result<Taken> taken = co_await take(prefix, use.queue());
  if (!taken) co_return fail(taken.error());
  co_return std::move(taken->value);
}

Task<Result<std::int64_t>> StoreQueues::length(std::string queue) {
  Range range;
  range.key = items_prefix(queue);
  range.range_end = prefix_end(range.key);
  range.count_only = true;
  const Result<RangeReply> reply = co_await client_.range(std::move(range));
  if (!reply) co_return fail(reply.error());
  co_return reply->count;
}

Task<Result<Turnstile::Pass>> StoreQueues::stand_in_line(Queue& queue) {
  Turnstile::Pass pass = co_await queue.line.pass();
  co_return std::move(pass);
}

Task<Result<StoreQueues::Taken>> StoreQueues::take(std::string prefix, Queue& queue) {
  Taken taken;
  bool looked = false;
  while (true) {
    if (queue.oldest.empty()) {
      Range range;
      range.key = prefix;
      range.range_end = prefix_end(prefix);
      range.limit = kLookAhead;
      range.keys_only = true;
      range.by_creation = true;
      Result<RangeReply> reply = co_await client_.range(std::move(range));
      if (!reply) co_return fail(reply.error());
      looked = true;
      taken.revision = reply->revision;
      if (reply->kvs.empty()) co_return taken;
      // Somebody else of this process may have looked, too; the later look is the better one.
      queue.oldest.clear();
      for (KeyValue& kv : reply->kvs) queue.oldest.push_back({std::move(kv.key), kv.mod_revision});
    }
    auto claim = std::make_shared<Claim>(client_.loop(), std::move(queue.oldest.front()));
    queue.oldest.pop_front();
    Claimant claimant(*this, claim);
    scope_.start(run_claim(claim));
    co_await claim->done;
    Result<std::optional<std::string>> value = claimant.receive();
    if (!value) co_return fail(value.error());
    if (*value) {
      taken.value = std::move(*value);
      co_return taken;
    }
    // Another process was faster. What was known for longer than this call is likely to be stale.
    if (!looked) queue.oldest.clear();
  }
}

Task<void> StoreQueues::run_claim(std::shared_ptr<Claim> claim) {
  Result<std::optional<std::string>> result = co_await this->claim(claim->item);
  if (!claim->is_abandoned) {
    claim->result = std::move(result);
    claim->done.set(true);
  } else if (result && *result) {
    co_await give_back(claim->item.key, std::move(**result));
  }
}

Task<Result<std::optional<std::string>>> StoreQueues::claim(Item item) {
  Txn txn;
  txn.compares.push_back({item.key, Compare::Target::ModRevision, item.mod_revision});
  txn.success.emplace_back(Delete{item.key, {}, true});
  Result<Journal::Outcome> outcome = co_await journal_.write(std::move(txn));
  if (!outcome) co_return fail(outcome.error());
  std::optional<std::string> value;
  if (!outcome->succeeded) co_return value;
  if (!outcome->recalled) {
    if (outcome->replies.empty() || outcome->replies.front().kvs.empty())
      co_return fail(ErrorKind::Unavailable, "etcd did not return the item that it deleted");
    value = std::move(outcome->replies.front().kvs.front().value);
    co_return value;
  }
  Range before;
  before.key = item.key;
  before.revision = item.mod_revision;
  Result<RangeReply> reply = co_await client_.range(std::move(before));
  if (!reply) co_return fail(reply.error());
  if (reply->kvs.empty())
    co_return fail(ErrorKind::Unavailable, "etcd does not know the item that it deleted");
  value = std::move(reply->kvs.front().value);
  co_return value;
}

Task<void> StoreQueues::give_back(std::string key, std::string value) {
  Txn txn;
  txn.compares.push_back({key, Compare::Target::CreateRevision, 0});
  txn.success.emplace_back(Put{key, std::move(value)});
  const auto written = co_await client_.txn(std::move(txn), Client::Repeat::Allowed);
  if (!written) {
    log::error("etcd",
               "an item is lost: its taker was cancelled, and it cannot be given back "
               "key={} reason={}",
               log::quote(key), log::quote(written.error().message));
  }
}

Task<Result<>> StoreQueues::await_push(std::string prefix, std::int64_t revision) {
  WatchRange range;
  range.key = prefix;
  range.range_end = prefix_end(prefix);
  range.start_revision = revision + 1;
  range.deletes = false;
  const std::unique_ptr<Watcher> watcher = client_.watch(std::move(range));
  const Result<Watcher::Batch> batch = co_await watcher->next();
  if (!batch) co_return fail(batch.error());
  co_return Result<>();
}

}  // namespace muster::etcd
