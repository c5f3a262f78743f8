#include "muster/store/extension_store.h"

#include "muster/store/client_rules.h"
#include "muster/store/extension_call.h"
#include "muster/store/extension_client.h"
#include "muster/store/extension_reply.h"
#include "muster/store/extension_talk.h"
#include "muster/store/extension_watch.h"
#include "muster/wire/codec.h"

#include <optional>
#include <utility>

namespace muster::store {
namespace {

using wire::Operation;

class ExtensionStore final : public TcpStore, public ServiceClient {
 public:
  ExtensionStore(ClientContext context, std::unique_ptr<Channel> channel)
      : client_(std::move(context), std::move(channel)) {}

  Task<Result<>> set(std::string key, std::string value) override {
    wire::Request request;
    request.operation = Operation::Set;
    request.key = key;
    request.value = value;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.outcome();
  }

  Task<Result<std::string>> get(std::string key, TimePoint deadline) override {
    wire::Request request;
    request.operation = Operation::Get;
    request.blocking = deadline > now();
    request.key = key;
    ExtensionCall call(client_, request, deadline);
    co_await call;
    co_return call.value();
  }

  Task<Result<std::optional<std::string>>> try_get(std::string key) override {
    wire::Request request;
    request.operation = Operation::Get;
    request.key = key;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.optional_value();
  }

  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override {
    wire::Request request;
    request.operation = Operation::Add;
    request.key = key;
    request.number = delta;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.number();
  }

  Task<Result<CompareSet>> compare_set(std::string key, std::string expected,
                                       std::string desired) override {
    wire::Request request;
    request.operation = Operation::CompareSet;
    request.key = key;
    request.value = expected;
    request.desired = desired;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    const auto body = call.body();
    if (!body) co_return fail(body.error());
    wire::Reader reader(*body);
    CompareSet result;
    result.stored = reader.integer<std::uint8_t>() != 0;
    result.value = reader.string(body->size());
    if (!reader.finished()) co_return malformed();
    co_return result;
  }

  Task<Result<bool>> check(std::vector<std::string> keys) override {
    wire::Request request;
    request.operation = Operation::Check;
    request.keys.assign(keys.begin(), keys.end());
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.flag();
  }

  Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) override {
    const bool waits = deadline > now();
    wire::Request request;
    request.operation = waits ? Operation::Wait : Operation::Check;
    request.keys.assign(keys.begin(), keys.end());
    ExtensionCall call(client_, request, deadline);
    co_await call;
    if (waits) co_return call.outcome();
    const auto ready = call.flag();
    if (!ready) co_return fail(ready.error());
    if (!*ready) co_return call.timed_out();
    co_return Result<>();
  }

  Task<Result<bool>> delete_key(std::string key) override {
    wire::Request request;
    request.operation = Operation::DeleteKey;
    request.key = key;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.flag();
  }

  Task<Result<std::int64_t>> num_keys() override {
    wire::Request request;
    request.operation = Operation::NumKeys;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.number();
  }

  Task<Result<>> append(std::string key, std::string data) override {
    wire::Request request;
    request.operation = Operation::Append;
    request.key = key;
    request.value = data;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.outcome();
  }

  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys,
                                                   TimePoint deadline) override {
    wire::Request request;
    request.operation = Operation::MultiGet;
    request.keys.assign(keys.begin(), keys.end());
    // Again if a key was deleted while others were waited for.
    for (;;) {
      request.blocking = deadline > now();
      ExtensionCall call(client_, request, deadline);
      co_await call;
      const auto body = call.body();
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
      if (!request.blocking) co_return call.timed_out();
    }
  }

  Task<Result<>> multi_set(std::vector<KeyValue> pairs) override {
    wire::Request request;
    request.operation = Operation::MultiSet;
    for (const KeyValue& pair : pairs) {
      request.keys.push_back(pair.key);
      request.values.push_back(pair.value);
    }
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.outcome();
  }

  Task<Result<>> queue_push(std::string queue, std::string item) override {
    wire::Request request;
    request.operation = Operation::QueuePush;
    request.key = queue;
    request.value = item;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.outcome();
  }

  Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) override {
    wire::Request request;
    request.operation = Operation::QueuePop;
    request.blocking = deadline > now();
    request.key = queue;
    ExtensionCall call(client_, request, deadline);
    co_await call;
    co_return call.value();
  }

  Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) override {
    wire::Request request;
    request.operation = Operation::QueuePop;
    request.key = queue;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.optional_value();
  }

  Task<Result<std::int64_t>> queue_length(std::string queue) override {
    wire::Request request;
    request.operation = Operation::QueueLength;
    request.key = queue;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.number();
  }

  Task<Result<std::vector<std::string>>> list_keys(std::string prefix) override {
    wire::Request request;
    request.operation = Operation::ListKeys;
    request.key = prefix;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    const auto body = call.body();
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
    request.key = key;
    request.number = member_count;
    ExtensionCall call(client_, request, deadline);
    co_await call;
    co_return call.outcome();
  }

  Task<Result<std::unique_ptr<Watch>>> watch(std::string key, WatchScope scope) override {
    auto ready = co_await client_.connected(after(now(), client_.options().connect_timeout));
    if (!ready) co_return fail(ready.error());
    auto watch = std::make_unique<ExtensionWatch>(client_, key, scope);
    Timer timer(client_.loop(), [&] {
      wire::Request request;
      request.operation = Operation::WatchKey;
      watch->end({ErrorKind::Timeout, describe_no_reply(request, client_.options())});
    });
    timer.set(after(now(), client_.options().reply_timeout));
    auto started = co_await watch->started();
    if (!started) co_return fail(started.error());
    std::unique_ptr<Watch> result = std::move(watch);
    co_return result;
  }

  wire::Dialect dialect() const override { return wire::Dialect::Extension; }

  Task<Result<>> count_as_worker() override {
    const auto count = co_await add_to_workers(1);
    if (!count) co_return fail(count.error());
    co_return Result<>();
  }

  Task<Result<std::int64_t>> worker_count() override { return add_to_workers(0); }

  Task<Result<>> ping() override {
    wire::Request request;
    request.operation = Operation::Ping;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    co_return call.outcome();
  }

  Task<Result<std::vector<std::pair<std::string, std::string>>>> info() override {
    wire::Request request;
    request.operation = Operation::Info;
    ExtensionCall call(client_, request, kNever);
    co_await call;
    const auto body = call.body();
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
    ExtensionCall call(client_, request, ExtensionCall::Verbatim());
    co_await call;
    co_return call.flag();
  }

  ServiceClient* services() override { return this; }

  Task<Result<std::unique_ptr<Talk>>> open(ServiceId service, std::string message) override {
    if (auto allowed = check_message(message); !allowed) co_return fail(allowed.error());
    auto ready = co_await client_.connected(after(now(), client_.options().connect_timeout));
    if (!ready) co_return fail(ready.error());
    std::unique_ptr<Talk> talk = std::make_unique<ExtensionTalk>(client_, service, message);
    co_return talk;
  }

 private:
  TimePoint now() const { return client_.now(); }

  Task<Result<std::int64_t>> add_to_workers(std::int64_t delta) {
    wire::Request request;
    request.operation = Operation::Add;
    request.key = wire::kWorkerCountKey;
    request.number = delta;
    ExtensionCall call(client_, request, ExtensionCall::Verbatim());
    co_await call;
    co_return call.number();
  }

  ExtensionClient client_;
};

}  // namespace

std::unique_ptr<TcpStore> make_extension_store(ClientContext context,
                                               std::unique_ptr<Channel> channel) {
  return std::make_unique<ExtensionStore>(std::move(context), std::move(channel));
}

}  // namespace muster::store
