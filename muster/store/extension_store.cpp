#include "muster/store/extension_store.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/store/client_rules.h"
#include "muster/store/extension_link.h"
#include "muster/wire/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <list>
#include <optional>

namespace muster::store {
namespace {

using wire::Operation;

// The outcome of one attempt.
struct Answer {
  bool lost = false;  // no reply: the connection broke
  bool sent = false;  // then: the request may have reached the server
  std::string reason;
  Result<std::string> body = fail(ErrorKind::Closed, "");
};

tl::unexpected<Error> malformed() {
  return fail(ErrorKind::Invalid, "the server's reply is malformed; is it a newer version?");
}

// The reply to a get or a pop: a value, or that there is none.
Result<std::optional<std::string>> decode_optional(std::string_view body) {
  wire::Reader reader(body);
  std::optional<std::string> value;
  if (reader.integer<std::uint8_t>() != 0) value = reader.string(body.size());
  if (!reader.finished()) return malformed();
  return value;
}

class ExtensionStore;

// One request and its reply. Lives in the frame of the operation, which withdraws it by being
// destroyed.
class PendingCall final : public ReplySink {
 public:
  PendingCall(ExtensionStore& store, wire::Request& request, bool waits);
  ~PendingCall() override;

  void on_reply(const wire::Reply& reply) override {
    Answer answer;
    if (auto error = wire::error_of(reply)) {
      answer.body = fail(std::move(*error));
    } else {
      answer.body = std::string(reply.body);
    }
    link_->forget(id_, false);
    answered_ = true;
    if (is_pop()) item_ = item_of(reply);
    answer_.set(std::move(answer));
  }

  void on_lost(const std::string& reason, bool sent) override {
    answered_ = true;
    Answer answer;
    answer.lost = true;
    answer.sent = sent;
    answer.reason = reason;
    answer_.set(std::move(answer));
  }

  // Its time is over.
  void expire() {
    Answer answer;
    answer.body = fail(ErrorKind::Timeout, "");
    answer_.set(std::move(answer));
  }

  // Its time is over, but the server may be sending what it waited for: asks to be told. False if
  // that was done before.
  bool take_back() {
    if (taken_back_ || answered_) return false;
    taken_back_ = true;
    link_->cancel(id_);
    return true;
  }

  Oneshot<Answer>& answer() { return answer_; }
  // The operation has the answer, and with it the item of a pop.
  void delivered() { item_.reset(); }

  // What a reply brings to a pop.
  static std::optional<std::string> item_of(const wire::Reply& reply) {
    if (wire::error_of(reply)) return std::nullopt;
    return decode_optional(reply.body).value_or(std::nullopt);
  }

 private:
  bool is_pop() const { return !queue_.empty(); }

  ExtensionStore& store_;
  Oneshot<Answer> answer_;
  ExtensionLink* const
      link_;  // gone once we are answered: a link that breaks answers everybody first
  std::uint32_t id_ = 0;
  const bool waits_;
  const std::string queue_;          // of a pop; else empty
  std::optional<std::string> item_;  // that came, and is not delivered yet
  bool answered_ = false;
  bool taken_back_ = false;
};

// A pop whose caller is gone. The server may have given it an item before it learned that; such an
// item goes back to the end of its queue, for nothing may be lost with a caller who no longer wants
// it. Owned by the store.
class AbandonedPop final : public ReplySink {
 public:
  AbandonedPop(ExtensionStore& store, ExtensionLink& link, std::uint32_t id, std::string queue)
      : store_(store), link_(link), id_(id), queue_(std::move(queue)) {}
  void on_reply(const wire::Reply& reply) override;
  void on_lost(const std::string& reason, bool sent) override;

 private:
  ExtensionStore& store_;
  ExtensionLink& link_;
  const std::uint32_t id_;
  const std::string queue_;
};

bool is_state(const Change& change) {
  return change.kind == Change::Kind::Present || change.kind == Change::Kind::Absent;
}

// A watch survives lost connections: it subscribes again and begins anew with the present state.
class ExtensionWatch final : public Watch, public ReplySink {
 public:
  ExtensionWatch(ExtensionStore& store, std::string key, Store::WatchScope scope);
  ~ExtensionWatch() override;

  Task<Result<Change>> next(TimePoint deadline) override;

  // Sends the subscription over the present link. `started` is told when the server has confirmed
  // or refused it.
  void subscribe();
  Oneshot<Result<>>& started() { return started_; }

  void on_reply(const wire::Reply& reply) override;
  void on_lost(const std::string& reason, bool sent) override;
  // The store gave up reconnecting.
  void end(Error error);

 private:
  void wake();

  ExtensionStore& store_;
  const std::string wire_key_;
  const Store::WatchScope scope_;
  // Owned by the store, which drops it when it breaks; a watch lives on.
  std::weak_ptr<ExtensionLink> link_;
  std::uint32_t id_ = 0;
  std::deque<Change> changes_;
  std::size_t event_count_ = 0;  // of `changes_`, those that are no state
  std::optional<Error> ended_;
  Oneshot<Result<>> started_;
  Oneshot<bool>* waiter_ = nullptr;
};

class ExtensionStore final : public TcpStore {
 public:
  ExtensionStore(ClientContext context, std::unique_ptr<Channel> channel)
      : context_(std::move(context)) {
    attach(std::move(channel));
  }

  Task<Result<>> set(std::string key, std::string value) override {
    wire::Request request;
    request.operation = Operation::Set;
    const std::string name = wire_key(key);
    request.key = name;
    request.value = value;
    co_return outcome(co_await call(request, kNever));
  }

  Task<Result<std::string>> get(std::string key, TimePoint deadline) override {
    wire::Request request;
    request.operation = Operation::Get;
    request.blocking = deadline > now();
    const std::string name = wire_key(key);
    request.key = name;
    auto body = co_await call(request, deadline);
    co_return awaited(std::move(body), request);
  }

  Task<Result<std::optional<std::string>>> try_get(std::string key) override {
    wire::Request request;
    request.operation = Operation::Get;
    const std::string name = wire_key(key);
    request.key = name;
    auto body = co_await call(request, kNever);
    if (!body) co_return fail(body.error());
    co_return decode_optional(*body);
  }

  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override {
    wire::Request request;
    request.operation = Operation::Add;
    const std::string name = wire_key(key);
    request.key = name;
    request.number = delta;
    co_return number(co_await call(request, kNever));
  }

  Task<Result<CompareSet>> compare_set(std::string key, std::string expected,
                                       std::string desired) override {
    wire::Request request;
    request.operation = Operation::CompareSet;
    const std::string name = wire_key(key);
    request.key = name;
    request.value = expected;
    request.desired = desired;
    auto body = co_await call(request, kNever);
    if (!body) co_return fail(body.error());
    wire::Reader reader(*body);
    CompareSet result;
    result.stored = reader.integer<std::uint8_t>() != 0;
    result.value = reader.string(body->size());
    if (!reader.finished()) co_return malformed();
    co_return result;
  }

  Task<Result<bool>> check(std::vector<std::string> keys) override {
    const auto names = wire_keys(keys);
    wire::Request request;
    request.operation = Operation::Check;
    request.keys.assign(names.begin(), names.end());
    co_return flag(co_await call(request, kNever));
  }

  Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) override {
    const auto names = wire_keys(keys);
    const bool waits = deadline > now();
    wire::Request request;
    request.operation = waits ? Operation::Wait : Operation::Check;
    request.keys.assign(names.begin(), names.end());
    const auto body = co_await call(request, deadline);
    if (waits) co_return outcome(body);
    const auto ready = flag(body);
    if (!ready) co_return fail(ready.error());
    if (!*ready) co_return fail(ErrorKind::Timeout, describe_wait(request));
    co_return Result<>();
  }

  Task<Result<bool>> delete_key(std::string key) override {
    wire::Request request;
    request.operation = Operation::DeleteKey;
    const std::string name = wire_key(key);
    request.key = name;
    co_return flag(co_await call(request, kNever));
  }

  Task<Result<std::int64_t>> num_keys() override {
    wire::Request request;
    request.operation = Operation::NumKeys;
    co_return number(co_await call(request, kNever));
  }

  Task<Result<>> append(std::string key, std::string data) override {
    wire::Request request;
    request.operation = Operation::Append;
    const std::string name = wire_key(key);
    request.key = name;
    request.value = data;
    co_return outcome(co_await call(request, kNever));
  }

  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys,
                                                   TimePoint deadline) override {
    const auto names = wire_keys(keys);
    wire::Request request;
    request.operation = Operation::MultiGet;
    request.keys.assign(names.begin(), names.end());
    // Again if a key was deleted while others were waited for.
    for (;;) {
      request.blocking = deadline > now();
      const auto body = co_await call(request, deadline);
      if (!body) co_return fail(body.error());
      wire::Reader reader(*body);
      std::vector<std::string> values;
      for (std::size_t index = 0; index < keys.size() && reader.integer<std::uint8_t>() != 0;
           ++index) {
        values.emplace_back(reader.string(body->size()));
      }
      const bool complete = values.size() == keys.size();
      if (reader.failed() || (complete && !reader.finished())) co_return malformed();
      if (complete) co_return values;
      if (!request.blocking) co_return fail(ErrorKind::Timeout, describe_wait(request));
    }
  }

  Task<Result<>> multi_set(std::vector<KeyValue> pairs) override {
    std::vector<std::string> names;
    names.reserve(pairs.size());
    wire::Request request;
    request.operation = Operation::MultiSet;
    for (const KeyValue& pair : pairs) {
      names.push_back(wire_key(pair.key));
      request.keys.push_back(names.back());
      request.values.push_back(pair.value);
    }
    co_return outcome(co_await call(request, kNever));
  }

  Task<Result<>> queue_push(std::string queue, std::string item) override {
    wire::Request request;
    request.operation = Operation::QueuePush;
    const std::string name = wire_key(queue);
    request.key = name;
    request.value = item;
    co_return outcome(co_await call(request, kNever));
  }

  Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) override {
    wire::Request request;
    request.operation = Operation::QueuePop;
    request.blocking = deadline > now();
    const std::string name = wire_key(queue);
    request.key = name;
    auto body = co_await call(request, deadline);
    co_return awaited(std::move(body), request);
  }

  Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) override {
    wire::Request request;
    request.operation = Operation::QueuePop;
    const std::string name = wire_key(queue);
    request.key = name;
    auto body = co_await call(request, kNever);
    if (!body) co_return fail(body.error());
    co_return decode_optional(*body);
  }

  Task<Result<std::int64_t>> queue_length(std::string queue) override {
    wire::Request request;
    request.operation = Operation::QueueLength;
    const std::string name = wire_key(queue);
    request.key = name;
    co_return number(co_await call(request, kNever));
  }

  Task<Result<std::vector<std::string>>> list_keys(std::string prefix) override {
    wire::Request request;
    request.operation = Operation::ListKeys;
    const std::string name = wire_key(prefix);
    request.key = name;
    auto body = co_await call(request, kNever);
    if (!body) co_return fail(body.error());
    wire::Reader reader(*body);
    const auto count = reader.integer<std::uint32_t>();
    std::vector<std::string> keys;
    for (std::uint32_t index = 0; index < count && !reader.failed(); ++index) {
      keys.push_back(user_key(reader.string(body->size())));
    }
    if (!reader.finished()) co_return malformed();
    co_return keys;
  }

  Task<Result<>> barrier(std::string key, std::int64_t member_count, TimePoint deadline) override {
    wire::Request request;
    request.operation = Operation::Barrier;
    const std::string name = wire_key(key);
    request.key = name;
    request.number = member_count;
    co_return outcome(co_await call(request, deadline));
  }

  Task<Result<std::unique_ptr<Watch>>> watch(std::string key, WatchScope scope) override {
    auto ready = co_await connected(after(now(), context_.options.connect_timeout));
    if (!ready) co_return fail(ready.error());
    auto watch = std::make_unique<ExtensionWatch>(*this, std::move(key), scope);
    watch->subscribe();
    Timer timer(context_.loop, [&] {
      wire::Request request;
      request.operation = Operation::WatchKey;
      watch->end({ErrorKind::Timeout, describe_no_reply(request, context_.options)});
    });
    timer.set(after(now(), context_.options.reply_timeout));
    auto started = co_await watch->started();
    if (!started) co_return fail(started.error());
    std::unique_ptr<Watch> result = std::move(watch);
    co_return result;
  }

  wire::Dialect dialect() const override { return wire::Dialect::Extension; }

  Task<Result<>> count_as_worker() override {
    wire::Request request;
    request.operation = Operation::Add;
    request.key = wire::kWorkerCountKey;
    request.number = 1;
    co_return outcome(co_await call(request, kNever));
  }

  Task<Result<>> ping() override {
    wire::Request request;
    request.operation = Operation::Ping;
    co_return outcome(co_await call(request, kNever));
  }

  Task<Result<std::vector<std::pair<std::string, std::string>>>> info() override {
    wire::Request request;
    request.operation = Operation::Info;
    auto body = co_await call(request, kNever);
    if (!body) co_return fail(body.error());
    wire::Reader reader(*body);
    const auto count = reader.integer<std::uint32_t>();
    std::vector<std::pair<std::string, std::string>> lines;
    for (std::uint32_t index = 0; index < count && !reader.failed(); ++index) {
      std::string name(reader.string(body->size()));
      std::string value(reader.string(body->size()));
      lines.emplace_back(std::move(name), std::move(value));
    }
    if (!reader.finished()) co_return malformed();
    co_return lines;
  }

  Task<Result<bool>> drop_namespace(std::string name) override {
    wire::Request request;
    request.operation = Operation::DropNamespace;
    request.key = name;
    co_return flag(co_await call(request, kNever));
  }

  Loop& loop() { return context_.loop; }
  TimePoint now() const { return context_.loop.now(); }
  std::weak_ptr<ExtensionLink> link() const { return link_; }
  // The caller of a pop is gone: takes care of what the server may be sending.
  void abandon_pop(ExtensionLink& link, std::uint32_t id, std::string queue) {
    auto pop = std::make_unique<AbandonedPop>(*this, link, id, std::move(queue));
    if (link.hand_over(id, *pop)) {
      abandoned_.push_back(std::move(pop));
    } else {
      link.forget(id, false);  // it broke and has not told anybody yet; the call must not be told
    }
  }
  void forget_pop(AbandonedPop& pop) {
    abandoned_.remove_if([&](const auto& entry) { return entry.get() == &pop; });
  }
  // An item that nobody wants any more.
  void push_back(std::string_view queue, std::string_view item) {
    if (link_ == nullptr || link_->broken()) return;
    wire::Request request;
    request.operation = Operation::QueuePush;
    request.key = queue;
    request.value = item;
    link_->tell(request);
  }

  void enlist(ExtensionWatch& watch) { watches_.push_back(&watch); }
  void dismiss(ExtensionWatch& watch) { watches_.remove(&watch); }

 private:
  // Sends the request, waits for the reply, and repeats it over a new connection where that is
  // safe. For a request that waits on the server the deadline is the caller's, else it is the reply
  // timeout. With a deadline that has passed, a lost connection is not waited for either. The
  // request lives in the caller's frame, which outlives this one.
  Task<Result<std::string>> call(wire::Request& request, TimePoint deadline) {
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    const bool waits = request.blocking || request.operation == Operation::Wait ||
                       request.operation == Operation::Barrier;
    TimePoint connect_deadline = std::max(deadline, now());
    if (!waits) {
      deadline = after(now(), context_.options.reply_timeout);
      connect_deadline = std::min(connect_deadline, deadline);
    }
    for (;;) {
      if (link_ == nullptr || link_->broken()) {
        auto ready = co_await connected(connect_deadline);
        if (!ready) co_return fail(ready.error());
      }
      PendingCall pending(*this, request, waits);
      Timer timer(context_.loop, [&] {
        // A pop may have an item on the way to it.
        if (waits && request.operation == Operation::QueuePop && pending.take_back()) {
          timer.set(after(now(), context_.options.reply_timeout));
        } else {
          pending.expire();
        }
      });
      timer.set(deadline);
      Answer answer = co_await pending.answer();
      pending.delivered();
      if (!answer.lost) {
        const bool over = !answer.body && (answer.body.error().kind == ErrorKind::Timeout ||
                                           answer.body.error().kind == ErrorKind::Cancelled);
        if (!over) co_return std::move(answer.body);
        co_return fail(ErrorKind::Timeout, waits ? describe_wait(request)
                                                 : describe_no_reply(request, context_.options));
      }
      if (answer.sent && !is_repeatable(request)) {
        co_return fail(ErrorKind::Closed,
                       describe_uncertain(request, context_.options.endpoint, answer.reason));
      }
    }
  }

  // Waits until there is a connection, at most until `deadline`.
  Task<Result<>> connected(TimePoint deadline) {
    if (link_ != nullptr && !link_->broken()) co_return Result<>();
    if (given_up_) {
      // The last reconnecting failed; this operation starts another round.
      given_up_.reset();
      start_reconnecting();
      // It may be over already, with nobody told: we are not among the waiting yet.
      if (given_up_) co_return fail(*given_up_);
      if (link_ != nullptr) co_return Result<>();
    }
    Oneshot<Result<>> ready(context_.loop);
    Timer timer(context_.loop, [&] {
      ready.set(fail(ErrorKind::Unavailable,
                     fmt::format("the connection to the store at {} is lost and not restored yet",
                                 net::describe(context_.options.endpoint))));
    });
    timer.set(deadline);
    waiting_.push_back(&ready);
    struct Withdraw {
      std::list<Oneshot<Result<>>*>& list;
      Oneshot<Result<>>* entry;
      ~Withdraw() { list.remove(entry); }
    };
    const Withdraw withdraw{waiting_, &ready};
    co_return co_await ready;
  }

  void attach(std::unique_ptr<Channel> channel) {
    link_ = std::make_shared<ExtensionLink>(context_.loop, channel->release(), [this] { lost(); });
    for (ExtensionWatch* watch : watches_) watch->subscribe();
    for (Oneshot<Result<>>* waiting : waiting_) waiting->set(Result<>());
  }

  void lost() {
    link_.reset();
    start_reconnecting();
  }

  void start_reconnecting() { scope_.start(reconnect()); }

  Task<void> reconnect() {
    const TimePoint deadline = after(now(), context_.options.connect_timeout);
    auto opened = co_await open_connection(context_, deadline);
    if (opened && opened->dialect != wire::Dialect::Extension) {
      opened = fail(ErrorKind::Closed, fmt::format("the store at {} is no longer a Muster server",
                                                   net::describe(context_.options.endpoint)));
    }
    if (opened) {
      attach(std::move(opened->channel));
      co_return;
    }
    given_up_ = opened.error();
    for (Oneshot<Result<>>* waiting : waiting_) waiting->set(fail(opened.error()));
    const auto watches = watches_;
    for (ExtensionWatch* watch : watches) watch->end(opened.error());
  }

  static Result<> outcome(const Result<std::string>& body) {
    if (!body) return fail(body.error());
    return {};
  }
  static Result<std::int64_t> number(const Result<std::string>& body) {
    if (!body) return fail(body.error());
    wire::Reader reader(*body);
    const auto value = reader.integer<std::int64_t>();
    if (!reader.finished()) return malformed();
    return value;
  }
  static Result<bool> flag(const Result<std::string>& body) {
    if (!body) return fail(body.error());
    wire::Reader reader(*body);
    const bool value = reader.integer<std::uint8_t>() != 0;
    if (!reader.finished()) return malformed();
    return value;
  }
  // What a get or a pop brought. One whose deadline had passed asked without waiting, so there may
  // be nothing.
  static Result<std::string> awaited(Result<std::string> body, const wire::Request& request) {
    if (!body) return fail(body.error());
    constexpr std::size_t kPrefixBytes = sizeof(std::uint8_t) + sizeof(std::uint32_t);
    wire::Reader reader(*body);
    if (reader.integer<std::uint8_t>() != 0) {
      reader.string(body->size());
      if (!reader.finished()) return malformed();
      body->erase(0, kPrefixBytes);  // what is left is the value; cheaper than another string
      return body;
    }
    if (request.blocking || !reader.finished()) return malformed();
    return fail(ErrorKind::Timeout, describe_wait(request));
  }

  ClientContext context_;
  // Shared with calls under way, weakly: they may be destroyed after the link broke.
  std::shared_ptr<ExtensionLink> link_;
  std::list<Oneshot<Result<>>*> waiting_;  // operations that need a connection
  std::list<ExtensionWatch*> watches_;
  std::list<std::unique_ptr<AbandonedPop>> abandoned_;
  std::optional<Error> given_up_;  // why the last reconnecting ended without success
  TaskScope scope_;
};

PendingCall::PendingCall(ExtensionStore& store, wire::Request& request, bool waits)
    : store_(store),
      answer_(store.loop()),
      link_(store.link().lock().get()),
      waits_(waits),
      queue_(request.operation == Operation::QueuePop ? request.key : std::string_view()) {
  id_ = link_->send(request, *this);
}

PendingCall::~PendingCall() {
  if (item_) store_.push_back(queue_, *item_);
  if (answered_) return;
  if (!is_pop()) {
    link_->forget(id_, waits_);
    return;
  }
  store_.abandon_pop(*link_, id_, queue_);
  if (waits_ && !taken_back_) link_->cancel(id_);
}

void AbandonedPop::on_reply(const wire::Reply& reply) {
  link_.forget(id_, false);
  if (const auto item = PendingCall::item_of(reply)) store_.push_back(queue_, *item);
  store_.forget_pop(*this);  // destroys us
}

void AbandonedPop::on_lost(const std::string&, bool) { store_.forget_pop(*this); }

ExtensionWatch::ExtensionWatch(ExtensionStore& store, std::string key, Store::WatchScope scope)
    : store_(store), wire_key_(wire_key(key)), scope_(scope), started_(store.loop()) {
  store_.enlist(*this);
}

ExtensionWatch::~ExtensionWatch() {
  store_.dismiss(*this);
  if (const auto link = link_.lock(); link && id_ != 0) link->forget(id_, true);
}

void ExtensionWatch::subscribe() {
  if (ended_) return;
  link_ = store_.link();
  wire::Request request;
  request.operation =
      scope_ == Store::WatchScope::Key ? Operation::WatchKey : Operation::WatchPrefix;
  request.key = wire_key_;
  if (auto allowed = check_limits(request); !allowed) return end(allowed.error());
  id_ = link_.lock()->send(request, *this);
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
    Oneshot<bool> came(store_.loop());
    Timer timer(store_.loop(), [&came] { came.set(false); });
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

}  // namespace

std::unique_ptr<TcpStore> make_extension_store(ClientContext context,
                                               std::unique_ptr<Channel> channel) {
  return std::make_unique<ExtensionStore>(std::move(context), std::move(channel));
}

}  // namespace muster::store
