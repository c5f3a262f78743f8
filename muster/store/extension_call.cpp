#include "muster/store/extension_call.h"

#include "muster/base/assert.h"
#include "muster/store/client_rules.h"
#include "muster/store/extension_reply.h"
#include "muster/wire/codec.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace muster::store {
namespace {

using wire::Operation;

constexpr std::string_view kUserKeyPrefix = "/";

bool waits_on_server(const wire::Request& request) {
  return request.blocking || request.operation == Operation::Wait ||
         request.operation == Operation::Barrier;
}

}  // namespace

ExtensionCall::ExtensionCall(ExtensionClient& client, wire::Request& request, TimePoint deadline)
    : client_(client),
      request_(request),
      key_prefix_(kUserKeyPrefix),
      waits_(waits_on_server(request)),
      deadline_(deadline),
      timer_(client.loop(), [this] { expire(); }) {}

ExtensionCall::ExtensionCall(ExtensionClient& client, wire::Request& request, Verbatim)
    : client_(client),
      request_(request),
      waits_(waits_on_server(request)),
      deadline_(kNever),
      timer_(client.loop(), [this] { expire(); }) {}

ExtensionCall::~ExtensionCall() {
  if (stage_ == Stage::Over) {
    // The item came, and nobody was there to take it.
    if (is_pop() && is_present_ && !delivered_ && !error_) {
      client_.push_back(wire_key(request_.key), body_);
    }
    return;
  }
  if (stage_ != Stage::Sent) return;
  if (!is_pop()) {
    link_->forget(id_, waits_);
    return;
  }
  client_.abandon_pop(*link_, id_, wire_key(request_.key));
  if (waits_ && !taken_back_) link_->cancel(id_);
}

bool ExtensionCall::await_ready() {
  MUSTER_ASSERT(stage_ == Stage::New);
  if (auto allowed = check_limits(request_, key_prefix_.size()); !allowed) {
    finish(std::move(allowed.error()));
    return true;
  }
  const TimePoint now = client_.now();
  connect_deadline_ = std::max(deadline_, now);
  if (!waits_) {
    deadline_ = after(now, client_.options().reply_timeout);
    connect_deadline_ = std::min(connect_deadline_, deadline_);
  }
  attempt();
  return stage_ == Stage::Over;
}

void ExtensionCall::attempt() {
  link_ = client_.link();
  if (link_ == nullptr) {
    stage_ = Stage::InLine;
    timer_.set(connect_deadline_);
    return client_.await_connection(*this);  // may tell us before it returns
  }
  stage_ = Stage::Sent;
  id_ = link_->send(request_, key_prefix_, *this);
  timer_.set(deadline_);
}

void ExtensionCall::expire() {
  if (stage_ == Stage::InLine) {
    leave_line();
    return finish(client_.no_connection());
  }
  if (is_pop() && waits_ && !taken_back_) {
    // The server may be sending it an item: asks to be told.
    taken_back_ = true;
    link_->cancel(id_);
    return timer_.set(after(client_.now(), client_.options().reply_timeout));
  }
  // The reply may still come; of a pop it may bring an item.
  if (is_pop()) {
    client_.abandon_pop(*link_, id_, wire_key(request_.key));
  } else {
    link_->forget(id_, waits_);
  }
  finish({ErrorKind::Timeout, describe([&](const wire::Request& named) {
            return waits_ ? describe_wait(named) : describe_no_reply(named, client_.options());
          })});
}

void ExtensionCall::on_reply(const wire::Reply& reply) {
  link_->forget(id_, false);
  if (auto error = wire::error_of(reply)) {
    if (error->kind == ErrorKind::Timeout || error->kind == ErrorKind::Cancelled) {
      error = Error{ErrorKind::Timeout, describe([&](const wire::Request& named) {
                      return waits_ ? describe_wait(named)
                                    : describe_no_reply(named, client_.options());
                    })};
    }
    return finish(std::move(*error));
  }
  if (request_.operation != Operation::Get && !is_pop()) {
    body_ = reply.body;
    return finish();
  }
  const auto value = decode_optional(reply.body);
  if (!value) return finish(value.error());
  is_present_ = value->has_value();
  if (is_present_) body_ = **value;
  finish();
}

void ExtensionCall::on_lost(const std::string& reason, bool sent) {
  if (!sent || is_repeatable(request_)) return attempt();
  finish({ErrorKind::Closed, describe([&](const wire::Request& named) {
            return describe_uncertain(named, client_.options().endpoint, reason);
          })});
}

void ExtensionCall::finish(Error error) {
  error_ = std::move(error);
  finish();
}

void ExtensionCall::finish() {
  stage_ = Stage::Over;
  timer_.cancel();
  if (coroutine_) client_.loop().soon(ready_, coroutine_);
}

template <typename Describe>
std::string ExtensionCall::describe(Describe describe_request) const {
  if (key_prefix_.empty()) return describe_request(request_);
  wire::Request named = request_;
  const std::string key = wire_key(request_.key);
  std::vector<std::string> keys;
  for (const std::string_view user_key : request_.keys) keys.push_back(wire_key(user_key));
  named.key = key;
  named.keys.assign(keys.begin(), keys.end());
  return describe_request(named);
}

Result<> ExtensionCall::outcome() {
  if (error_) return fail(std::move(*error_));
  return {};
}

Result<std::int64_t> ExtensionCall::number() {
  if (error_) return fail(std::move(*error_));
  wire::Reader reader(body_);
  const auto value = reader.integer<std::int64_t>();
  if (!reader.finished()) return malformed();
  return value;
}

Result<bool> ExtensionCall::flag() {
  if (error_) return fail(std::move(*error_));
  wire::Reader reader(body_);
  const bool value = reader.integer<std::uint8_t>() != 0;
  if (!reader.finished()) return malformed();
  return value;
}

Result<std::optional<std::string>> ExtensionCall::optional_value() {
  if (error_) return fail(std::move(*error_));
  if (!is_present_) return std::optional<std::string>();
  return std::optional<std::string>(std::move(body_));
}

Result<std::string> ExtensionCall::value() {
  if (error_) return fail(std::move(*error_));
  if (is_present_) return std::move(body_);
  if (request_.blocking) return malformed();
  return timed_out();
}

tl::unexpected<Error> ExtensionCall::timed_out() const {
  return fail(ErrorKind::Timeout, describe(describe_wait));
}

Result<std::string> ExtensionCall::body() {
  if (error_) return fail(std::move(*error_));
  return std::move(body_);
}

}  // namespace muster::store
