#include "muster/etcd/client.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/etcd/curl_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace muster::etcd {
namespace {

constexpr std::string_view kRangePath = "/v3/kv/range";
constexpr std::string_view kTxnPath = "/v3/kv/txn";
constexpr std::string_view kGrantPath = "/v3/lease/grant";
constexpr std::string_view kKeepAlivePath = "/v3/lease/keepalive";
constexpr std::string_view kRevokePath = "/v3/lease/revoke";
constexpr std::string_view kAuthenticatePath = "/v3/auth/authenticate";
constexpr std::string_view kStatusPath = "/v3/maintenance/status";

constexpr std::int64_t kPageKeysMax = 1000;
// A new token that is refused as well does not get better by asking again and again.
constexpr int kNewTokensMax = 3;
// Of one key, between a write without an answer and the look back. More means that something is
// odd.
constexpr std::size_t kHistoryMax = 10'000;

std::string without_slash(std::string text) {
  while (text.ends_with('/')) text.pop_back();
  return text;
}

std::string name_all(const std::vector<net::Endpoint>& endpoints) {
  std::string text;
  for (const net::Endpoint& endpoint : endpoints) {
    if (!text.empty()) text += ", ";
    text += net::describe(endpoint);
  }
  return text;
}

Result<> check(const Options& options) {
  if (options.endpoints.empty()) return fail(ErrorKind::Invalid, "etcd: no endpoint was given");
  const TlsFiles& files = options.tls_files;
  if (!options.tls && !(files.ca.empty() && files.certificate.empty() && files.key.empty())) {
    return fail(ErrorKind::Invalid, "etcd: certificates were given, but TLS is off");
  }
  if (!files.key.empty() && files.certificate.empty())
    return fail(ErrorKind::Invalid, "etcd: a key was given, but no certificate to it");
  if (options.user.empty() && !options.password.empty())
    return fail(ErrorKind::Invalid, "etcd: a password was given, but no user");
  return {};
}

}  // namespace

// Where one call stands with its attempts.
struct Client::Progress {
  TimePoint deadline;
  int attempt_count = 0;
  int new_token_count = 0;
  std::size_t misconfigured_count = 0;
  bool repeated = false;
};

Client::Client(net::EpollLoop& loop, Random& random, Options options)
    : loop_(loop),
      random_(random),
      options_(std::move(options)),
      prefix_(without_slash(options_.prefix)),
      name_(name_all(options_.endpoints)),
      http_(loop, options_.tls_files),
      // Many clients with one list must not all begin with the same member.
      current_(random.below(options_.endpoints.size())),
      heard_times_(options_.endpoints.size(), loop.now()),
      authenticating_(loop) {}

Client::~Client() { MUSTER_ASSERT(watchers_.empty()); }

Task<Result<std::unique_ptr<Client>>> connect(net::EpollLoop& loop, Random& random,
                                              Options options) {
  if (auto checked = check(options); !checked) co_return fail(checked.error());
  if (auto loaded = load_curl(); !loaded) co_return fail(std::move(loaded.error()));
  std::unique_ptr<Client> client(new Client(loop, random, std::move(options)));
  // A read of nothing: it needs a leader and the user's token, which a status does not. A user
  // without rights for this very key is refused, and known.
  Range nothing;
  nothing.key = client->prefix() + "/";
  nothing.count_only = true;
  const auto answer = co_await client->range(std::move(nothing));
  if (!answer) co_return fail(answer.error());
  co_return client;
}

// ---- requests

Task<Result<RangeReply>> Client::range(Range range) {
  std::string body = to_json(range);
  const Result<Reply> reply = co_await call(kRangePath, std::move(body), Repeat::Allowed);
  if (!reply) co_return fail(reply.error());
  Result<RangeReply> parsed = parse_range(reply->body);
  if (parsed) saw_revision(parsed->revision);
  co_return parsed;
}

Task<Result<RangeReply>> Client::range_all(Range range) {
  MUSTER_ASSERT(!range.by_creation && range.limit == 0);
  RangeReply all;
  range.limit = kPageKeysMax;
  while (true) {
    Range page = range;
    Result<RangeReply> reply = co_await this->range(std::move(page));
    if (!reply) co_return fail(reply.error());
    if (range.revision == 0) {
      range.revision = reply->revision;
      all.revision = reply->revision;
      all.count = reply->count;
    }
    const bool more = reply->more && !reply->kvs.empty();
    if (more) range.key = reply->kvs.back().key + '\0';
    std::move(reply->kvs.begin(), reply->kvs.end(), std::back_inserter(all.kvs));
    if (!more) co_return all;
  }
}

Task<Result<TxnReply>> Client::txn(Txn txn, Repeat repeat) {
  std::string body = to_json(txn);
  const Result<Reply> reply = co_await call(kTxnPath, std::move(body), repeat);
  if (!reply) co_return fail(reply.error());
  Result<TxnReply> parsed = parse_txn(reply->body);
  if (parsed) {
    saw_revision(parsed->revision);
    parsed->repeated = reply->repeated;
  }
  co_return parsed;
}

Task<Result<std::vector<KeyValue>>> Client::history(std::string key, std::int64_t after,
                                                    std::int64_t until) {
  Range now;
  now.key = key;
  now.revision = until;
  const Result<RangeReply> last = co_await range(std::move(now));
  if (!last) co_return fail(last.error());
  std::vector<KeyValue> writes;
  if (last->kvs.empty() || last->kvs.front().mod_revision <= after) co_return writes;
  const std::int64_t last_revision = last->kvs.front().mod_revision;

  WatchRange range;
  range.key = std::move(key);
  range.start_revision = after + 1;
  range.deletes = false;
  const std::unique_ptr<Watcher> watcher = watch(std::move(range));
  while (writes.size() < kHistoryMax) {
    Result<Watcher::Batch> batch = co_await watcher->next();
    if (!batch) co_return fail(batch.error());
    if (batch->compacted) break;
    for (Event& event : batch->events) {
      writes.push_back(std::move(event.kv));
      if (writes.back().mod_revision >= last_revision) co_return writes;
    }
  }
  co_return fail(ErrorKind::Conflict, "what was written meanwhile is no longer known to etcd");
}

Task<Result<LeaseReply>> Client::grant_lease(std::int64_t id, std::int64_t ttl_s) {
  std::string body = lease_grant_json(id, ttl_s);
  const Result<Reply> reply = co_await call(kGrantPath, std::move(body), Repeat::Allowed);
  if (reply) co_return parse_lease_grant(reply->body);
  // "Lease already exists": an attempt without an answer did it.
  if (reply.error().kind == ErrorKind::Conflict) co_return co_await keep_alive(id);
  co_return fail(reply.error());
}

Task<Result<LeaseReply>> Client::keep_alive(std::int64_t id) {
  std::string body = lease_json(id);
  const Result<Reply> reply = co_await call(kKeepAlivePath, std::move(body), Repeat::Allowed);
  if (!reply) co_return fail(reply.error());
  co_return parse_keep_alive(reply->body);
}

Task<Result<>> Client::revoke_lease(std::int64_t id) {
  std::string body = lease_json(id);
  const Result<Reply> reply = co_await call(kRevokePath, std::move(body), Repeat::Allowed);
  if (!reply && reply.error().kind != ErrorKind::Conflict) co_return fail(reply.error());
  co_return Result<>();
}

std::int64_t Client::new_lease_id() {
  // Positive, and not 0, which would let the server choose.
  return static_cast<std::int64_t>(random_.next() >> 1U) | 1;
}

std::unique_ptr<Watcher> Client::watch(WatchRange range) {
  return std::unique_ptr<Watcher>(new Watcher(*this, std::move(range)));
}

Task<Result<StatusReply>> Client::status() {
  const Result<Reply> reply = co_await call(kStatusPath, "{}", Repeat::Allowed);
  if (!reply) co_return fail(reply.error());
  co_return parse_status(reply->body);
}

// ---- attempts

Task<Result<Client::Reply>> Client::call(std::string_view path, std::string body, Repeat repeat) {
  using Kind = Verdict::Kind;
  Progress progress;
  progress.deadline = after(loop_.now(), options_.retry_timeout);
  while (true) {
    const std::size_t endpoint = current_;
    std::string copy = body;
    Attempt attempt = co_await ask_with_token(endpoint, path, std::move(copy));
    if (attempt.done) {
      Reply reply{std::move(attempt.body), progress.repeated};
      co_return reply;
    }
    std::string& problem = attempt.verdict.error.message;
    problem = fmt::format("etcd at {}: {}", net::describe(options_.endpoints[endpoint]), problem);
    if (attempt.verdict.kind == Kind::Refused) co_return fail(std::move(attempt.verdict.error));
    if (attempt.verdict.kind == Kind::NewToken) {
      if (options_.user.empty() || ++progress.new_token_count > kNewTokensMax)
        co_return fail(std::move(attempt.verdict.error));
      continue;
    }
    if (attempt.verdict.kind == Kind::Unknown) {
      if (repeat == Repeat::Never) {
        co_return fail(ErrorKind::Closed, problem + "; the write may or may not have taken effect");
      }
      progress.repeated = true;
    }
    if (attempt.is_misconfigured && ++progress.misconfigured_count >= options_.endpoints.size()) {
      co_return fail(ErrorKind::Invalid, std::move(problem));
    }
    leave(endpoint, problem);

    // Every member gets its chance before we pause.
    const auto member_count = static_cast<int>(options_.endpoints.size());
    TimePoint again = loop_.now();
    if (++progress.attempt_count % member_count == 0) {
      again += backoff(options_.backoff, progress.attempt_count / member_count - 1, random_);
      co_await sleep_until(loop_, std::min(again, progress.deadline));
    }
    if (loop_.now() >= progress.deadline)
      co_return fail(ErrorKind::Unavailable, std::move(problem));
  }
}

Task<Client::Attempt> Client::ask_with_token(std::size_t endpoint, std::string_view path,
                                             std::string body) {
  if (needs_token()) {
    Attempt attempt = co_await authenticate(endpoint);
    if (!attempt.done) co_return attempt;
  }
  const std::string used = token_;
  Attempt attempt = co_await ask(endpoint, path, std::move(body));
  if (!attempt.done && attempt.verdict.kind == Verdict::Kind::NewToken) drop_token(used);
  co_return attempt;
}

Task<Client::Attempt> Client::ask(std::size_t endpoint, std::string_view path, std::string body) {
  HttpRequest request = request_to(endpoint, path, std::move(body));
  request.timeout = options_.request_timeout;
  HttpAnswer answer = co_await http_.post(std::move(request));
  Attempt attempt;
  if (!answer.end.problem.empty()) {
    attempt.verdict.kind = answer.end.delivered ? Verdict::Kind::Unknown : Verdict::Kind::Again;
    attempt.verdict.error = {ErrorKind::Unavailable, std::move(answer.end.problem)};
    attempt.is_misconfigured = answer.end.is_misconfigured;
    co_return attempt;
  }
  heard_from(endpoint);
  if (answer.end.status == 200) {
    attempt.done = true;
    attempt.body = std::move(answer.body);
  } else {
    attempt.verdict = judge(answer.end.status, answer.body);
  }
  co_return attempt;
}

Task<Client::Attempt> Client::authenticate(std::size_t endpoint) {
  const rendezvous::Turnstile::Pass pass = co_await authenticating_.pass();
  Attempt attempt;
  attempt.done = true;
  if (!needs_token()) co_return attempt;
  std::string body = authenticate_json(options_.user, options_.password);
  attempt = co_await ask(endpoint, kAuthenticatePath, std::move(body));
  if (attempt.done) {
    Result<std::string> token = parse_token(attempt.body);
    if (token) {
      token_ = std::move(*token);
    } else {
      attempt.done = false;
      attempt.verdict.kind = Verdict::Kind::Again;
      attempt.verdict.error = std::move(token.error());
    }
    co_return attempt;
  }
  // "Authentication is not enabled": then everybody may do everything.
  if (attempt.verdict.code == kCodeFailedPrecondition) {
    log::warn("etcd", "user and password are not needed: authentication is off endpoints={}",
              name_);
    auth_is_off_ = true;
    attempt.done = true;
  } else if (attempt.verdict.kind == Verdict::Kind::Unknown) {
    // Asking for a token twice harms nobody; the request it is for has not been sent.
    attempt.verdict.kind = Verdict::Kind::Again;
  } else if (attempt.verdict.kind == Verdict::Kind::NewToken) {
    attempt.verdict.kind = Verdict::Kind::Refused;
  }
  co_return attempt;
}

HttpRequest Client::request_to(std::size_t endpoint, std::string_view path,
                               std::string body) const {
  HttpRequest request;
  request.url = fmt::format("{}://{}{}", options_.tls ? "https" : "http",
                            net::describe(options_.endpoints[endpoint]), path);
  request.body = std::move(body);
  if (!token_.empty()) request.headers.push_back("Authorization: " + token_);
  return request;
}

void Client::drop_token(const std::string& used) {
  // Another request may have got a new one already.
  if (token_ == used) token_.clear();
  auth_is_off_ = false;
}

void Client::heard_from(std::size_t endpoint) { heard_times_[endpoint] = loop_.now(); }

void Client::saw_revision(std::int64_t revision) { revision_ = std::max(revision_, revision); }

void Client::leave(std::size_t endpoint, std::string_view problem) {
  if (current_ != endpoint || options_.endpoints.size() == 1) return;
  current_ = (endpoint + 1) % options_.endpoints.size();
  log::debug("etcd", "going to another member from={} to={} reason={}",
             net::describe(options_.endpoints[endpoint]),
             net::describe(options_.endpoints[current_]), log::quote(problem));
}

// ---- signs of life of members

void Client::start_probing() {
  if (is_probing_) return;
  is_probing_ = true;
  scope_.start(probe());
}

Task<void> Client::probe() {
  while (true) {
    // The member with watches that has been silent for the longest time.
    std::optional<std::size_t> quietest;
    for (const Watcher* const watcher : watchers_) {
      if (watcher->exchange_ == nullptr) continue;
      const std::size_t endpoint = watcher->endpoint_;
      if (!quietest || heard_times_[endpoint] < heard_times_[*quietest]) quietest = endpoint;
    }
    if (!quietest) break;
    const TimePoint due = heard_times_[*quietest] + options_.probe_interval;
    if (loop_.now() < due) {
      co_await sleep_until(loop_, due);
      continue;
    }
    const Attempt attempt = co_await ask(*quietest, kStatusPath, "{}");
    if (attempt.done) {
      const Result<StatusReply> status = parse_status(attempt.body);
      if (status && status->has_leader) continue;
      break_watchers(*quietest, "the member has no leader");
    } else {
      break_watchers(*quietest, attempt.verdict.error.message);
    }
  }
  is_probing_ = false;
}

void Client::break_watchers(std::size_t endpoint, const std::string& problem) {
  leave(endpoint, problem);
  for (Watcher* const watcher : watchers_) {
    if (watcher->exchange_ != nullptr && watcher->endpoint_ == endpoint)
      watcher->exchange_->abort(problem);
  }
}

}  // namespace muster::etcd
