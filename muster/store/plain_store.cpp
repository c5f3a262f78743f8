#include "muster/store/plain_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <optional>

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/store/client_rules.h"
#include "muster/store/table.h"
#include "muster/wire/codec.h"

namespace muster::store {
namespace {

using wire::Dialect;
using wire::Operation;

constexpr std::size_t kConnectionsMax = 64;
constexpr std::size_t kReplyBlobBytesMax = std::size_t{1} << 30U;
constexpr std::int64_t kReplyListMax = 1 << 26;
// A CANCEL_WAIT is answered at once by a living server.
constexpr Duration kCancelTimeout = std::chrono::seconds(20);
// How often a foreign server is asked for changes: it cannot push. Begins fast, slows down while nothing happens.
constexpr Duration kPollFirst = std::chrono::milliseconds(20);
constexpr Duration kPollMax = std::chrono::milliseconds(500);

class PlainStore;

// A connection taken from the pool. Goes back when it is destroyed, unless its conversation was broken off: then nobody
// could tell which reply belongs to what, and it is closed.
class Lease {
 public:
  Lease(PlainStore& store, Opened opened) : store_(&store), opened_(std::move(opened)) {}
  Lease(Lease&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)), opened_(std::move(other.opened_)), in_use_(other.in_use_) {}
  Lease& operator=(Lease&&) = delete;
  ~Lease();

  Channel& channel() { return *opened_.channel; }
  Dialect dialect() const { return opened_.dialect; }
  // Between these two the connection is not fit for anyone else.
  void begin() { in_use_ = true; }
  void finish() { in_use_ = false; }

 private:
  PlainStore* store_;
  Opened opened_;
  bool in_use_ = false;
};

class PollingWatch final : public Watch {
 public:
  PollingWatch(PlainStore& store, std::string key, Store::WatchScope scope)
      : store_(store), key_(std::move(key)), scope_(scope) {}
  Task<Result<Change>> next(TimePoint deadline) override;

 private:
  // Reads the present state and appends the differences to what it was before.
  Task<Result<>> poll();

  PlainStore& store_;
  const std::string key_;
  const Store::WatchScope scope_;
  bool begun_ = false;
  std::map<std::string, std::string> known_;
  std::deque<Change> changes_;
};

class PlainStore final : public TcpStore {
 public:
  PlainStore(ClientContext context, Opened opened) : context_(std::move(context)), dialect_(opened.dialect) {
    idle_.push_back(std::move(opened));
    connection_count_ = 1;
  }

  Task<Result<>> set(std::string key, std::string value) override {
    wire::Request request;
    request.operation = Operation::Set;
    const std::string name = wire_key(key);
    request.key = name;
    request.value = value;
    co_return co_await write(request);
  }

  Task<Result<std::string>> get(std::string key, TimePoint deadline) override {
    std::vector<std::string> keys;
    keys.push_back(std::move(key));
    auto values = co_await multi_get(std::move(keys), deadline);
    if (!values) co_return fail(values.error());
    co_return std::move(values->front());
  }

  Task<Result<std::optional<std::string>>> try_get(std::string key) override {
    // An older server closes the connection on a GET of an absent key, so it is asked first whether the key is there.
    wire::Request request;
    request.operation = Operation::Check;
    const std::string name = wire_key(key);
    request.keys.push_back(name);
    const auto status = co_await ask(request, 1);
    if (!status) co_return fail(status.error());
    if (static_cast<std::uint8_t>((*status)[0]) != static_cast<std::uint8_t>(wire::CheckReply::Ready)) {
      co_return std::optional<std::string>();
    }
    wire::Request get_request;
    get_request.operation = Operation::Get;
    get_request.key = name;
    auto value = co_await ask_blob(get_request);
    if (value) co_return std::optional<std::string>(std::move(*value));
    // Deleted between the two questions.
    if (value.error().kind == ErrorKind::Closed) co_return std::optional<std::string>();
    co_return fail(value.error());
  }

  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override {
    wire::Request request;
    request.operation = Operation::Add;
    const std::string name = wire_key(key);
    request.key = name;
    request.number = delta;
    auto sum = co_await ask_number(request);
    if (sum || sum.error().kind != ErrorKind::Closed) co_return sum;
    // The server says "not a number" by closing the connection; a look at the value tells that from a broken one.
    auto value = co_await try_get(key);
    if (value && *value && !parse_counter(**value)) {
      co_return fail(ErrorKind::Invalid, fmt::format("the value of key {} is not a number", log::quote(key)));
    }
    co_return sum;
  }

  Task<Result<CompareSet>> compare_set(std::string key, std::string expected, std::string desired) override {
    wire::Request request;
    request.operation = Operation::CompareSet;
    const std::string name = wire_key(key);
    request.key = name;
    request.value = expected;
    request.desired = desired;
    auto value = co_await ask_blob(request);
    if (!value) co_return fail(value.error());
    // The protocol does not say whether it stored; a value that was there already is as good.
    CompareSet result;
    result.stored = *value == desired;
    result.value = std::move(*value);
    co_return result;
  }

  Task<Result<bool>> check(std::vector<std::string> keys) override {
    const auto names = wire_keys(keys);
    wire::Request request;
    request.operation = Operation::Check;
    request.keys.assign(names.begin(), names.end());
    const auto status = co_await ask(request, 1);
    if (!status) co_return fail(status.error());
    co_return static_cast<std::uint8_t>((*status)[0]) == static_cast<std::uint8_t>(wire::CheckReply::Ready);
  }

  Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) override {
    const auto names = wire_keys(keys);
    wire::Request request;
    request.operation = Operation::Wait;
    request.keys.assign(names.begin(), names.end());
    co_return co_await wait_for(request, deadline);
  }

  Task<Result<bool>> delete_key(std::string key) override {
    wire::Request request;
    request.operation = Operation::DeleteKey;
    const std::string name = wire_key(key);
    request.key = name;
    const auto count = co_await ask_number(request);
    if (!count) co_return fail(count.error());
    co_return *count > 0;
  }

  Task<Result<std::int64_t>> num_keys() override {
    wire::Request request;
    request.operation = Operation::NumKeys;
    co_return co_await ask_number(request);
  }

  Task<Result<>> append(std::string key, std::string data) override {
    if (dialect_ == Dialect::Modern) {
      wire::Request request;
      request.operation = Operation::Append;
      const std::string name = wire_key(key);
      request.key = name;
      request.value = data;
      co_return co_await write(request);
    }
    for (;;) {
      const auto current = co_await try_get(key);
      if (!current) co_return fail(current.error());
      std::string expected = current->value_or("");
      std::string desired = expected + data;
      const std::string wanted = desired;
      const auto result = co_await compare_set(key, std::move(expected), std::move(desired));
      if (!result) co_return fail(result.error());
      if (result->value == wanted) co_return Result<>();
    }
  }

  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys, TimePoint deadline) override {
    const auto names = wire_keys(keys);
    wire::Request request;
    request.operation = Operation::Wait;
    request.keys.assign(names.begin(), names.end());
    auto waited = co_await wait_for(request, deadline);
    if (!waited) co_return fail(waited.error());
    std::vector<std::string> values;
    for (const std::string& name : names) {
      wire::Request get_request;
      get_request.operation = Operation::Get;
      get_request.key = name;
      auto value = co_await ask_blob(get_request);
      if (!value) co_return fail(value.error());
      values.push_back(std::move(*value));
    }
    co_return values;
  }

  Task<Result<>> multi_set(std::vector<KeyValue> pairs) override {
    if (dialect_ == Dialect::Modern) {
      std::vector<std::string> names;
      names.reserve(pairs.size());
      wire::Request request;
      request.operation = Operation::MultiSet;
      for (const KeyValue& pair : pairs) {
        names.push_back(wire_key(pair.key));
        request.keys.push_back(names.back());
        request.values.push_back(pair.value);
      }
      co_return co_await write(request);
    }
    for (KeyValue& pair : pairs) {
      auto done = co_await set(std::move(pair.key), std::move(pair.value));
      if (!done) co_return done;
    }
    co_return Result<>();
  }

  Task<Result<>> queue_push(std::string queue, std::string item) override {
    if (auto known = needs_modern("queues"); !known) co_return known;
    wire::Request request;
    request.operation = Operation::QueuePush;
    const std::string name = wire_key(queue);
    request.key = name;
    request.value = item;
    auto done = co_await write(request);
    co_return explain_closed(std::move(done), "queues (PyTorch 2.8 or later with its libuv server has them)");
  }

  Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) override {
    if (auto known = needs_modern("queues"); !known) co_return fail(known.error());
    const std::string name = wire_key(queue);
    for (;;) {
      auto item = co_await try_queue_pop(queue);
      if (!item) co_return fail(item.error());
      if (*item) co_return std::move(**item);
      wire::Request request;
      request.operation = Operation::Wait;
      request.keys.push_back(name);
      auto waited = co_await wait_for(request, deadline);
      if (!waited) co_return fail(waited.error());
      // A key of the same name ends the wait too; then this would spin.
      const auto length = co_await queue_length(queue);
      if (!length) co_return fail(length.error());
      if (*length == 0) {
        const TimePoint next = std::min(deadline, after(context_.loop.now(), kPollFirst));
        co_await sleep_until(context_.loop, next);
        if (context_.loop.now() >= deadline) {
          co_return fail(ErrorKind::Timeout, fmt::format("timed out waiting for queue {}", log::quote(queue)));
        }
      }
    }
  }

  Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) override {
    if (auto known = needs_modern("queues"); !known) co_return fail(known.error());
    wire::Request request;
    request.operation = Operation::QueuePop;
    const std::string name = wire_key(queue);
    request.key = name;
    std::string bytes;
    wire::encode(request, dialect_, bytes);
    auto lease = co_await acquire();
    if (!lease) co_return fail(lease.error());
    lease->begin();
    lease->channel().send(bytes);
    const TimePoint deadline = reply_deadline();
    const auto length = co_await lease->channel().receive(sizeof(std::int64_t), deadline);
    if (!length) {
      const Error error = name_failure(length.error(), request);
      co_return explain_closed(Result<std::optional<std::string>>(fail(error)),
                               "queues (PyTorch 2.8 or later with its libuv server has them)");
    }
    if (wire::load<std::int64_t>(length->data()) == 0) {
      lease->finish();
      co_return std::optional<std::string>();
    }
    auto item = co_await receive_blob(lease->channel(), deadline);
    if (!item) co_return fail(name_failure(item.error(), request));
    lease->finish();
    co_return std::optional<std::string>(std::move(*item));
  }

  Task<Result<std::int64_t>> queue_length(std::string queue) override {
    if (auto known = needs_modern("queues"); !known) co_return fail(known.error());
    wire::Request request;
    request.operation = Operation::QueueLength;
    const std::string name = wire_key(queue);
    request.key = name;
    auto length = co_await ask_number(request);
    co_return explain_closed(std::move(length), "queues (PyTorch 2.8 or later with its libuv server has them)");
  }

  Task<Result<std::vector<std::string>>> list_keys(std::string prefix) override {
    if (auto known = needs_modern("listing keys"); !known) co_return fail(known.error());
    wire::Request request;
    request.operation = Operation::ListKeys;
    std::string bytes;
    wire::encode(request, dialect_, bytes);
    auto lease = co_await acquire();
    if (!lease) co_return fail(lease.error());
    lease->begin();
    lease->channel().send(bytes);
    const TimePoint deadline = reply_deadline();
    const auto count_bytes = co_await lease->channel().receive(sizeof(std::int64_t), deadline);
    if (!count_bytes) {
      const Error error = name_failure(count_bytes.error(), request);
      co_return explain_closed(Result<std::vector<std::string>>(fail(error)),
                               "listing keys (PyTorch 2.10 or later has it)");
    }
    const auto count = wire::load<std::int64_t>(count_bytes->data());
    if (count < 0 || count > kReplyListMax) co_return fail(ErrorKind::Invalid, "the server's reply is malformed");
    std::vector<std::string> keys;
    const std::string wanted = wire_key(prefix);
    for (std::int64_t index = 0; index < count; ++index) {
      auto key = co_await receive_blob(lease->channel(), deadline);
      if (!key) co_return fail(name_failure(key.error(), request));
      if (key->starts_with(wanted)) keys.push_back(user_key(*key));
    }
    lease->finish();
    std::sort(keys.begin(), keys.end());
    co_return keys;
  }

  // As PyTorch does it on every store without a barrier of its own, so that its processes can take part.
  Task<Result<>> barrier(std::string key, std::int64_t member_count, TimePoint deadline) override {
    const auto arrived = co_await add(key + "/num_members", 1);
    if (!arrived) co_return fail(arrived.error());
    const std::string last = key + "/last_member";
    if (*arrived >= member_count) {
      auto done = co_await set(last, "1");
      co_return done;
    }
    std::vector<std::string> keys;
    keys.push_back(last);
    auto waited = co_await wait(std::move(keys), deadline);
    if (!waited && waited.error().kind == ErrorKind::Timeout) {
      co_return fail(ErrorKind::Timeout, fmt::format("timed out at barrier {}: not all {} members came", log::quote(key),
                                                     member_count));
    }
    co_return waited;
  }

  Task<Result<std::unique_ptr<Watch>>> watch(std::string key, WatchScope scope) override {
    if (scope == WatchScope::Prefix) {
      if (auto known = needs_modern("watching a prefix"); !known) co_return fail(known.error());
    }
    std::unique_ptr<Watch> result = std::make_unique<PollingWatch>(*this, std::move(key), scope);
    co_return result;
  }

  Dialect dialect() const override { return dialect_; }

  Task<Result<>> ping() override {
    const auto count = co_await num_keys();  // every version answers this one
    if (!count) co_return fail(count.error());
    co_return Result<>();
  }

  Task<Result<std::vector<std::pair<std::string, std::string>>>> info() override {
    co_return fail(ErrorKind::Unimplemented, "the store is hosted by PyTorch, which does not describe itself");
  }

  Task<Result<bool>> drop_namespace(std::string) override {
    co_return fail(ErrorKind::Unimplemented, "the store is hosted by PyTorch and has no namespaces");
  }

  Task<Result<>> count_as_worker() override {
    wire::Request request;
    request.operation = Operation::Add;
    request.key = wire::kWorkerCountKey;
    request.number = 1;
    const auto count = co_await ask_number(request);
    if (!count) co_return fail(count.error());
    co_return Result<>();
  }

  Loop& loop() { return context_.loop; }

  void give_back(Opened opened, bool usable) {
    if (usable && !opened.channel->broken()) {
      idle_.push_back(std::move(opened));
    } else {
      opened.channel.reset();
      --connection_count_;
    }
    if (!waiting_.empty()) {
      Oneshot<bool>* const next = waiting_.front();
      waiting_.pop_front();
      next->set(true);
    }
  }

 private:
  TimePoint reply_deadline() const { return after(context_.loop.now(), context_.options.reply_timeout); }

  Task<Result<Lease>> acquire() {
    while (idle_.empty() && connection_count_ >= kConnectionsMax) {
      Oneshot<bool> turn(context_.loop);
      waiting_.push_back(&turn);
      struct Withdraw {
        std::list<Oneshot<bool>*>& list;
        Oneshot<bool>* entry;
        ~Withdraw() { list.remove(entry); }
      };
      const Withdraw withdraw{waiting_, &turn};
      co_await turn;
    }
    while (!idle_.empty()) {
      Opened opened = std::move(idle_.back());
      idle_.pop_back();
      if (!opened.channel->broken()) co_return Lease(*this, std::move(opened));
      --connection_count_;
    }
    ++connection_count_;
    struct Uncount {
      std::size_t* count;
      ~Uncount() {
        if (count != nullptr) --*count;
      }
    };
    Uncount uncount{&connection_count_};
    const TimePoint deadline = after(context_.loop.now(), context_.options.connect_timeout);
    auto opened = co_await open_connection(context_, deadline);
    if (!opened) co_return fail(opened.error());
    if (opened->dialect != dialect_) {
      co_return fail(ErrorKind::Closed, fmt::format("the store at {} has been replaced by one of another kind",
                                                    net::describe(context_.options.endpoint)));
    }
    uncount.count = nullptr;
    co_return Lease(*this, std::move(*opened));
  }

  // Sends and receives a reply of `reply_bytes`; repeats it over a new connection where that is safe.
  Task<Result<std::string>> ask(wire::Request& request, std::size_t reply_bytes) {
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    std::string bytes;
    wire::encode(request, dialect_, bytes);
    for (int attempt = 0;; ++attempt) {
      auto lease = co_await acquire();
      if (!lease) co_return fail(lease.error());
      lease->begin();
      lease->channel().send(bytes);
      const TimePoint deadline = reply_deadline();
      auto reply = co_await lease->channel().receive(reply_bytes, deadline);
      if (reply) {
        lease->finish();
        co_return reply;
      }
      const bool again = reply.error().kind == ErrorKind::Closed && is_repeatable(request) && attempt == 0;
      if (!again) co_return fail(name_failure(reply.error(), request));
    }
  }

  Task<Result<std::int64_t>> ask_number(wire::Request& request) {
    const auto reply = co_await ask(request, sizeof(std::int64_t));
    if (!reply) co_return fail(reply.error());
    co_return wire::load<std::int64_t>(reply->data());
  }

  Task<Result<std::string>> ask_blob(wire::Request& request) {
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    std::string bytes;
    wire::encode(request, dialect_, bytes);
    auto lease = co_await acquire();
    if (!lease) co_return fail(lease.error());
    lease->begin();
    lease->channel().send(bytes);
    const TimePoint deadline = reply_deadline();
    auto value = co_await receive_blob(lease->channel(), deadline);
    if (!value) co_return fail(name_failure(value.error(), request));
    lease->finish();
    co_return value;
  }

  static Task<Result<std::string>> receive_blob(Channel& channel, TimePoint deadline) {
    const auto size_bytes = co_await channel.receive(sizeof(std::uint64_t), deadline);
    if (!size_bytes) co_return fail(size_bytes.error());
    const auto size = wire::load<std::uint64_t>(size_bytes->data());
    if (size > kReplyBlobBytesMax) {
      co_return fail(ErrorKind::Invalid, fmt::format("the server announced a value of {} bytes", size));
    }
    co_return co_await channel.receive(size, deadline);
  }

  // A request without a reply, and one with a reply behind it: when that comes, the first has been done.
  Task<Result<>> write(wire::Request& request) {
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    std::string bytes;
    wire::encode(request, dialect_, bytes);
    wire::Request question;
    question.operation = Operation::NumKeys;
    wire::encode(question, dialect_, bytes);
    auto lease = co_await acquire();
    if (!lease) co_return fail(lease.error());
    lease->begin();
    lease->channel().send(bytes);
    const TimePoint deadline = reply_deadline();
    const auto reply = co_await lease->channel().receive(sizeof(std::int64_t), deadline);
    if (!reply) co_return fail(name_failure(reply.error(), request));
    lease->finish();
    co_return Result<>();
  }

  Task<Result<>> wait_for(wire::Request& request, TimePoint deadline) {
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    std::string bytes;
    wire::encode(request, dialect_, bytes);
    for (;;) {
      auto lease = co_await acquire();
      if (!lease) co_return fail(lease.error());
      lease->begin();
      lease->channel().send(bytes);
      // Even a deadline that has passed leaves time for an answer that needs no waiting.
      const TimePoint soonest = after(context_.loop.now(), kAnswerTime);
      const auto status = co_await lease->channel().receive(1, std::max(deadline, soonest));
      if (status) {
        lease->finish();
        co_return Result<>();
      }
      if (status.error().kind == ErrorKind::Closed) continue;  // a wait can be repeated; acquire gives up in time
      // Legacy has no way to take a wait back: the connection is of no use any more.
      if (dialect_ == Dialect::Modern) {
        const auto cancelled = co_await cancel_wait(lease->channel());
        if (cancelled) lease->finish();
      }
      co_return fail(ErrorKind::Timeout, describe_wait(request));
    }
  }

  Task<Result<>> cancel_wait(Channel& channel) {
    wire::Request request;
    request.operation = Operation::CancelWait;
    std::string bytes;
    wire::encode(request, dialect_, bytes);
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

  Result<> needs_modern(std::string_view what) const {
    if (dialect_ == Dialect::Modern) return {};
    return fail(ErrorKind::Unimplemented,
                fmt::format("the store at {} is hosted by PyTorch 2.0 or older, which has no {}",
                            net::describe(context_.options.endpoint), what));
  }

  Error name_failure(const Error& error, const wire::Request& request) const {
    if (error.kind == ErrorKind::Timeout) return {ErrorKind::Timeout, describe_no_reply(request, context_.options)};
    if (error.kind != ErrorKind::Closed) return error;
    if (is_repeatable(request)) {
      return {ErrorKind::Closed, fmt::format("the store at {} ended the connection at {}: {}",
                                             net::describe(context_.options.endpoint),
                                             wire::name_of(request.operation), error.message)};
    }
    return {ErrorKind::Closed, describe_uncertain(request, context_.options.endpoint, error.message)};
  }

  // A server says that it does not know an operation by closing the connection.
  template <typename T>
  Result<T> explain_closed(Result<T> result, std::string_view what) const {
    if (result || result.error().kind != ErrorKind::Closed) return result;
    return fail(ErrorKind::Unimplemented, fmt::format("{}; the server probably does not know {}", result.error().message, what));
  }

  static constexpr Duration kAnswerTime = std::chrono::milliseconds(200);

  ClientContext context_;
  const Dialect dialect_;
  std::vector<Opened> idle_;
  std::list<Oneshot<bool>*> waiting_;  // operations that wait for a connection to become free
  std::size_t connection_count_ = 0;
};

Lease::~Lease() {
  if (store_ != nullptr) store_->give_back(std::move(opened_), !in_use_);
}

Task<Result<>> PollingWatch::poll() {
  std::vector<std::string> keys;
  if (scope_ == Store::WatchScope::Key) {
    keys.push_back(key_);
  } else {
    auto listed = co_await store_.list_keys(key_);
    if (!listed) co_return fail(listed.error());
    keys = std::move(*listed);
  }
  std::map<std::string, std::string> present;
  for (const std::string& key : keys) {
    auto value = co_await store_.try_get(key);
    if (!value) co_return fail(value.error());
    if (*value) present.emplace(key, std::move(**value));
  }
  for (const auto& [key, value] : present) {
    const auto before = known_.find(key);
    if (before != known_.end() && before->second == value) continue;
    const auto kind = !begun_                    ? Change::Kind::Present
                      : before == known_.end() ? Change::Kind::Created
                                               : Change::Kind::Updated;
    changes_.push_back({kind, key, value});
  }
  for (const auto& [key, value] : known_) {
    if (!present.contains(key)) changes_.push_back({Change::Kind::Deleted, key, ""});
  }
  if (!begun_ && scope_ == Store::WatchScope::Key && present.empty()) {
    changes_.push_back({Change::Kind::Absent, key_, ""});
  }
  begun_ = true;
  known_ = std::move(present);
  co_return Result<>();
}

Task<Result<Change>> PollingWatch::next(TimePoint deadline) {
  Duration pause = kPollFirst;
  for (;;) {
    if (!changes_.empty()) {
      Change change = std::move(changes_.front());
      changes_.pop_front();
      co_return change;
    }
    const auto polled = co_await poll();
    if (!polled) co_return fail(polled.error());
    if (!changes_.empty()) continue;
    if (store_.loop().now() >= deadline) {
      co_return fail(ErrorKind::Timeout, fmt::format("no change of {} in time", log::quote(key_)));
    }
    const TimePoint next_poll = std::min(deadline, after(store_.loop().now(), pause));
    pause = std::min(kPollMax, pause * 2);
    co_await sleep_until(store_.loop(), next_poll);
  }
}

}  // namespace

std::unique_ptr<TcpStore> make_plain_store(ClientContext context, Opened opened) {
  return std::make_unique<PlainStore>(std::move(context), std::move(opened));
}

}  // namespace muster::store
