#include "muster/store/extension_talk.h"

#include "muster/base/assert.h"
#include "muster/store/client_rules.h"
#include "muster/store/extension_reply.h"
#include "muster/store/tcp_store.h"

#include <fmt/format.h>

#include <utility>

namespace muster::store {

ExtensionTalk::ExtensionTalk(ExtensionClient& client, ServiceId service, std::string_view message)
    : client_(client), link_(client.weak_link()) {
  wire::Request request;
  request.operation = wire::Operation::Open;
  request.number = static_cast<std::int64_t>(service);
  request.value = message;
  id_ = client_.link()->send(request, "", *this);
}

ExtensionTalk::~ExtensionTalk() { leave_link(true); }

void ExtensionTalk::say(std::string message) {
  if (id_ == 0) return;
  if (auto allowed = check_message(message); !allowed) {
    leave_link(true);
    return end(allowed.error());
  }
  if (const auto link = link_.lock()) link->say(id_, message);
}

void ExtensionTalk::set_patience(Duration patience) {
  if (const auto link = link_.lock()) link->set_patience(patience);
}

void ExtensionTalk::on_reply(const wire::Reply& reply) {
  if (reply.status == wire::kStatusChange) {
    if (has_room_for(reply.body.size())) return add_message(reply.body);
    leave_link(true);
    return end({ErrorKind::Unavailable,
                fmt::format("the talk fell more than {} messages or {} bytes behind",
                            kTalkMessagesMax, kTalkBytesMax)});
  }
  leave_link(false);
  if (auto error = wire::error_of(reply)) return end(std::move(*error));
  if (reply.status != wire::kStatusOk) {
    return end(malformed().value());
  }
  add_message(reply.body);
  end({ErrorKind::Finished, "the service has ended the conversation"});
}

void ExtensionTalk::on_lost(const std::string& reason, bool) {
  id_ = 0;
  end({ErrorKind::Unavailable, fmt::format("lost the connection to the store at {} ({})",
                                           net::describe(client_.options().endpoint), reason)});
}

bool ExtensionTalk::has_room_for(std::size_t bytes) const {
  if (!has_message()) return true;
  return messages_.size() - taken_count_ < kTalkMessagesMax &&
         unread_bytes_ + bytes <= kTalkBytesMax;
}

void ExtensionTalk::add_message(std::string_view message) {
  // The gap in front is closed when it is as long as the rest, so each message is moved once.
  if (taken_count_ > 0 && taken_count_ >= messages_.size() - taken_count_) {
    messages_.erase(messages_.begin(),
                    messages_.begin() + static_cast<std::ptrdiff_t>(taken_count_));
    taken_count_ = 0;
  }
  messages_.emplace_back(message);
  unread_bytes_ += message.size();
  wake();
}

std::string ExtensionTalk::take_message() {
  std::string message = std::move(messages_[taken_count_]);
  ++taken_count_;
  unread_bytes_ -= message.size();
  if (!has_message()) {
    messages_.clear();
    taken_count_ = 0;
  }
  return message;
}

void ExtensionTalk::leave_link(bool cancel_too) {
  if (id_ == 0) return;
  if (const auto link = link_.lock()) link->forget(id_, cancel_too);
  id_ = 0;
}

void ExtensionTalk::end(Error error) {
  if (!ended_) ended_ = std::move(error);
  wake();
}

void ExtensionTalk::wake() {
  if (waiter_ != nullptr) waiter_->set(true);
}

Task<Result<std::string>> ExtensionTalk::next(TimePoint deadline) {
  MUSTER_ASSERT(waiter_ == nullptr);
  if (!has_message() && !ended_) {
    Oneshot<bool> came(client_.loop());
    Timer timer(client_.loop(), [&came] { came.set(false); });
    timer.set(deadline);
    waiter_ = &came;
    struct Withdraw {
      ExtensionTalk& talk;
      ~Withdraw() { talk.waiter_ = nullptr; }
    };
    const Withdraw withdraw{*this};
    const bool something = co_await came;
    if (!something) co_return fail(ErrorKind::Timeout, "the service said nothing in time");
  }
  if (!has_message()) co_return fail(*ended_);
  co_return take_message();
}

}  // namespace muster::store
