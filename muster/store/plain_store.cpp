#include "muster/store/plain_store.h"

#include "muster/base/log.h"
#include "muster/store/client_rules.h"
#include "muster/store/plain_client.h"
#include "muster/store/polling_watch.h"
#include "muster/store/table.h"
#include "muster/wire/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace muster::store {
namespace {

using wire::Dialect;
using wire::Operation;

constexpr std::string_view kQueues = "queues (PyTorch 2.8 or later with its libuv server has them)";
constexpr std::string_view kListing = "listing keys (PyTorch 2.10 or later has it)";

class PlainStore final : public TcpStore {
 public:
  PlainStore(ClientContext context, Opened opened)
      : client_(std::move(context), std::move(opened)) {}

  Task<Result<>> set(std::string key, std::string value) override {
    wire::Request request;
    request.operation = Operation::Set;
    const std::string name = wire_key(key);
    request.key = name;
    request.value = value;
    co_return co_await client_.write(request);
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
    co_return co_await client_.read(std::move(name), false);
  }

  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override {
    wire::Request request;
    request.operation = Operation::Add;
    const std::string name = wire_key(key);
    request.key = name;
    request.number = delta;
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    const PlainClient::Attempt attempt = co_await client_.try_once(
        client_.encoded(request), sizeof(std::int64_t), client_.reply_deadline());
    if (attempt.reply) co_return wire::load<std::int64_t>(attempt.reply->data());
    if (attempt.ended) {
      // That is how the server says "not a number"; or it went away. A look at the value tells
      // which.
      const auto value = co_await client_.read(name, false);
      if (value && *value && !parse_counter(**value)) {
        co_return fail(ErrorKind::Invalid,
                       fmt::format("the value of key {} is not a number", log::quote(key)));
      }
    }
    co_return fail(client_.explain(attempt, request));
  }

  Task<Result<CompareSet>> compare_set(std::string key, std::string expected,
                                       std::string desired) override {
    wire::Request request;
    request.operation = Operation::CompareSet;
    const std::string name = wire_key(key);
    request.key = name;
    request.value = expected;
    request.desired = desired;
    auto value = co_await client_.ask(request, kBlob);
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
    const auto status = co_await client_.ask(request, 1);
    if (!status) co_return fail(status.error());
    co_return static_cast<std::uint8_t>((*status)[0]) ==
        static_cast<std::uint8_t>(wire::CheckReply::Ready);
  }

  Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) override {
    const auto names = wire_keys(keys);
    wire::Request request;
    request.operation = Operation::Wait;
    request.keys.assign(names.begin(), names.end());
    co_return co_await client_.wait_for(request, deadline);
  }

  Task<Result<bool>> delete_key(std::string key) override {
    wire::Request request;
    request.operation = Operation::DeleteKey;
    const std::string name = wire_key(key);
    request.key = name;
    const auto count = co_await client_.ask_number(request);
    if (!count) co_return fail(count.error());
    co_return *count > 0;
  }

  Task<Result<std::int64_t>> num_keys() override {
    wire::Request request;
    request.operation = Operation::NumKeys;
    co_return co_await client_.ask_number(request);
  }

  Task<Result<>> append(std::string key, std::string data) override {
    if (dialect() == Dialect::Modern) {
      wire::Request request;
      request.operation = Operation::Append;
      const std::string name = wire_key(key);
      request.key = name;
      request.value = data;
      co_return co_await client_.write(request);
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
      auto waited = co_await client_.wait_for(request, deadline);
      if (!waited) co_return fail(waited.error());
      std::vector<std::string> values;
      for (const std::string& name : names) {
        auto value = co_await client_.read(name, true);
        if (!value) co_return fail(value.error());
        if (!*value) break;
        values.push_back(std::move(**value));
      }
      if (values.size() == names.size()) co_return values;
      // Deleted since; or only a queue has that name, which ends a wait too, so that this would
      // spin.
      const bool in_time = co_await client_.pause(deadline);
      if (!in_time) co_return fail(ErrorKind::Timeout, describe_wait(request));
    }
  }

  Task<Result<>> multi_set(std::vector<KeyValue> pairs) override {
    if (dialect() == Dialect::Modern) {
      std::vector<std::string> names;
      names.reserve(pairs.size());
      wire::Request request;
      request.operation = Operation::MultiSet;
      for (const KeyValue& pair : pairs) {
        names.push_back(wire_key(pair.key));
        request.keys.push_back(names.back());
        request.values.push_back(pair.value);
      }
      co_return co_await client_.write(request);
    }
    for (KeyValue& pair : pairs) {
      auto done = co_await set(std::move(pair.key), std::move(pair.value));
      if (!done) co_return done;
    }
    co_return Result<>();
  }

  Task<Result<>> queue_push(std::string queue, std::string item) override {
    if (auto known = client_.needs_modern("queues"); !known) co_return known;
    wire::Request request;
    request.operation = Operation::QueuePush;
    const std::string name = wire_key(queue);
    request.key = name;
    request.value = item;
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    const PlainClient::Attempt attempt = co_await client_.try_once(
        client_.encoded_write(request), sizeof(std::int64_t), client_.reply_deadline());
    if (!attempt.reply) co_return fail(client_.explain_unknown(attempt, request, kQueues));
    co_return Result<>();
  }

  Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) override {
    if (auto known = client_.needs_modern("queues"); !known) co_return fail(known.error());
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
        const bool in_time = co_await client_.pause(deadline);
        if (!in_time) {
          co_return fail(ErrorKind::Timeout,
                         fmt::format("timed out waiting for queue {}", log::quote(queue)));
        }
      }
      auto waited = co_await client_.wait_for(request, deadline);
      if (!waited && waited.error().kind == ErrorKind::Timeout) {
        co_return fail(ErrorKind::Timeout,
                       fmt::format("timed out waiting for queue {}", log::quote(queue)));
      }
      if (!waited) co_return fail(waited.error());
    }
  }

  Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) override {
    if (auto known = client_.needs_modern("queues"); !known) co_return fail(known.error());
    wire::Request request;
    request.operation = Operation::QueuePop;
    const std::string name = wire_key(queue);
    request.key = name;
    if (auto allowed = check_limits(request); !allowed) co_return fail(allowed.error());
    const PlainClient::Attempt attempt =
        co_await client_.try_once(client_.encoded(request), kItem, client_.reply_deadline());
    if (!attempt.reply) co_return fail(client_.explain_unknown(attempt, request, kQueues));
    std::string_view rest = *attempt.reply;
    if (take_number(rest) == 0) co_return std::optional<std::string>();
    co_return std::optional<std::string>(take_blob(rest));
  }

  Task<Result<std::int64_t>> queue_length(std::string queue) override {
    if (auto known = client_.needs_modern("queues"); !known) co_return fail(known.error());
    wire::Request request;
    request.operation = Operation::QueueLength;
    const std::string name = wire_key(queue);
    request.key = name;
    const auto reply = co_await client_.ask_if_known(request, sizeof(std::int64_t), kQueues);
    if (!reply) co_return fail(reply.error());
    co_return wire::load<std::int64_t>(reply->data());
  }

  Task<Result<std::vector<std::string>>> list_keys(std::string prefix) override {
    if (auto known = client_.needs_modern("listing keys"); !known) co_return fail(known.error());
    wire::Request request;
    request.operation = Operation::ListKeys;
    const auto reply = co_await client_.ask_if_known(request, kList, kListing);
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
      if (auto known = client_.needs_modern("watching a prefix"); !known)
        co_return fail(known.error());
    }
    std::unique_ptr<Watch> result =
        std::make_unique<PollingWatch>(client_.loop(), *this, std::move(key), scope);
    co_return result;
  }

  Dialect dialect() const override { return client_.dialect(); }

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

  ServiceClient* services() override { return nullptr; }

  Task<Result<>> count_as_worker() override {
    const auto count = co_await add_to_workers(1);
    if (!count) co_return fail(count.error());
    co_return Result<>();
  }

  Task<Result<std::int64_t>> worker_count() override { return add_to_workers(0); }

 private:
  Task<Result<std::int64_t>> add_to_workers(std::int64_t delta) {
    wire::Request request;
    request.operation = Operation::Add;
    request.key = wire::kWorkerCountKey;
    request.number = delta;
    co_return co_await client_.ask_number(request);
  }

  PlainClient client_;
};

}  // namespace

std::unique_ptr<TcpStore> make_plain_store(ClientContext context, Opened opened) {
  return std::make_unique<PlainStore>(std::move(context), std::move(opened));
}

}  // namespace muster::store
