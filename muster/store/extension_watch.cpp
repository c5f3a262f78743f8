#include "muster/store/extension_watch.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/store/client_rules.h"
#include "muster/wire/codec.h"

#include <fmt/format.h>

#include <utility>

namespace muster::store {
namespace {

bool is_state(const Change& change) {
  return change.kind == Change::Kind::Present || change.kind == Change::Kind::Absent;
}

}  // namespace

ExtensionWatch::ExtensionWatch(ExtensionClient& client, const std::string& key,
                               Store::WatchScope scope)
    : client_(client), wire_key_(wire_key(key)), scope_(scope), started_(client.loop()) {
  client_.enlist(*this);
  subscribe();
}

ExtensionWatch::~ExtensionWatch() {
  client_.dismiss(*this);
  if (const auto link = link_.lock(); link && id_ != 0) link->forget(id_, true);
}

void ExtensionWatch::subscribe() {
  if (ended_) return;
  link_ = client_.weak_link();
  wire::Request request;
  request.operation =
      scope_ == Store::WatchScope::Key ? wire::Operation::WatchKey : wire::Operation::WatchPrefix;
  request.key = wire_key_;
  if (auto allowed = check_limits(request); !allowed) return end(allowed.error());
  id_ = link_.lock()->send(request, "", *this);
}

void ExtensionWatch::on_reply(const wire::Reply& reply) {
  if (auto error = wire::error_of(reply)) return end(std::move(*error));
  if (reply.status == wire::kStatusOk) return started_.set(Result<>());
  wire::Reader reader(reply.body);
  const auto kind = reader.integer<std::uint8_t>();
  Change change;
  change.key = user_key(reader.string(reply.body.size()));
  change.value = reader.string(reply.body.size());
  if (!reader.finished() || kind > static_cast<std::uint8_t>(Change::Kind::Deleted)) {
    return end({ErrorKind::Invalid, "the server sent a malformed change"});
  }
  change.kind = static_cast<Change::Kind>(kind);
  // The state at the beginning is as large as it is; what follows must be kept up with.
  if (!is_state(change) && ++event_count_ > kWatchChangesMax) {
    return end({ErrorKind::Unavailable,
                fmt::format("the watch fell more than {} changes behind", kWatchChangesMax)});
  }
  changes_.push_back(std::move(change));
  wake();
}

void ExtensionWatch::on_lost(const std::string&, bool) {
  id_ = 0;
  // It will begin again with the state as it is then, so what is unread of the old one is of no
  // use.
  std::erase_if(changes_, is_state);
}

void ExtensionWatch::end(Error error) {
  if (ended_) return;
  if (const auto link = link_.lock(); link && id_ != 0) link->forget(id_, true);
  id_ = 0;
  started_.set(fail(error));
  ended_ = std::move(error);
  wake();
}

void ExtensionWatch::wake() {
  if (waiter_ != nullptr) waiter_->set(true);
}

Task<Result<Change>> ExtensionWatch::next(TimePoint deadline) {
  MUSTER_ASSERT(waiter_ == nullptr);
  if (changes_.empty() && !ended_) {
    Oneshot<bool> came(client_.loop());
    Timer timer(client_.loop(), [&came] { came.set(false); });
    timer.set(deadline);
    waiter_ = &came;
    struct Withdraw {
      ExtensionWatch& watch;
      ~Withdraw() { watch.waiter_ = nullptr; }
    };
    const Withdraw withdraw{*this};
    const bool something = co_await came;
    if (!something) {
      co_return fail(ErrorKind::Timeout,
                     fmt::format("no change of {} in time", log::quote(user_key(wire_key_))));
    }
  }
  if (changes_.empty()) co_return fail(*ended_);
  Change change = std::move(changes_.front());
  changes_.pop_front();
  if (!is_state(change)) --event_count_;
  co_return change;
}

}  // namespace muster::store
