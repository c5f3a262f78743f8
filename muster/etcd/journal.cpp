#include "muster/etcd/journal.h"

#include <algorithm>
#include <utility>

namespace muster::etcd {
namespace {

// What the journal leaves behind vanishes after this; a store that goes on writing gets a new
// lease.
constexpr std::int64_t kLeaseSeconds = 3600;
// How often a write whose answer was lost is begun again after it turned out not to have happened.
constexpr int kAttemptsMax = 5;

bool writes(const std::vector<Operation>& operations) {
  return std::any_of(operations.begin(), operations.end(), [](const Operation& operation) {
    return !std::holds_alternative<Range>(operation);
  });
}

}  // namespace

Journal::Journal(Client& client, std::string root)
    : client_(client),
      root_(std::move(root)),
      key_(root_ + "w/" + random_id(client.random())),
      leasing_(client.loop()) {}

Task<Result<Journal::Outcome>> Journal::write(Txn txn) {
  const bool failure_writes = writes(txn.failure);
  for (int attempt = 1;; ++attempt) {
    if (const Result<> leased = co_await have_lease(); !leased) co_return fail(leased.error());
    const std::int64_t lease_id = lease_id_;
    const std::int64_t before = client_.revision();
    const std::string id = random_id(client_.random());
    Txn inner = txn;
    inner.success.emplace_back(Put{key_, id, lease_id});
    if (failure_writes) inner.failure.emplace_back(Put{key_, id, lease_id});
    Txn outer;
    outer.compares.push_back({root_ + "f/" + id, Compare::Target::CreateRevision, 0});
    outer.success.emplace_back(std::move(inner));
    Result<TxnReply> reply = co_await client_.txn(std::move(outer), Client::Repeat::Never);

    Outcome outcome;
    if (reply) {
      if (!reply->succeeded || reply->replies.empty())
        co_return fail(ErrorKind::Unavailable, "etcd answered a transaction with another's answer");
      outcome.revision = reply->revision;
      outcome.succeeded = reply->replies.front().succeeded;
      outcome.replies = std::move(reply->replies.front().replies);
      co_return outcome;
    }
    if (reply.error().kind == ErrorKind::Conflict && attempt < kAttemptsMax) {
      // The lease ran out; nothing was carried out.
      if (lease_id_ == lease_id) lease_id_ = 0;
      continue;
    }
    if (reply.error().kind != ErrorKind::Closed) co_return fail(reply.error());
    const Result<Lookup> lookup = co_await look_up(id, lease_id, before);
    if (!lookup || (!lookup->found && attempt >= kAttemptsMax)) {
      // What the look-up failed of is not what the caller needs to know.
      co_return fail(reply.error());
    }
    if (!lookup->found) continue;
    outcome.revision = lookup->revision;
    outcome.succeeded = true;
    outcome.recalled = true;
    co_return outcome;
  }
}

Task<Result<Journal::Lookup>> Journal::look_up(std::string id, std::int64_t lease_id,
                                               std::int64_t before) {
  Txn fence;
  fence.success.emplace_back(Put{root_ + "f/" + id, "", lease_id});
  const auto fenced = co_await client_.txn(std::move(fence), Client::Repeat::Allowed);
  if (!fenced) co_return fail(fenced.error());
  // As of the fence: the lease, and with it the key, was there then.
  const auto writes = co_await client_.history(key_, before, fenced->revision);
  if (!writes) co_return fail(writes.error());
  Lookup lookup;
  for (const KeyValue& kv : *writes) {
    if (kv.value != id) continue;
    lookup.found = true;
    lookup.revision = kv.mod_revision;
  }
  co_return lookup;
}

Task<Result<>> Journal::have_lease() {
  if (lease_id_ != 0) co_return Result<>();
  const rendezvous::Turnstile::Pass pass = co_await leasing_.pass();
  if (lease_id_ != 0) co_return Result<>();
  const std::int64_t id = client_.new_lease_id();
  const Result<LeaseReply> lease = co_await client_.grant_lease(id, kLeaseSeconds);
  if (!lease) co_return fail(lease.error());
  lease_id_ = id;
  co_return Result<>();
}

}  // namespace muster::etcd
