#include "muster/rref/keeper.h"

#include "muster/base/log.h"
#include "muster/rref/control.h"
#include "muster/rref/errors.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace muster::rref {
namespace {

using rpc::CallError;
using rpc::CallErrorKind;
using rpc::CallResult;
using rpc::Message;
using rpc::MessageType;

constexpr std::string_view kComponent = "rref";

CallError refusal(std::string text) {
  return {CallErrorKind::Rejected, std::move(text), "", false};
}

}  // namespace

// ---- handles ------------------------------------------------------------------------------------

Handle::Handle(std::shared_ptr<Keeper> keeper, std::shared_ptr<Owned> owned)
    : keeper_(std::move(keeper)), owned_(std::move(owned)) {
  data_.owner = keeper_->self();
  data_.rref = owned_->rref();
  data_.type = owned_->type();
}

Handle::Handle(std::shared_ptr<Keeper> keeper, const ForkData& data)
    : keeper_(std::move(keeper)), data_(data) {}

Handle::~Handle() {
  if (!is_owner()) keeper_->dropped(fork());
}

std::string Handle::text() const {
  return is_owner() ? owner_text(rref()) : user_text(rref(), fork());
}

std::optional<rpc::Future<>> Handle::creation() const {
  const std::lock_guard lock(keeper_->mutex_);
  return creation_;
}

// ---- carrying out -------------------------------------------------------------------------------

Keeper::Keeper(WorkerId self, IdSource& ids)
    : self_(self), ids_(ids), ledger_(LedgerOptions{.self = self}, ids) {}

Keeper::~Keeper() = default;

std::shared_ptr<Keeper> Keeper::of(const rpc::Agent& agent) {
  auto* const references = agent.references();
  // There is only one kind.
  return references == nullptr ? nullptr : static_cast<Keeper*>(references)->shared_from_this();
}

std::shared_ptr<rpc::Agent> Keeper::agent() const {
  const std::lock_guard lock(mutex_);
  return agent_;
}

void Keeper::attach(std::shared_ptr<rpc::Agent> agent) {
  std::vector<Effects::Send> unsent;
  {
    const std::lock_guard lock(mutex_);
    agent_ = std::move(agent);
    unsent.swap(unsent_);
  }
  for (const Effects::Send& one : unsent) send(one);
}

void Keeper::carry_out(Effects effects) {
  if (effects.empty()) return;
  std::vector<std::pair<GoOn, std::optional<CallError>>> going_on;
  std::vector<std::pair<std::shared_ptr<Owned>, CallError>> failed;
  std::vector<std::shared_ptr<Owned>> released;
  const auto collect = [&](auto& waiting, GlobalId id, const std::optional<CallError>& error) {
    const auto found = waiting.find(id);
    if (found == waiting.end()) return;
    for (GoOn& go_on : found->second) going_on.emplace_back(std::move(go_on), error);
    waiting.erase(found);
  };
  const auto remove = [this](GlobalId rref) {
    const auto found = owned_.find(rref);
    if (found == owned_.end()) return std::shared_ptr<Owned>();
    auto owned = std::move(found->second);
    owned_.erase(found);
    return owned;
  };
  {
    const std::lock_guard lock(mutex_);
    for (const auto& settled : effects.settled) collect(settling_, settled.fork, settled.error);
    for (const GlobalId rref : effects.ready) collect(creating_, rref, std::nullopt);
    for (const auto& one : effects.failed) {
      collect(creating_, one.rref, one.error);
      if (auto owned = remove(one.rref)) failed.emplace_back(std::move(owned), one.error);
    }
    for (const GlobalId rref : effects.released) {
      // It may have been forked again meanwhile.
      if (ledger_.holds(rref)) continue;
      if (auto owned = remove(rref)) released.push_back(std::move(owned));
    }
  }
  for (const auto& [rref, fork] : effects.unknown) {
    log::debug(kComponent, "a reference was deleted that is not known here rref={} fork={}",
               rref.text(), fork.text());
  }
  for (const Effects::Send& one : effects.sends) send(one);
  for (const auto& [owned, error] : failed) owned->set(call_failed(error));
  for (const auto& [go_on, error] : going_on) go_on(error ? &*error : nullptr);
  if (released.empty()) return;
  // The destructors of a program's values are its own: they run where its callbacks run.
  if (const auto with = agent()) (void)with->callbacks().post([released = std::move(released)] {});
}

void Keeper::send(const Effects::Send& send) {
  std::shared_ptr<rpc::Agent> with;
  {
    const std::lock_guard lock(mutex_);
    if (!agent_) {
      unsent_.push_back(send);
      return;
    }
    with = agent_;
  }
  const Ticket ticket = send.ticket;
  const auto failed = [self = weak_from_this(), ticket](const CallError& error) {
    const auto keeper = self.lock();
    if (!keeper) return;
    keeper->change([&](Effects& out) { keeper->ledger_.failed(ticket, error, out); });
  };
  auto info = with->find(static_cast<std::int64_t>(send.to));
  if (!info) return failed(info.error());
  Message message{send.type, rpc::kNoMessageId, send.payload, {}};
  with->send_with_retries(info->name(), std::move(message), {})
      .on_done([self = weak_from_this(), ticket, to = send.to,
                failed](const CallResult<Message>& outcome) {
        if (!outcome) return failed(outcome.error());
        const auto keeper = self.lock();
        if (!keeper) return;
        keeper->change([&](Effects& out) {
          keeper->ledger_.acked(ticket, outcome->payload, out);
          keeper->ledger_.worker_heard(to, out);
        });
      });
}

// ---- references ---------------------------------------------------------------------------------

std::shared_ptr<Owned> Keeper::owned_entry(GlobalId rref, const std::string& type) {
  auto& entry = owned_[rref];
  if (!entry) entry = std::make_shared<Owned>(rref, type);
  return entry;
}

std::shared_ptr<Handle> Keeper::make_local(std::shared_ptr<rpc::Object> value) {
  GlobalId rref;
  {
    const std::lock_guard lock(mutex_);
    rref = ledger_.create_local();
  }
  auto owned = std::make_shared<Owned>(rref, value->type());
  owned->set(std::move(value));
  return std::make_shared<Handle>(shared_from_this(), std::move(owned));
}

// Tells how the call that makes a value went.
class Keeper::CreationSink final : public rpc::CallSink {
 public:
  CreationSink(std::shared_ptr<Keeper> keeper, const std::shared_ptr<Handle>& handle,
               std::vector<std::uint64_t> forks, rpc::Promise<> promise, rpc::Pool& callbacks)
      : keeper_(std::move(keeper)),
        handle_(handle),
        owned_(handle->owned()),
        rref_(handle->rref()),
        fork_(handle->fork()),
        forks_(std::move(forks)),
        promise_(std::move(promise)),
        callbacks_(callbacks) {}

  void set_helper(std::weak_ptr<rpc::internal::Helper> helper) override {
    promise_.set_helper(std::move(helper));
  }
  void ended(CallResult<Message> outcome, rpc::Calls& calls) override {
    std::optional<CallError> error;
    if (!outcome) {
      error = outcome.error();
    } else if (outcome->type != MessageType::RemoteRet) {
      error = CallError{CallErrorKind::Remote,
                        "it answered with a message of type " + name_of(outcome->type), "", true};
    }
    if (error && !forks_.empty()) {
      error->sent ? keeper_->maybe_sent(forks_) : keeper_->not_sent(forks_);
    }
    keeper_->creation_ended(owned_, rref_, fork_, error);
    CallResult<> result;
    if (error) result = call_failed(*error);
    if (!error) keeper_->creation_succeeded(handle_);
    promise_.set_on(callbacks_, std::move(result), [&calls] { calls.finished(); });
  }

 private:
  std::shared_ptr<Keeper> keeper_;
  std::weak_ptr<Handle> handle_;  // it may be dropped before
  std::shared_ptr<Owned> owned_;
  GlobalId rref_;
  GlobalId fork_;
  std::vector<std::uint64_t> forks_;
  rpc::Promise<> promise_;
  rpc::Pool& callbacks_;
};

CallResult<std::shared_ptr<Handle>> Keeper::remote(const RemoteCall& call) {
  const auto with = agent();
  if (!with) return call_failed(rpc::internal::not_initialized());
  const auto owner = rpc::internal::find(*with, call.to);
  if (!owner) return call_failed(owner.error());
  std::shared_ptr<Handle> handle;
  GlobalId fork;
  if (owner->id() == self_) {
    std::shared_ptr<Owned> owned;
    {
      const std::lock_guard lock(mutex_);
      owned = owned_entry(ledger_.create_self(), call.type);
    }
    fork = owned->rref();
    handle = std::make_shared<Handle>(shared_from_this(), std::move(owned));
    handle->data_.fork = fork;
  } else {
    ForkData data;
    {
      const std::lock_guard lock(mutex_);
      auto made = ledger_.create(owner->id());
      if (!made) return call_failed(std::move(made.error()));
      data.owner = owner->id();
      data.rref = made->rref;
      data.fork = made->fork;
      data.parent = self_;
      data.type = call.type;
    }
    fork = data.fork;
    handle = std::make_shared<Handle>(shared_from_this(), data);
  }
  rpc::Writer ids;
  ids.write(handle->rref().bits(), fork.bits());
  rpc::internal::Route route(*with, call.to);
  rpc::Promise<> promise;
  handle->creation_ = promise.future();
  const auto give_up = [&](const CallError& error) {
    not_sent(route.forks);
    creation_ended(handle->owned(), handle->rref(), fork, error);
    // Whoever called is told; nobody else has to be.
    promise.set(call_failed(error));
    (void)handle->creation_->wait();
    if (handle->is_owner()) (void)handle->owned()->wait();
  };
  Result<Message> request;
  try {
    request = call.encode(ids.take_control(), route);
  } catch (...) {
    give_up(refusal("the arguments could not be made"));
    throw;
  }
  if (!request) {
    CallError error = refusal(request.error().message);
    give_up(error);
    return call_failed(std::move(error));
  }
  auto sink = std::make_unique<CreationSink>(shared_from_this(), handle, std::move(route.forks),
                                             std::move(promise), with->callbacks());
  with->submit(owner->name(), std::move(*request), call.to.timeout_seconds(), std::move(sink));
  return handle;
}

void Keeper::creation_ended(const std::shared_ptr<Owned>& self_owned, GlobalId rref, GlobalId fork,
                            const std::optional<CallError>& error) {
  if (self_owned && error) self_owned->set_not_created(creation_error(*error));
  change([&](Effects& out) {
    if (self_owned) {
      ledger_.self_finished(rref, out);
    } else {
      ledger_.creation_finished(fork, error, out);
    }
  });
}

// The future of a creation is as large as all else that a reference needs, and most live on long
// after it: from now on all that went well share one.
void Keeper::creation_succeeded(const std::weak_ptr<Handle>& weak) {
  static const auto* const kSucceeded = new rpc::Future<>(rpc::Future<>::ready({}));
  const std::shared_ptr<Handle> handle = weak.lock();
  if (!handle) return;
  std::optional<rpc::Future<>> before = *kSucceeded;
  const std::lock_guard lock(mutex_);
  before.swap(handle->creation_);
}

void Keeper::dropped(GlobalId fork) {
  change([&](Effects& out) { ledger_.dropped(fork, out); });
}

void Keeper::fetch(rpc::Agent& with, const Handle& handle, std::optional<double> timeout_seconds,
                   std::unique_ptr<rpc::CallSink> sink, MessageType type) {
  std::optional<CallError> error = use_error(handle, "call to_here() on it");
  if (error) return with.calls().refuse(std::move(sink), std::move(*error));
  auto owner = with.find(static_cast<std::int64_t>(handle.owner()));
  if (!owner) return with.calls().refuse(std::move(sink), std::move(owner.error()));
  Message request{type, rpc::kNoMessageId, encode(FetchCall{handle.rref(), handle.fork()}), {}};
  with.submit(owner->name(), std::move(request), timeout_seconds, std::move(sink));
}

std::optional<CallError> Keeper::use_error(const Handle& handle, std::string_view what) const {
  if (handle.is_owner()) return handle.owned()->creation_error();
  const std::lock_guard lock(mutex_);
  return ledger_.use_error({handle.rref(), handle.fork(), what});
}

bool Keeper::is_confirmed(const Handle& handle) const {
  if (handle.is_owner()) return true;
  const std::lock_guard lock(mutex_);
  return ledger_.state_of(handle.fork()) != Ledger::State::Pending;
}

CallResult<rpc::WorkerInfo> Keeper::owner_of(const Handle& handle) const {
  const auto with = agent();
  if (!with) return call_failed(rpc::internal::not_initialized());
  return with->find(static_cast<std::int64_t>(handle.owner()));
}

// ---- the end ------------------------------------------------------------------------------------

bool Keeper::wait_until(TimePoint deadline,
                        const std::function<bool(const Ledger::Counters&)>& holds) {
  std::unique_lock lock(mutex_);
  return rpc::internal::wait_until(changed_, lock, deadline,
                                   [&] { return holds(ledger_.counters()); });
}

void Keeper::settle_and_end_users(Duration patience) {
  const SystemClock clock;
  const auto settled = [](const Ledger::Counters& now) {
    return now.pending_users == 0 && now.pending_children == 0;
  };
  if (!wait_until(after(clock.now(), patience), settled)) {
    log::error(kComponent, "references still wait to be confirmed after {}; going on without them",
               describe(patience));
  }
  change([&](Effects& out) {
    ledger_.end_users(out);
    ledger_.end_unforked_owners(out);
  });
}

void Keeper::end_users(Duration patience) {
  settle_and_end_users(patience);
  const SystemClock clock;
  const auto heard = [](const Ledger::Counters& now) { return now.pending_futures == 0; };
  // If not, they notice that this worker has left.
  (void)wait_until(after(clock.now(), patience), heard);
}

void Keeper::clean_up(Duration patience) {
  settle_and_end_users(patience);
  const SystemClock clock;
  const auto alone = [](const Ledger::Counters& now) {
    return now.owner_rrefs == 0 && now.pending_futures == 0;
  };
  if (!wait_until(after(clock.now(), patience), alone)) {
    log::error(kComponent, "{} values of this worker are still referred to by others after {}",
               counters().owner_rrefs, describe(patience));
  }
}

std::string Keeper::stop() {
  std::string leaks;
  std::shared_ptr<rpc::Agent> with;
  std::unordered_map<GlobalId, std::shared_ptr<Owned>> owned;
  std::unordered_map<GlobalId, std::vector<GoOn>> settling;
  std::unordered_map<GlobalId, std::vector<GoOn>> creating;
  {
    const std::lock_guard lock(mutex_);
    ledger_.stop();
    leaks = ledger_.leak_report();
    with.swap(agent_);
    owned.swap(owned_);
    settling.swap(settling_);
    creating.swap(creating_);
    changed_.notify_all();
  }
  // Others are told so, too.
  const CallError error =
      refusal(fmt::format("RPC is no longer running on {}",
                          with ? with->self().describe() : std::string("this worker")));
  for (const auto& [id, waiting] : settling) {
    for (const GoOn& go_on : waiting) go_on(&error);
  }
  for (const auto& [id, waiting] : creating) {
    for (const GoOn& go_on : waiting) go_on(&error);
  }
  return leaks;
}

std::map<std::string, std::string> Keeper::debug_info() const {
  const std::lock_guard lock(mutex_);
  return ledger_.debug_info();
}

Ledger::Counters Keeper::counters() const {
  const std::lock_guard lock(mutex_);
  return ledger_.counters();
}

}  // namespace muster::rref
