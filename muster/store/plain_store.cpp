#include "muster/store/plain_store.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/store/client_rules.h"
#include "muster/store/table.h"
#include "muster/wire/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <optional>

namespace muster::store {
namespace {

using wire::Dialect;
using wire::Operation;

constexpr std::size_t kConnectionsMax = 64;
// Of these, waits leave some to those who do not wait: the write that ends them may come from this
// process.
constexpr std::size_t kWaitingConnectionsMax = 56;
// How often what may be repeated is tried over a new connection before the caller is told that it
// breaks every time.
constexpr int kAttemptsMax = 5;
constexpr std::size_t kReplyBlobBytesMax = std::size_t{1} << 30U;
constexpr std::int64_t kReplyListMax = 1 << 26;
// A CANCEL_WAIT is answered at once by a living server.
constexpr Duration kCancelTimeout = std::chrono::seconds(20);
// Even a deadline that has passed leaves time for an answer that needs no waiting.
constexpr Duration kAnswerTime = std::chrono::milliseconds(200);
// How often a foreign server is asked for changes: it cannot push. Begins fast, slows down while
// nothing happens.
constexpr Duration kPollFirst = std::chrono::milliseconds(20);
constexpr Duration kPollMax = std::chrono::milliseconds(500);

// What a reply looks like where its size is not known beforehand.
constexpr std::size_t kBlob =
    static_cast<std::size_t>(-1);  // a length, and as many bytes, which are the reply
constexpr std::size_t kItem =
    static_cast<std::size_t>(-2);  // a number, and a blob if it is not zero
constexpr std::size_t kList = static_cast<std::size_t>(-3);  // a number, and as many blobs

constexpr std::string_view kQueues = "queues (PyTorch 2.8 or later with its libuv server has them)";
constexpr std::string_view kListing = "listing keys (PyTorch 2.10 or later has it)";

// What one request over one connection came to.
struct Attempt {
  bool sent = false;   // there was a connection, so the request may have been carried out
  bool ended = false;  // then: the server ended it instead of answering, which is how it refuses
  Result<std::string> reply = fail(ErrorKind::Closed, "");
};

class PlainStore;

// A connection taken from the pool. Goes back when it is destroyed, unless its conversation was
// broken off: then nobody could tell which reply belongs to what, and it is closed.
class Lease {
 public:
  Lease(PlainStore& store, Opened opened) : store_(&store), opened_(std::move(opened)) {}
  Lease(Lease&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)),
        opened_(std::move(other.opened_)),
        in_use_(other.in_use_) {}
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
  PlainStore(ClientContext context, Opened opened)
      : context_(std::move(context)), dialect_(opened.dialect) {
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
    std::string name = wire_key(key);
    co_return co_await read(std::move(name), false);
  }

  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override {
    wire::Request request;
    request.operation = Operation::Add;
    const std::string name = wire_key(key);
    request.key = name;
    request.number = delta;
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    const Attempt attempt =
        co_await try_once(encoded(request), sizeof(std::int64_t), reply_deadline());
    if (attempt.reply) co_return wire::load<std::int64_t>(attempt.reply->data());
    if (attempt.ended) {
      // That is how the server says "not a number"; or it went away. A look at the value tells
      // which.
      const auto value = co_await read(name, false);
      if (value && *value && !parse_counter(**value)) {
        co_return fail(ErrorKind::Invalid,
                       fmt::format("the value of key {} is not a number", log::quote(key)));
      }
    }
    co_return fail(explain(attempt, request));
  }

  Task<Result<CompareSet>> compare_set(std::string key, std::string expected,
                                       std::string desired) override {
    wire::Request request;
    request.operation = Operation::CompareSet;
    const std::string name = wire_key(key);
    request.key = name;
    request.value = expected;
    request.desired = desired;
    auto value = co_await ask(request, kBlob);
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
    co_return static_cast<std::uint8_t>((*status)[0]) ==
        static_cast<std::uint8_t>(wire::CheckReply::Ready);
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

  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys,
                                                   TimePoint deadline) override {
    const auto names = wire_keys(keys);
    wire::Request request;
    request.operation = Operation::Wait;
    request.keys.assign(names.begin(), names.end());
    for (;;) {
      auto waited = co_await wait_for(request, deadline);
      if (!waited) co_return fail(waited.error());
      std::vector<std::string> values;
      for (const std::string& name : names) {
        auto value = co_await read(name, true);
        if (!value) co_return fail(value.error());
        if (!*value) break;
        values.push_back(std::move(**value));
      }
      if (values.size() == names.size()) co_return values;
      // Deleted since; or only a queue has that name, which ends a wait too, so that this would
      // spin.
      const bool in_time = co_await pause(deadline);
      if (!in_time) co_return fail(ErrorKind::Timeout, describe_wait(request));
    }
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
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    const Attempt attempt =
        co_await try_once(encoded_write(request), sizeof(std::int64_t), reply_deadline());
    if (!attempt.reply) co_return fail(explain_unknown(attempt, request, kQueues));
    co_return Result<>();
  }

  Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) override {
    if (auto known = needs_modern("queues"); !known) co_return fail(known.error());
    const std::string name = wire_key(queue);
    wire::Request request;
    request.operation = Operation::Wait;
    request.keys.push_back(name);
    for (bool woken = false;; woken = true) {
      // At once after the wait, and so over the same connection: to the server that is the answer
      // to its wake-up.
      auto item = co_await try_queue_pop(queue);
      if (!item) co_return fail(item.error());
      if (*item) co_return std::move(**item);
      if (woken) {
        // Somebody else was faster; or it was a key of that name, which ends the wait too, so that
        // this would spin.
        const bool in_time = co_await pause(deadline);
        if (!in_time) {
          co_return fail(ErrorKind::Timeout,
                         fmt::format("timed out waiting for queue {}", log::quote(queue)));
        }
      }
      auto waited = co_await wait_for(request, deadline);
      if (!waited && waited.error().kind == ErrorKind::Timeout) {
        co_return fail(ErrorKind::Timeout,
                       fmt::format("timed out waiting for queue {}", log::quote(queue)));
      }
      if (!waited) co_return fail(waited.error());
    }
  }

  Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) override {
    if (auto known = needs_modern("queues"); !known) co_return fail(known.error());
    wire::Request request;
    request.operation = Operation::QueuePop;
    const std::string name = wire_key(queue);
    request.key = name;
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    const Attempt attempt = co_await try_once(encoded(request), kItem, reply_deadline());
    if (!attempt.reply) co_return fail(explain_unknown(attempt, request, kQueues));
    std::string_view rest = *attempt.reply;
    if (take_number(rest) == 0) co_return std::optional<std::string>();
    co_return std::optional<std::string>(take_blob(rest));
  }

  Task<Result<std::int64_t>> queue_length(std::string queue) override {
    if (auto known = needs_modern("queues"); !known) co_return fail(known.error());
    wire::Request request;
    request.operation = Operation::QueueLength;
    const std::string name = wire_key(queue);
    request.key = name;
    const auto reply = co_await ask_if_known(request, sizeof(std::int64_t), kQueues);
    if (!reply) co_return fail(reply.error());
    co_return wire::load<std::int64_t>(reply->data());
  }

  Task<Result<std::vector<std::string>>> list_keys(std::string prefix) override {
    if (auto known = needs_modern("listing keys"); !known) co_return fail(known.error());
    wire::Request request;
    request.operation = Operation::ListKeys;
    const auto reply = co_await ask_if_known(request, kList, kListing);
    if (!reply) co_return fail(reply.error());
    std::string_view rest = *reply;
    take_number(rest);
    std::vector<std::string> keys;
    const std::string wanted = wire_key(prefix);
    while (!rest.empty()) {
      const std::string_view key = take_blob(rest);
      if (key.starts_with(wanted)) keys.push_back(user_key(key));
    }
    std::sort(keys.begin(), keys.end());
    co_return keys;
  }

  // As PyTorch does it on every store without a barrier of its own, so that its processes can take
  // part.
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
      co_return fail(ErrorKind::Timeout,
                     fmt::format("timed out at barrier {}: not all {} members came",
                                 log::quote(key), member_count));
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
    co_return fail(ErrorKind::Unimplemented,
                   "the store is hosted by PyTorch, which does not describe itself");
  }

  Task<Result<bool>> drop_namespace(std::string) override {
    co_return fail(ErrorKind::Unimplemented,
                   "the store is hosted by PyTorch and has no namespaces");
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
    tell_next();
  }

 private:
  // One who waits for a connection. Lives in its frame.
  struct Place {
    Place(PlainStore& place_store, bool place_waits)
        : store(place_store), waits(place_waits), turn(store.loop()) {
      store.line_.push_back(this);
    }
    ~Place() {
      store.line_.remove(this);
      if (told && !taken) store.tell_next();  // destroyed before its turn came
    }
    PlainStore& store;
    const bool waits;
    bool told = false;
    bool taken = false;
    Oneshot<bool> turn;  // false when the deadline passed
  };

  // A connection that is being opened; counts until it is kept, or failed.
  struct Opening {
    explicit Opening(PlainStore& opening_store) : store(opening_store) {
      ++store.connection_count_;
    }
    ~Opening() {
      if (kept) return;
      --store.connection_count_;
      store.tell_next();
    }
    PlainStore& store;
    bool kept = false;
  };

  TimePoint reply_deadline() const {
    return after(context_.loop.now(), context_.options.reply_timeout);
  }

  bool has_room(bool waits) const {
    return connection_count_ - idle_.size() < (waits ? kWaitingConnectionsMax : kConnectionsMax);
  }

  // Something became free: for the first in line who may have it and does not know yet.
  void tell_next() {
    for (Place* place : line_) {
      if (place->told || !has_room(place->waits)) continue;
      place->told = true;
      place->turn.set(true);
      return;
    }
  }

  // A connection, at `deadline` at the latest. `waits`: it will be occupied until somebody else
  // does something.
  Task<Result<Lease>> acquire(TimePoint deadline, bool waits) {
    while (!has_room(waits)) {
      Place place(*this, waits);
      Timer timer(context_.loop, [&place] { place.turn.set(false); });
      timer.set(deadline);
      const bool in_time = co_await place.turn;
      place.taken = place.told;
      if (!in_time) {
        co_return fail(ErrorKind::Unavailable,
                       fmt::format("all {} connections to the store at {} are in use",
                                   waits ? kWaitingConnectionsMax : kConnectionsMax,
                                   net::describe(context_.options.endpoint)));
      }
    }
    while (!idle_.empty()) {
      Opened opened = std::move(idle_.back());
      idle_.pop_back();
      if (!opened.channel->broken()) co_return Lease(*this, std::move(opened));
      --connection_count_;
    }
    Opening opening(*this);
    const TimePoint latest = after(context_.loop.now(), context_.options.connect_timeout);
    auto opened = co_await open_connection(context_, std::min(deadline, latest));
    if (!opened) co_return fail(opened.error());
    if (opened->dialect != dialect_) {
      co_return fail(ErrorKind::Closed,
                     fmt::format("the store at {} has been replaced by one of another kind",
                                 net::describe(context_.options.endpoint)));
    }
    opening.kept = true;
    co_return Lease(*this, std::move(*opened));
  }

  // The parts of a reply that `receive` has put together.
  static std::int64_t take_number(std::string_view& rest) {
    const auto number = wire::load<std::int64_t>(rest.data());
    rest.remove_prefix(sizeof number);
    return number;
  }
  static std::string_view take_blob(std::string_view& rest) {
    const auto size = static_cast<std::size_t>(take_number(rest));
    const std::string_view blob = rest.substr(0, size);
    rest.remove_prefix(size);
    return blob;
  }

  static Task<Result<std::string>> receive_blob(Channel& channel, TimePoint deadline) {
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
  static Task<Result<std::string>> receive(Channel& channel, std::size_t reply_bytes,
                                           TimePoint deadline) {
    if (reply_bytes == kBlob) co_return co_await receive_blob(channel, deadline);
    if (reply_bytes != kItem && reply_bytes != kList)
      co_return co_await channel.receive(reply_bytes, deadline);
    auto reply = co_await channel.receive(sizeof(std::int64_t), deadline);
    if (!reply) co_return reply;
    const auto number = wire::load<std::int64_t>(reply->data());
    if (number < 0 || number > kReplyListMax)
      co_return fail(ErrorKind::Invalid, "the server's reply is malformed");
    const std::int64_t blob_count =
        reply_bytes == kItem ? std::min<std::int64_t>(number, 1) : number;
    for (std::int64_t index = 0; index < blob_count; ++index) {
      const auto blob = co_await receive_blob(channel, deadline);
      if (!blob) co_return fail(blob.error());
      wire::put_blob(*reply, *blob);
    }
    co_return reply;
  }

  std::string encoded(const wire::Request& request) const {
    std::string bytes;
    wire::encode(request, dialect_, bytes);
    return bytes;
  }

  // A request without a reply, and one with a reply behind it: when that comes, the first has been
  // done.
  std::string encoded_write(const wire::Request& request) const {
    wire::Request question;
    question.operation = Operation::NumKeys;
    return encoded(request) + encoded(question);
  }

  // Sends a request and receives its reply, over one connection.
  Task<Attempt> try_once(std::string bytes, std::size_t reply_bytes, TimePoint deadline) {
    Attempt attempt;
    for (;;) {
      auto lease = co_await acquire(deadline, false);
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

  // The connection broke, and another one may not.
  static bool is_worth_repeating(const Attempt& attempt, int attempt_count) {
    return attempt.sent && attempt.reply.error().kind == ErrorKind::Closed &&
           attempt_count < kAttemptsMax;
  }

  // Likewise, and repeats it over a new connection where that is safe.
  Task<Result<std::string>> ask(wire::Request& request, std::size_t reply_bytes) {
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

  // Likewise, for a read that not every server knows. `what` is what it lacks then.
  Task<Result<std::string>> ask_if_known(wire::Request& request, std::size_t reply_bytes,
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

  Task<Result<std::int64_t>> ask_number(wire::Request& request) {
    const auto reply = co_await ask(request, sizeof(std::int64_t));
    if (!reply) co_return fail(reply.error());
    co_return wire::load<std::int64_t>(reply->data());
  }

  // The value of a key, or nothing if it is absent. `was_present`: it was a moment ago.
  Task<Result<std::optional<std::string>>> read(std::string name, bool was_present) {
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
  Task<Result<std::optional<std::string>>> read_empty(std::string name) {
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

  Task<Result<>> write(wire::Request& request) {
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    const Attempt attempt =
        co_await try_once(encoded_write(request), sizeof(std::int64_t), reply_deadline());
    if (!attempt.reply) co_return fail(explain(attempt, request));
    co_return Result<>();
  }

  Task<Result<>> wait_for(wire::Request& request, TimePoint deadline) {
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    std::string bytes;
    wire::encode(request, dialect_, bytes);
    const TimePoint latest = std::max(deadline, after(context_.loop.now(), kAnswerTime));
    for (int attempt_count = 0;; ++attempt_count) {
      auto lease = co_await acquire(latest, true);
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
        if (dialect_ == Dialect::Modern) {
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

  // A moment later, for what can only be asked again and again. False if the deadline has come.
  Task<bool> pause(TimePoint deadline) {
    const TimePoint next = std::min(deadline, after(context_.loop.now(), kPollFirst));
    co_await sleep_until(context_.loop, next);
    co_return context_.loop.now() < deadline;
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
    if (error.kind == ErrorKind::Timeout)
      return {ErrorKind::Timeout, describe_no_reply(request, context_.options)};
    if (error.kind != ErrorKind::Closed) return error;
    if (is_repeatable(request)) {
      return {ErrorKind::Closed, fmt::format("the store at {} ended the connection at {}: {}",
                                             net::describe(context_.options.endpoint),
                                             wire::name_of(request.operation), error.message)};
    }
    return {ErrorKind::Closed,
            describe_uncertain(request, context_.options.endpoint, error.message)};
  }

  // Why there is no answer. Without a connection that has been said.
  Error explain(const Attempt& attempt, const wire::Request& request) const {
    return attempt.sent ? name_failure(attempt.reply.error(), request) : attempt.reply.error();
  }

  // A server says that it does not know an operation by ending the connection.
  Error explain_unknown(const Attempt& attempt, const wire::Request& request,
                        std::string_view what) const {
    const Error error = explain(attempt, request);
    if (!attempt.ended) return error;
    return {ErrorKind::Unimplemented,
            fmt::format("{}; the server probably does not know {}", error.message, what)};
  }

  ClientContext context_;
  const Dialect dialect_;
  std::vector<Opened> idle_;
  std::list<Place*> line_;  // operations that wait for a connection to become free
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
    const auto kind = !begun_                  ? Change::Kind::Present
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
    std::string what = fmt::format("no change of {} in time", log::quote(key_));
    const TimePoint latest = std::max(deadline, after(store_.loop().now(), kAnswerTime));
    auto polling = poll();
    const auto polled =
        co_await with_deadline(store_.loop(), latest, std::move(polling), std::move(what));
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
