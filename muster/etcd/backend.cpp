#include "muster/etcd/backend.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/etcd/envelope.h"
#include "muster/rendezvous/turnstile.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <list>
#include <map>
#include <set>
#include <utility>

namespace muster::etcd {
namespace {

using rendezvous::Sign;
using rendezvous::Stored;
using rendezvous::Token;
using rendezvous::Turnstile;
using rendezvous::Wish;
using rendezvous::WishMarks;
using rendezvous::Written;

// More signs than this are read as one range.
constexpr std::size_t kSingleSignsMax = 32;

std::string escape(std::string_view run_id) {
  std::string text;
  for (const char letter : run_id) {
    if (letter == '/') {
      text += "%2F";
    } else if (letter == '%') {
      text += "%25";
    } else {
      text += letter;
    }
  }
  return text;
}

std::string root_of(const Client& client, std::string_view run_id) {
  return fmt::format("{}/rendezvous/{}/", client.prefix(), escape(run_id));
}

// Nothing if no write of ours has such a token.
std::optional<std::int64_t> revision_of(const Token& token) {
  std::int64_t revision = 0;
  const char* const end = token.data() + token.size();
  const auto [stop, problem] = std::from_chars(token.data(), end, revision);
  if (problem != std::errc() || stop != end || revision <= 0) return std::nullopt;
  if (std::to_string(revision) != token) return std::nullopt;
  return revision;
}

std::int64_t ttl_seconds(Duration window) {
  // etcd raises what is too short for it, which is about one and a half election timeouts.
  return std::max<std::int64_t>(1, std::chrono::ceil<std::chrono::seconds>(window).count());
}

class EtcdBackend final : public rendezvous::Backend {
 public:
  EtcdBackend(Client& client, std::string run_id)
      : client_(client),
        run_id_(std::move(run_id)),
        root_(root_of(client, run_id_)),
        beating_(client.loop()) {
    MUSTER_ASSERT(!run_id_.empty());
  }

  Task<Result<std::optional<Stored>>> get_state() override;
  Task<Result<std::optional<Written>>> set_state(std::string blob, std::optional<Token> token,
                                                 bool signal) override;
  Task<Result<bool>> wait_signal(std::optional<Token> token, bool wake_on_loss,
                                 TimePoint deadline) override;
  bool has_leases() const override { return true; }
  Task<Result<>> beat(std::string name, Duration window) override;
  Task<Result<>> retire(std::string name) override;
  Task<Result<std::vector<Sign>>> signs(std::vector<std::string> names) override;
  bool has_wishes() const override { return true; }
  Task<Result<>> wish(std::string name, std::uint64_t number, std::string text) override;
  Task<Result<>> withdraw(std::string name, std::uint64_t number) override;
  Task<Result<std::vector<Wish>>> wishes(WishMarks marks) override;

 private:
  // Somebody in wait_signal.
  struct Waiter {
    std::int64_t after = 0;  // a signal later than this is news
    bool wake_on_loss = false;
    Oneshot<Result<bool>> outcome;
  };
  // Keeps the waiter in the list while its coroutine lives.
  class Enrolment {
   public:
    Enrolment(EtcdBackend& backend, Waiter& waiter)
        : backend_(backend), place_(backend.waiters_.insert(backend.waiters_.end(), &waiter)) {}
    ~Enrolment() { backend_.waiters_.erase(place_); }
    Enrolment(const Enrolment&) = delete;
    Enrolment& operator=(const Enrolment&) = delete;

   private:
    EtcdBackend& backend_;
    std::list<Waiter*>::iterator place_;
  };

  std::string state_key() const { return root_ + "state"; }
  std::string signal_key() const { return root_ + "signal"; }
  std::string alive_key(std::string_view name) const { return alive_prefix() + std::string(name); }
  std::string alive_prefix() const { return root_ + "alive/"; }
  std::string wish_prefix() const { return root_ + "wish/"; }

  Result<Stored> open(const KeyValue& kv) const;
  // For a write that was sent more than once and whose last attempt failed its comparison: whether
  // an earlier one was carried out, and at which revision.
  Task<Result<std::optional<std::int64_t>>> find_write(std::string write_id, std::int64_t after);

  // Reads the signal, then follows it until an error ends it.
  Task<void> follow_signal();
  Task<Result<>> follow_signal_until_compacted();
  // Likewise follows the signs that vanish.
  Task<void> follow_losses();
  Task<Result<>> follow_losses_until_compacted();
  bool is_due(const Waiter& waiter) const;
  void tell_waiters();
  void fail_waiters(const Error& error);

  Task<Result<>> place(std::string name);
  Task<Result<>> renew(std::int64_t ttl_s);

  Client& client_;
  const std::string run_id_;
  const std::string root_;

  // What the followers know. They begin with the first wait and go on.
  bool follows_signal_ = false;
  bool follows_losses_ = false;
  std::int64_t signal_revision_ = 0;  // of the latest signal
  std::int64_t loss_start_ = 0;       // losses are known from here on
  std::int64_t loss_revision_ = 0;    // of the latest vanished sign
  std::int64_t told_loss_revision_ = 0;
  std::int64_t signs_revision_ = 0;  // when `signs` was last read
  std::list<Waiter*> waiters_;

  std::int64_t lease_id_ = 0;  // 0: none
  std::int64_t lease_ttl_s_ = 0;
  std::set<std::string, std::less<>> placed_;  // names with a key on the lease
  Turnstile beating_;
  TaskScope scope_;  // last
};

// ---- the state

Result<Stored> EtcdBackend::open(const KeyValue& kv) const {
  std::optional<Envelope> envelope = unseal(kv.value);
  if (!envelope) {
    return fail(
        ErrorKind::Corrupt,
        fmt::format("the state of run {} in etcd was not written by Muster: the key {} holds {} "
                    "bytes that begin with {}; it is left as it is",
                    log::quote(run_id_), log::quote(kv.key), kv.value.size(),
                    log::quote(std::string_view(kv.value).substr(0, 32))));
  }
  return Stored{std::move(envelope->blob), std::to_string(kv.mod_revision)};
}

Task<Result<std::optional<Stored>>> EtcdBackend::get_state() {
  Range range;
  range.key = state_key();
  const Result<RangeReply> reply = co_await client_.range(std::move(range));
  if (!reply) co_return fail(reply.error());
  std::optional<Stored> stored;
  if (reply->kvs.empty()) co_return stored;
  Result<Stored> opened = open(reply->kvs.front());
  if (!opened) co_return fail(opened.error());
  stored = std::move(*opened);
  co_return stored;
}

Task<Result<std::optional<Written>>> EtcdBackend::set_state(std::string blob,
                                                            std::optional<Token> token,
                                                            bool signal) {
  const std::string write_id = random_id(client_.random());
  // No write has revision -1, so a malformed token never matches.
  const std::int64_t expected = token ? revision_of(*token).value_or(-1) : 0;
  const std::int64_t before = client_.revision();
  Txn txn;
  txn.compares.push_back({state_key(), Compare::Target::ModRevision, expected});
  txn.success.emplace_back(Put{state_key(), seal({write_id, blob})});
  if (signal) txn.success.emplace_back(Put{signal_key(), write_id});
  txn.failure.emplace_back(Range{state_key()});
  const Result<TxnReply> reply = co_await client_.txn(std::move(txn), Client::Repeat::Allowed);
  if (!reply) co_return fail(reply.error());

  Written written;
  written.was_set = true;
  written.now.blob = std::move(blob);
  written.now.token = std::to_string(reply->revision);
  if (reply->succeeded) co_return written;
  if (reply->repeated) {
    const std::int64_t since = expected > 0 ? expected : before;
    const auto found = co_await find_write(write_id, since);
    if (!found) co_return fail(ErrorKind::Unavailable, found.error().message);
    if (*found) {
      written.now.token = std::to_string(**found);
      co_return written;
    }
  }
  if (reply->replies.empty() || reply->replies.front().kvs.empty()) co_return std::nullopt;
  Result<Stored> stored = open(reply->replies.front().kvs.front());
  if (!stored) co_return fail(stored.error());
  written.was_set = false;
  written.now = std::move(*stored);
  co_return written;
}

Task<Result<std::optional<std::int64_t>>> EtcdBackend::find_write(std::string write_id,
                                                                  std::int64_t after) {
  const auto writes = co_await client_.history(state_key(), after, 0);
  if (!writes) co_return fail(writes.error());
  std::optional<std::int64_t> revision;
  for (const KeyValue& kv : *writes) {
    const std::optional<Envelope> envelope = unseal(kv.value);
    if (envelope && envelope->write_id == write_id) revision = kv.mod_revision;
  }
  co_return revision;
}

// ---- signals and losses

Task<Result<bool>> EtcdBackend::wait_signal(std::optional<Token> token, bool wake_on_loss,
                                            TimePoint deadline) {
  Loop& loop = client_.loop();
  Waiter waiter{token ? revision_of(*token).value_or(0) : 0, wake_on_loss,
                Oneshot<Result<bool>>(loop)};
  const Enrolment enrolment(*this, waiter);
  Timer timer(loop, [&waiter] { waiter.outcome.set(false); });
  timer.set(deadline);
  if (!follows_signal_) {
    follows_signal_ = true;
    scope_.start(follow_signal());
  }
  if (wake_on_loss && !follows_losses_) {
    follows_losses_ = true;
    scope_.start(follow_losses());
  }
  tell_waiters();
  co_return co_await waiter.outcome;
}

Task<void> EtcdBackend::follow_signal() {
  while (true) {
    const Result<> ended = co_await follow_signal_until_compacted();
    if (ended) continue;
    follows_signal_ = false;
    fail_waiters(ended.error());
    co_return;
  }
}

Task<Result<>> EtcdBackend::follow_signal_until_compacted() {
  Range range;
  range.key = signal_key();
  const Result<RangeReply> reply = co_await client_.range(std::move(range));
  if (!reply) co_return fail(reply.error());
  if (!reply->kvs.empty()) {
    signal_revision_ = std::max(signal_revision_, reply->kvs.front().mod_revision);
    tell_waiters();
  }
  WatchRange watch_range;
  watch_range.key = signal_key();
  watch_range.start_revision = reply->revision + 1;
  watch_range.deletes = false;
  const std::unique_ptr<Watcher> watcher = client_.watch(std::move(watch_range));
  while (true) {
    const Result<Watcher::Batch> batch = co_await watcher->next();
    if (!batch) co_return fail(batch.error());
    if (batch->compacted) co_return Result<>();
    signal_revision_ = std::max(signal_revision_, batch->events.back().kv.mod_revision);
    tell_waiters();
  }
}

Task<void> EtcdBackend::follow_losses() {
  while (true) {
    const Result<> ended = co_await follow_losses_until_compacted();
    if (ended) continue;
    follows_losses_ = false;
    fail_waiters(ended.error());
    co_return;
  }
}

Task<Result<>> EtcdBackend::follow_losses_until_compacted() {
  // What vanished since the caller first looked is news, too.
  if (loss_start_ == 0)
    loss_start_ = (signs_revision_ > 0 ? signs_revision_ : client_.revision()) + 1;
  WatchRange range;
  range.key = alive_prefix();
  range.range_end = prefix_end(range.key);
  range.start_revision = std::max(loss_start_, loss_revision_ + 1);
  range.puts = false;
  const std::unique_ptr<Watcher> watcher = client_.watch(std::move(range));
  while (true) {
    const Result<Watcher::Batch> batch = co_await watcher->next();
    if (!batch) co_return fail(batch.error());
    if (batch->compacted) {
      // Perhaps somebody was lost in what is no longer known.
      const Result<StatusReply> status = co_await client_.status();
      if (!status) co_return fail(status.error());
      loss_revision_ = std::max({loss_revision_ + 1, client_.revision(), status->revision});
      tell_waiters();
      co_return Result<>();
    }
    loss_revision_ = std::max(loss_revision_, batch->events.back().kv.mod_revision);
    tell_waiters();
  }
}

bool EtcdBackend::is_due(const Waiter& waiter) const {
  return signal_revision_ > waiter.after ||
         (waiter.wake_on_loss && loss_revision_ > told_loss_revision_);
}

void EtcdBackend::tell_waiters() {
  bool told_loss = false;
  for (Waiter* const waiter : waiters_) {
    if (!is_due(*waiter)) continue;
    waiter->outcome.set(true);
    told_loss = told_loss || waiter->wake_on_loss;
  }
  // Each loss wakes once, all who wait at that time.
  if (told_loss) told_loss_revision_ = loss_revision_;
}

void EtcdBackend::fail_waiters(const Error& error) {
  for (Waiter* const waiter : waiters_) waiter->outcome.set(fail(error));
}

// ---- signs of life

Task<Result<>> EtcdBackend::beat(std::string name, Duration window) {
  const std::int64_t ttl_s = ttl_seconds(window);
  const Turnstile::Pass pass = co_await beating_.pass();
  if (lease_id_ != 0 && lease_ttl_s_ == ttl_s && placed_.contains(name)) {
    const Result<LeaseReply> lease = co_await client_.keep_alive(lease_id_);
    if (!lease) co_return fail(lease.error());
    if (lease->ttl_s > 0) co_return Result<>();
    // We were silent for too long: the lease is gone, and our signs with it.
    lease_id_ = 0;
  }
  if (lease_id_ == 0 || lease_ttl_s_ != ttl_s) {
    const Result<> renewed = co_await renew(ttl_s);
    if (!renewed) co_return fail(renewed.error());
  }
  co_return co_await place(std::move(name));
}

Task<Result<>> EtcdBackend::renew(std::int64_t ttl_s) {
  const std::int64_t old_id = lease_id_;
  const std::int64_t id = client_.new_lease_id();
  const Result<LeaseReply> lease = co_await client_.grant_lease(id, ttl_s);
  if (!lease) co_return fail(lease.error());
  const std::set<std::string, std::less<>> names = std::exchange(placed_, {});
  lease_id_ = id;
  lease_ttl_s_ = ttl_s;
  for (const std::string& name : names) {
    const Result<> placed = co_await place(name);
    if (!placed) co_return fail(placed.error());
  }
  // A lease of another length has no keys left.
  if (old_id != 0) co_return co_await client_.revoke_lease(old_id);
  co_return Result<>();
}

Task<Result<>> EtcdBackend::place(std::string name) {
  Txn txn;
  txn.success.emplace_back(Put{alive_key(name), std::to_string(lease_id_), lease_id_});
  const Result<TxnReply> reply = co_await client_.txn(std::move(txn), Client::Repeat::Allowed);
  if (!reply) {
    if (reply.error().kind != ErrorKind::Conflict) co_return fail(reply.error());
    // The lease ran out in between; the caller beats again.
    lease_id_ = 0;
    co_return fail(ErrorKind::Unavailable, reply.error().message);
  }
  placed_.insert(std::move(name));
  co_return Result<>();
}

Task<Result<>> EtcdBackend::retire(std::string name) {
  const Turnstile::Pass pass = co_await beating_.pass();
  Txn txn;
  txn.success.emplace_back(Delete{alive_key(name)});
  const Result<TxnReply> reply = co_await client_.txn(std::move(txn), Client::Repeat::Allowed);
  if (!reply) co_return fail(reply.error());
  placed_.erase(name);
  if (!placed_.empty() || lease_id_ == 0) co_return Result<>();
  const std::int64_t id = std::exchange(lease_id_, 0);
  co_return co_await client_.revoke_lease(id);
}

Task<Result<std::vector<Sign>>> EtcdBackend::signs(std::vector<std::string> names) {
  std::vector<KeyValue> found;
  std::int64_t revision = 0;
  if (names.size() <= kSingleSignsMax) {
    Txn txn;
    for (const std::string& name : names) {
      Range range;
      range.key = alive_key(name);
      range.keys_only = true;
      txn.success.emplace_back(std::move(range));
    }
    Result<TxnReply> reply = co_await client_.txn(std::move(txn), Client::Repeat::Allowed);
    if (!reply) co_return fail(reply.error());
    revision = reply->revision;
    for (OperationReply& one : reply->replies)
      std::move(one.kvs.begin(), one.kvs.end(), std::back_inserter(found));
  } else {
    Range range;
    range.key = alive_prefix();
    range.range_end = prefix_end(alive_prefix());
    range.keys_only = true;
    Result<RangeReply> reply = co_await client_.range_all(std::move(range));
    if (!reply) co_return fail(reply.error());
    revision = reply->revision;
    found = std::move(reply->kvs);
  }
  signs_revision_ = std::max(signs_revision_, revision);
  std::map<std::string_view, const KeyValue*> by_key;
  for (const KeyValue& kv : found) by_key.emplace(kv.key, &kv);
  std::vector<Sign> result;
  for (const std::string& name : names) {
    const std::string key = alive_key(name);
    const auto at = by_key.find(key);
    if (at == by_key.end()) {
      result.push_back({});
    } else {
      result.push_back({true, std::to_string(at->second->mod_revision)});
    }
  }
  co_return result;
}

// ---- wishes

Task<Result<>> EtcdBackend::wish(std::string name, std::uint64_t number, std::string text) {
  (void)number;  // their leases say which of them count
  // Without a lease it would outlive its node. It is only a hint: then there is none.
  if (lease_id_ == 0) co_return Result<>();
  Txn txn;
  txn.success.emplace_back(Put{wish_prefix() + name, std::move(text), lease_id_});
  const Result<TxnReply> reply = co_await client_.txn(std::move(txn), Client::Repeat::Allowed);
  const bool lease_is_gone = !reply && reply.error().kind == ErrorKind::Conflict;
  if (!reply && !lease_is_gone) co_return fail(reply.error());
  co_return Result<>();
}

Task<Result<>> EtcdBackend::withdraw(std::string name, std::uint64_t number) {
  (void)number;
  Txn txn;
  txn.success.emplace_back(Delete{wish_prefix() + name});
  const Result<TxnReply> reply = co_await client_.txn(std::move(txn), Client::Repeat::Allowed);
  if (!reply) co_return fail(reply.error());
  co_return Result<>();
}

Task<Result<std::vector<Wish>>> EtcdBackend::wishes(WishMarks marks) {
  (void)marks;
  Range range;
  range.key = wish_prefix();
  range.range_end = prefix_end(wish_prefix());
  Result<RangeReply> reply = co_await client_.range_all(std::move(range));
  if (!reply) co_return fail(reply.error());
  std::vector<Wish> wishes;
  for (KeyValue& kv : reply->kvs) wishes.push_back({0, std::move(kv.value)});
  co_return wishes;
}

}  // namespace

std::unique_ptr<rendezvous::Backend> make_backend(Client& client, std::string run_id) {
  return std::make_unique<EtcdBackend>(client, std::move(run_id));
}

std::string state_key(const Client& client, std::string_view run_id) {
  return root_of(client, run_id) + "state";
}

}  // namespace muster::etcd
