#include "muster/store/plain_client.h"

#include "muster/store/client_rules.h"
#include "muster/wire/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::store {
namespace {

using wire::Dialect;
using wire::Operation;

// How often what may be repeated is tried over a new connection before the caller is told that it
// breaks every time.
constexpr int kAttemptsMax = 5;
constexpr std::size_t kReplyBlobBytesMax = std::size_t{1} << 30U;
constexpr std::int64_t kReplyListMax = 1 << 26;
// A CANCEL_WAIT is answered at once by a living server.
constexpr Duration kCancelTimeout = std::chrono::seconds(20);
// Even a deadline that has passed leaves time for an answer that needs no waiting.
constexpr Duration kAnswerTime = std::chrono::milliseconds(200);
constexpr Duration kPause = std::chrono::milliseconds(20);

Task<Result<std::string>> receive_blob(Channel& channel, TimePoint deadline) {
  const auto size_bytes = co_await channel.receive(sizeof(std::uint64_t), deadline);
  if (!size_bytes) co_return fail(size_bytes.error());
  const auto size = wire::load<std::uint64_t>(size_bytes->data());
  if (size > kReplyBlobBytesMax) {
    co_return fail(ErrorKind::Invalid,
                   fmt::format("the server announced a value of {} bytes", size));
  }
  co_return co_await channel.receive(size, deadline);
}

// A reply of so many bytes, or of one of the shapes above.
Task<Result<std::string>> receive(Channel& channel, std::size_t reply_bytes, TimePoint deadline) {
  if (reply_bytes == kBlob) co_return co_await receive_blob(channel, deadline);
  if (reply_bytes != kItem && reply_bytes != kList)
    co_return co_await channel.receive(reply_bytes, deadline);
  auto reply = co_await channel.receive(sizeof(std::int64_t), deadline);
  if (!reply) co_return reply;
  const auto number = wire::load<std::int64_t>(reply->data());
  if (number < 0 || number > kReplyListMax)
    co_return fail(ErrorKind::Invalid, "the server's reply is malformed");
  const std::int64_t blob_count = reply_bytes == kItem ? std::min<std::int64_t>(number, 1) : number;
  for (std::int64_t index = 0; index < blob_count; ++index) {
    const auto blob = co_await receive_blob(channel, deadline);
    if (!blob) co_return fail(blob.error());
    wire::put_blob(*reply, *blob);
  }
  co_return reply;
}

// The connection broke, and another one may not.
bool is_worth_repeating(const PlainClient::Attempt& attempt, int attempt_count) {
  return attempt.sent && attempt.reply.error().kind == ErrorKind::Closed &&
         attempt_count < kAttemptsMax;
}

}  // namespace

std::int64_t take_number(std::string_view& rest) {
  const auto number = wire::load<std::int64_t>(rest.data());
  rest.remove_prefix(sizeof number);
  return number;
}

std::string_view take_blob(std::string_view& rest) {
  const auto size = static_cast<std::size_t>(take_number(rest));
  const std::string_view blob = rest.substr(0, size);
  rest.remove_prefix(size);
  return blob;
}

std::string PlainClient::encoded(const wire::Request& request) const {
  std::string bytes;
  wire::encode(request, dialect(), bytes);
  return bytes;
}

std::string PlainClient::encoded_write(const wire::Request& request) const {
  wire::Request question;
  question.operation = Operation::NumKeys;
  return encoded(request) + encoded(question);
}

Task<PlainClient::Attempt> PlainClient::try_once(std::string bytes, std::size_t reply_bytes,
                                                 TimePoint deadline) {
  Attempt attempt;
  for (;;) {
    auto lease = co_await pool_.acquire(deadline, false);
    if (!lease) {
      attempt.reply = fail(lease.error());
      co_return attempt;
    }
    lease->begin();
    if (!lease->channel().send(bytes)) continue;  // it had broken, and nobody knew yet
    attempt.sent = true;
    attempt.reply = co_await receive(lease->channel(), reply_bytes, deadline);
    attempt.ended = !attempt.reply && lease->channel().ended();
    if (attempt.reply) lease->finish();
    co_return attempt;
  }
}

Task<Result<std::string>> PlainClient::ask(wire::Request& request, std::size_t reply_bytes) {
  if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
  const TimePoint deadline = reply_deadline();
  for (int attempt_count = 1;; ++attempt_count) {
    Attempt attempt = co_await try_once(encoded(request), reply_bytes, deadline);
    if (attempt.reply) co_return std::move(attempt.reply);
    if (!is_repeatable(request) || !is_worth_repeating(attempt, attempt_count)) {
      co_return fail(explain(attempt, request));
    }
  }
}

Task<Result<std::string>> PlainClient::ask_if_known(wire::Request& request, std::size_t reply_bytes,
                                                    std::string_view what) {
  if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
  const TimePoint deadline = reply_deadline();
  for (int attempt_count = 1;; ++attempt_count) {
    Attempt attempt = co_await try_once(encoded(request), reply_bytes, deadline);
    if (attempt.reply) co_return std::move(attempt.reply);
    if (attempt.ended || !is_worth_repeating(attempt, attempt_count)) {
      co_return fail(explain_unknown(attempt, request, what));
    }
  }
}

Task<Result<std::int64_t>> PlainClient::ask_number(wire::Request& request) {
  const auto reply = co_await ask(request, sizeof(std::int64_t));
  if (!reply) co_return fail(reply.error());
  co_return wire::load<std::int64_t>(reply->data());
}

Task<Result<std::optional<std::string>>> PlainClient::read(std::string name, bool was_present) {
  wire::Request get;
  get.operation = Operation::Get;
  get.key = name;
  if (auto allowed = check_limits(get); !allowed) co_return fail(allowed.error());
  for (int attempt_count = 1;; ++attempt_count) {
    // An older server ends the connection on a GET of an absent key, so it is asked first whether
    // the key is there.
    if (!was_present || attempt_count > 1) {
      wire::Request check;
      check.operation = Operation::Check;
      check.keys.push_back(name);
      const auto status = co_await ask(check, 1);
      if (!status) co_return fail(status.error());
      if (static_cast<std::uint8_t>((*status)[0]) !=
          static_cast<std::uint8_t>(wire::CheckReply::Ready)) {
        co_return std::optional<std::string>();
      }
    }
    Attempt attempt = co_await try_once(encoded(get), kBlob, reply_deadline());
    if (attempt.reply && attempt.reply->empty()) co_return co_await read_empty(name);
    if (attempt.reply) co_return std::optional<std::string>(std::move(*attempt.reply));
    // Deleted between the two questions, or the network broke the connection.
    if (!is_worth_repeating(attempt, attempt_count)) co_return fail(explain(attempt, get));
  }
}

// GET said "empty": that is the value, or there is none. It may have been deleted since the last
// question, or only a queue may have that name. COMPARE_SET tells: it answers with what it
// expected only if there is nothing.
Task<Result<std::optional<std::string>>> PlainClient::read_empty(std::string name) {
  const std::string nobodys_value = random_id(context_.random);
  wire::Request request;
  request.operation = Operation::CompareSet;
  request.key = name;
  request.value = nobodys_value;
  request.desired = nobodys_value;
  for (int attempt_count = 1;; ++attempt_count) {
    Attempt attempt = co_await try_once(encoded(request), kBlob, reply_deadline());
    if (attempt.reply && *attempt.reply == nobodys_value) co_return std::optional<std::string>();
    if (attempt.reply) co_return std::optional<std::string>(std::move(*attempt.reply));
    // It changes nothing, so that it may be repeated.
    if (!is_worth_repeating(attempt, attempt_count)) co_return fail(explain(attempt, request));
  }
}

Task<Result<>> PlainClient::write(wire::Request& request) {
  if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
  const Attempt attempt =
      co_await try_once(encoded_write(request), sizeof(std::int64_t), reply_deadline());
  if (!attempt.reply) co_return fail(explain(attempt, request));
  co_return Result<>();
}

Task<Result<>> PlainClient::wait_for(wire::Request& request, TimePoint deadline) {
  if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
  std::string bytes;
  wire::encode(request, dialect(), bytes);
  const TimePoint latest = std::max(deadline, after(context_.loop.now(), kAnswerTime));
  for (int attempt_count = 0;; ++attempt_count) {
    auto lease = co_await pool_.acquire(latest, true);
    if (!lease) co_return fail(lease.error());
    lease->begin();
    lease->channel().send(bytes);
    const auto status = co_await lease->channel().receive(1, latest);
    if (status) {
      lease->finish();
      co_return Result<>();
    }
    if (status.error().kind == ErrorKind::Timeout) {
      // Legacy has no way to take a wait back: the connection is of no use any more.
      if (dialect() == Dialect::Modern) {
        const auto cancelled = co_await cancel_wait(lease->channel());
        if (cancelled) lease->finish();
      }
      co_return fail(ErrorKind::Timeout, describe_wait(request));
    }
    // A wait can be repeated; with pauses, for this server may end every one.
    const TimePoint now = context_.loop.now();
    const TimePoint next =
        after(now, backoff(context_.options.backoff, attempt_count, context_.random));
    if (next >= latest) co_return fail(name_failure(status.error(), request));
    co_await sleep_until(context_.loop, next);
  }
}

Task<bool> PlainClient::pause(TimePoint deadline) {
  const TimePoint next = std::min(deadline, after(context_.loop.now(), kPause));
  co_await sleep_until(context_.loop, next);
  co_return context_.loop.now() < deadline;
}

Task<Result<>> PlainClient::cancel_wait(Channel& channel) {
  wire::Request request;
  request.operation = Operation::CancelWait;
  std::string bytes;
  wire::encode(request, dialect(), bytes);
  channel.send(bytes);
  const TimePoint deadline = after(context_.loop.now(), kCancelTimeout);
  // Either the cancellation alone, or the wait's end in front of it.
  for (int replies = 0; replies < 2; ++replies) {
    const auto status = co_await channel.receive(1, deadline);
    if (!status) co_return fail(status.error());
    const auto byte = static_cast<std::uint8_t>((*status)[0]);
    if (byte == static_cast<std::uint8_t>(wire::WaitReply::WaitCanceled)) co_return Result<>();
  }
  co_return fail(ErrorKind::Closed, "the server did not confirm the cancelled wait");
}

Result<> PlainClient::needs_modern(std::string_view what) const {
  if (dialect() == Dialect::Modern) return {};
  return fail(ErrorKind::Unimplemented,
              fmt::format("the store at {} is hosted by PyTorch 2.0 or older, which has no {}",
                          net::describe(context_.options.endpoint), what));
}

Error PlainClient::name_failure(const Error& error, const wire::Request& request) const {
  if (error.kind == ErrorKind::Timeout)
    return {ErrorKind::Timeout, describe_no_reply(request, context_.options)};
  if (error.kind != ErrorKind::Closed) return error;
  if (is_repeatable(request)) {
    return {ErrorKind::Closed, fmt::format("the store at {} ended the connection at {}: {}",
                                           net::describe(context_.options.endpoint),
                                           wire::name_of(request.operation), error.message)};
  }
  return {ErrorKind::Closed, describe_uncertain(request, context_.options.endpoint, error.message)};
}

Error PlainClient::explain(const Attempt& attempt, const wire::Request& request) const {
  return attempt.sent ? name_failure(attempt.reply.error(), request) : attempt.reply.error();
}

Error PlainClient::explain_unknown(const Attempt& attempt, const wire::Request& request,
                                   std::string_view what) const {
  const Error error = explain(attempt, request);
  if (!attempt.ended) return error;
  return {ErrorKind::Unimplemented,
          fmt::format("{}; the server probably does not know {}", error.message, what)};
}

}  // namespace muster::store
