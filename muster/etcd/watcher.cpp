#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/etcd/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::etcd {
namespace {

constexpr std::string_view kWatchPath = "/v3/watch";
// A line holds the events of one or more revisions, each of at most 1.5 MiB in etcd's default.
constexpr std::size_t kLineBytesMax = std::size_t{512} << 20U;

}  // namespace

Watcher::Watcher(Client& client, WatchRange range) : client_(client), range_(std::move(range)) {
  MUSTER_ASSERT(range_.start_revision > 0);
  place_ = client_.watchers_.insert(client_.watchers_.end(), this);
}

Watcher::~Watcher() { client_.watchers_.erase(place_); }

Task<Result<Watcher::Batch>> Watcher::next() {
  Loop& loop = client_.loop_;
  const auto member_count = static_cast<int>(client_.options_.endpoints.size());
  Batch batch;
  while (true) {
    const Result<bool> stepped = co_await step(batch);
    if (!stepped) co_return fail(stepped.error());
    if (*stepped) {
      if (batch.compacted || !batch.events.empty()) co_return batch;
      continue;
    }
    close();
    client_.leave(endpoint_, problem_);
    if (failing_since_ == kNever) failing_since_ = loop.now();
    const TimePoint limit = after(failing_since_, client_.options_.retry_timeout);
    if (++failure_count_ % member_count == 0) {
      const TimePoint again =
          loop.now() +
          backoff(client_.options_.backoff, failure_count_ / member_count - 1, client_.random_);
      co_await sleep_until(loop, std::min(again, limit));
    }
    if (loop.now() >= limit) {
      failing_since_ = kNever;
      failure_count_ = 0;
      co_return fail(ErrorKind::Unavailable,
                     fmt::format("etcd at {}: {}",
                                 net::describe(client_.options_.endpoints[endpoint_]), problem_));
    }
  }
}

Task<Result<bool>> Watcher::step(Batch& batch) {
  if (exchange_ == nullptr) {
    const Result<bool> opened = co_await open();
    if (!opened || !*opened) co_return opened;
  }
  // A member that hangs while it should begin is noticed here, and by a probe later.
  const TimePoint limit =
      is_created_ ? kNever : after(client_.loop_.now(), client_.options_.request_timeout);
  Task<Result<>> reading = await_line();
  const Result<> read =
      co_await with_deadline(client_.loop_, limit, std::move(reading), "no answer in time");
  if (!read) {
    problem_ = read.error().message;
    co_return false;
  }
  client_.heard_from(endpoint_);
  const std::size_t end = unread_.find('\n');
  const std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  Result<WatchMessage> message = parse_watch(line);
  if (!message) {
    problem_ = message.error().message;
    co_return false;
  }
  co_return take(std::move(*message), batch);
}

Task<Result<bool>> Watcher::open() {
  endpoint_ = client_.current_;
  if (client_.needs_token()) {
    Client::Attempt attempt = co_await client_.authenticate(endpoint_);
    if (!attempt.done) {
      if (attempt.verdict.kind == Verdict::Kind::Refused)
        co_return fail(std::move(attempt.verdict.error));
      problem_ = std::move(attempt.verdict.error.message);
      co_return false;
    }
  }
  token_ = client_.token_;
  HttpRequest request = client_.request_to(endpoint_, kWatchPath, to_json(range_));
  // A member that is cut off from the others must end the watch, not be silent.
  request.headers.emplace_back("Grpc-Metadata-hasleader: true");
  exchange_ = client_.http_.open(std::move(request));
  client_.start_probing();
  co_return true;
}

Task<Result<>> Watcher::await_line() {
  std::size_t searched_bytes = 0;
  while (unread_.find('\n', searched_bytes) == std::string::npos) {
    searched_bytes = unread_.size();
    if (unread_.size() > kLineBytesMax)
      co_return fail(ErrorKind::Unavailable, "the answer is too long");
    std::optional<std::string> piece = co_await exchange_->next();
    if (!piece) co_return broken();
    unread_ += *piece;
  }
  co_return Result<>();
}

tl::unexpected<Error> Watcher::broken() {
  const HttpEnd& end = exchange_->end();
  if (!end.problem.empty()) return fail(ErrorKind::Unavailable, end.problem);
  if (end.status == 200) return fail(ErrorKind::Unavailable, "the stream was ended");
  Verdict verdict = judge(end.status, unread_);
  if (verdict.kind == Verdict::Kind::NewToken) client_.drop_token(token_);
  return fail(std::move(verdict.error));
}

Result<bool> Watcher::take(WatchMessage message, Batch& batch) {
  if (message.cancelled) {
    if (message.compact_revision > 0) {
      batch.compacted = true;
      close();
      return true;
    }
    problem_ = message.cancel_reason.empty() ? "the watch was cancelled" : message.cancel_reason;
    // An expired token looks the same as missing rights: a new one tells.
    if (problem_.find("ermission") != std::string::npos ||
        problem_.find("auth") != std::string::npos) {
      if (client_.options_.user.empty() || was_refused_)
        return fail(ErrorKind::Invalid, "etcd refuses a watch: " + problem_);
      was_refused_ = true;
      client_.drop_token(token_);
    }
    return false;
  }
  if (message.created) {
    is_created_ = true;
    failure_count_ = 0;
    failing_since_ = kNever;
    was_refused_ = false;
  }
  client_.saw_revision(message.revision);
  // All events of a revision come in one message.
  for (Event& event : message.events) {
    if (event.kv.mod_revision >= range_.start_revision) batch.events.push_back(std::move(event));
  }
  if (!batch.events.empty()) range_.start_revision = batch.events.back().kv.mod_revision + 1;
  return true;
}

void Watcher::close() {
  exchange_.reset();
  unread_.clear();
  is_created_ = false;
}

}  // namespace muster::etcd
