#include "bench/muster_driver.h"

#include "bench/connection.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/net/epoll_loop.h"
#include "muster/net/tcp.h"
#include "muster/net/transport.h"
#include "muster/store/tcp_store.h"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::bench {
namespace {

using store::TcpStore;

// What every run of the client needs, in the order in which it is built.
struct Client {
  net::EpollLoop loop;
  net::TcpTransport transport{loop};
  Random random = Random::from_system();
};

store::TcpStoreOptions options_of(const Workload& workload) {
  store::TcpStoreOptions options;
  options.endpoint.host = "127.0.0.1";
  options.endpoint.port = workload.port;
  options.connect_timeout = kPatience;
  options.reply_timeout = kPatience;
  return options;
}

class Run {
 public:
  // At most `turns_max` operations for each request in flight. The transport is the client's or one
  // in front of it.
  Run(Client& client, net::Transport& transport, const Workload& workload, std::uint64_t turns_max)
      : client_(client),
        transport_(transport),
        workload_(workload),
        turns_max_(turns_max),
        values_{std::string(workload.value_bytes, 'a'), std::string(workload.value_bytes, 'b')} {}

  Task<Result<>> connect(int store_count) {
    for (int i = 0; i < store_count; ++i) {
      auto options = options_of(workload_);
      auto connected = co_await store::connect_tcp_store(client_.loop, transport_, client_.random,
                                                         std::move(options));
      if (!connected) co_return fail(std::move(connected.error()));
      stores_.push_back(std::move(*connected));
    }
    co_return Result<>();
  }

  // Gives each client's key the value that get reads, add counts from and compare_set expects
  // first.
  Task<Result<>> prepare() {
    for (std::size_t i = 0; i < stores_.size(); ++i) {
      std::string key = key_of(static_cast<int>(i));
      std::string value = workload_.operation == Operation::Add ? std::string("0") : values_[0];
      auto stored = co_await stores_[i]->set(std::move(key), std::move(value));
      if (!stored) co_return fail(std::move(stored.error()));
    }
    co_return Result<>();
  }

  Task<Result<>> closed_loop() {
    begins_ = after(steady_now(), warm_up_of(workload_));
    ends_ = after(begins_, workload_.length);
    Oneshot<bool> finished(client_.loop);
    finished_ = &finished;
    TaskScope workers;
    running_ = stores_.size() * static_cast<std::size_t>(workload_.depth);
    for (std::size_t i = 0; i < stores_.size(); ++i) {
      for (int slot = 0; slot < workload_.depth; ++slot) workers.start(work(i));
    }
    co_await finished;
    measurement.elapsed = workload_.length;
    if (failure_) co_return fail(std::move(*failure_));
    co_return Result<>();
  }

  // The last store writes, the others wait.
  Task<Result<>> wake() {
    const std::size_t waiter_count = stores_.size() - 1;
    store::Store& setter = *stores_.back();
    begins_ = after(steady_now(), warm_up_of(workload_));
    ends_ = after(begins_, workload_.length);
    TimePoint first = begins_;
    const std::string stem = fmt::format("bench/wake/{}/", steady_now().time_since_epoch().count());
    for (std::uint64_t round = 0; steady_now() < ends_ && !failure_; ++round) {
      const std::string key = stem + std::to_string(round);
      Oneshot<bool> finished(client_.loop);
      finished_ = &finished;
      running_ = waiter_count;
      TaskScope waiters;
      for (std::size_t i = 0; i < waiter_count; ++i) waiters.start(await_key(i, key));
      // The answer to this comes when the server has seen every wait; see Crowd.
      auto sum = co_await setter.add("bench/witness", 1);
      if (!sum) co_return fail(std::move(sum.error()));
      released_ = steady_now();
      auto stored = co_await setter.set(key, values_[0]);
      if (!stored) co_return fail(std::move(stored.error()));
      co_await finished;
      measurement.all_count += waiter_count;
      if (released_ < begins_) first = steady_now();
    }
    measurement.elapsed = steady_now() - first;
    if (failure_) co_return fail(std::move(*failure_));
    co_return Result<>();
  }

  Measurement measurement;

 private:
  // One request in flight. Calls the store itself, so that nothing but the client's own coroutines
  // is measured.
  Task<void> work(std::size_t index) {
    store::Store& store = *stores_[index];
    const std::string key = key_of(static_cast<int>(index));
    TimePoint begun = steady_now();
    for (std::uint64_t turn = 0; begun < ends_ && turn < turns_max_ && !failure_; ++turn) {
      switch (workload_.operation) {
        case Operation::Get: {
          const TimePoint deadline = after(client_.loop.now(), kPatience);
          const auto value = co_await store.get(key, deadline);
          check(value, value && value->size() == workload_.value_bytes);
          break;
        }
        case Operation::Set: {
          const auto stored = co_await store.set(key, values_[0]);
          check(stored, stored.has_value());
          break;
        }
        case Operation::Add: {
          const auto sum = co_await store.add(key, 1);
          check(sum, sum.has_value());
          break;
        }
        case Operation::CompareSet: {
          const auto outcome =
              co_await store.compare_set(key, values_[turn % 2], values_[1 - turn % 2]);
          check(outcome, outcome && outcome->stored);
          break;
        }
        case Operation::Wake:
          break;  // has a loop of its own
      }
      const TimePoint now = steady_now();
      ++measurement.all_count;
      if (now >= begins_ && now < ends_) measurement.latencies.add(now - begun, 1);
      begun = now;
    }
    end_one();
  }

  template <typename T>
  void check(const Result<T>& result, bool is_right) {
    if (is_right) return;
    failure_ = result ? Error{ErrorKind::Invalid, "the server's answer is wrong"} : result.error();
  }

  Task<void> await_key(std::size_t index, std::string key) {
    std::vector<std::string> keys;
    keys.push_back(std::move(key));
    const TimePoint deadline = after(client_.loop.now(), kPatience);
    auto released = co_await stores_[index]->wait(std::move(keys), deadline);
    if (!released) {
      failure_ = std::move(released.error());
    } else if (released_ >= begins_) {
      measurement.latencies.add(steady_now() - released_, 1);
    }
    end_one();
  }

  void end_one() {
    if (--running_ == 0) finished_->set(true);
  }

  Client& client_;
  net::Transport& transport_;
  const Workload& workload_;
  const std::uint64_t turns_max_;
  std::array<std::string, 2> values_;
  std::vector<std::unique_ptr<TcpStore>> stores_;
  TimePoint begins_;
  TimePoint ends_;
  TimePoint released_;
  std::size_t running_ = 0;
  Oneshot<bool>* finished_ = nullptr;  // in the frame of closed_loop or wake
  std::optional<Error> failure_;
};

// ---- counting -----------------------------------------------------------------------------------

class CountingStream final : public net::Stream {
 public:
  CountingStream(std::unique_ptr<net::Stream> stream, WireBytes& counted)
      : stream_(std::move(stream)), counted_(counted) {}

  net::Transfer read(std::span<char> into) override {
    const net::Transfer transfer = stream_->read(into);
    if (transfer.kind == net::Transfer::Kind::Moved) counted_.reply_bytes += transfer.bytes;
    return transfer;
  }
  net::Transfer write(std::span<const std::string_view> pieces) override {
    const net::Transfer transfer = stream_->write(pieces);
    if (transfer.kind == net::Transfer::Kind::Moved) counted_.request_bytes += transfer.bytes;
    return transfer;
  }
  void set_events(net::StreamEvents* events) override { stream_->set_events(events); }
  void want(bool readable, bool writable) override { stream_->want(readable, writable); }
  void shutdown_write() override { stream_->shutdown_write(); }
  const std::string& peer() const override { return stream_->peer(); }

 private:
  std::unique_ptr<net::Stream> stream_;
  WireBytes& counted_;
};

class CountingTransport final : public net::Transport {
 public:
  explicit CountingTransport(net::Transport& transport) : transport_(transport) {}

  Task<Result<std::unique_ptr<net::Stream>>> connect(net::Endpoint endpoint) override {
    auto connected = co_await transport_.connect(std::move(endpoint));
    if (!connected) co_return fail(std::move(connected.error()));
    std::unique_ptr<net::Stream> counting =
        std::make_unique<CountingStream>(std::move(*connected), counted);
    co_return std::move(counting);
  }
  Result<std::unique_ptr<net::Listener>> listen(
      const net::Endpoint&, std::function<void(std::unique_ptr<net::Stream>)>) override {
    return fail(ErrorKind::Unimplemented, "only connections are counted");
  }

  WireBytes counted;

 private:
  net::Transport& transport_;
};

Task<void> await_key(store::Store& store, TimePoint deadline, Oneshot<bool>& released) {
  std::vector<std::string> keys;
  keys.push_back("bench/count");
  auto done = co_await store.wait(std::move(keys), deadline);
  released.set(done.has_value());
}

// Requires: nobody has written the key bench/count.
Task<Result<WireBytes>> count_wake(Client& client, const Workload& workload,
                                   CountingTransport& of_waiter, CountingTransport& of_setter) {
  auto options = options_of(workload);
  auto waiter = co_await store::connect_tcp_store(client.loop, of_waiter, client.random, options);
  if (!waiter) co_return fail(std::move(waiter.error()));
  auto setter = co_await store::connect_tcp_store(client.loop, of_setter, client.random, options);
  if (!setter) co_return fail(std::move(setter.error()));
  auto erased = co_await (*setter)->delete_key("bench/count");
  if (!erased) co_return fail(std::move(erased.error()));
  Oneshot<bool> released(client.loop);
  TaskScope scope;
  scope.start(await_key(**waiter, after(client.loop.now(), kPatience), released));
  auto sum = co_await (*setter)->add("bench/witness", 1);
  if (!sum) co_return fail(std::move(sum.error()));
  const WireBytes waiter_before = of_waiter.counted;
  const WireBytes setter_before = of_setter.counted;
  std::string value(workload.value_bytes, 'a');
  auto stored = co_await (*setter)->set("bench/count", std::move(value));
  if (!stored) co_return fail(std::move(stored.error()));
  const bool is_released = co_await released;
  if (!is_released) co_return fail(ErrorKind::Timeout, "the waiter was not released");
  WireBytes bytes;
  bytes.request_bytes = of_setter.counted.request_bytes - setter_before.request_bytes;
  bytes.reply_bytes = of_waiter.counted.reply_bytes - waiter_before.reply_bytes;
  co_return bytes;
}

Result<WireBytes> count_operation(Client& client, const Workload& workload,
                                  CountingTransport& transport) {
  Run run(client, transport, workload, 1);
  auto connected = client.loop.block_on(run.connect(1));
  if (!connected) return fail(std::move(connected.error()));
  auto prepared = client.loop.block_on(run.prepare());
  if (!prepared) return fail(std::move(prepared.error()));
  const WireBytes before = transport.counted;
  auto done = client.loop.block_on(run.closed_loop());
  if (!done) return fail(std::move(done.error()));
  return WireBytes{transport.counted.request_bytes - before.request_bytes,
                   transport.counted.reply_bytes - before.reply_bytes};
}

}  // namespace

Result<Measurement> MusterDriver::measure(const Workload& workload) {
  if (workload.operation == Operation::CompareSet && workload.depth > 1) {
    return fail(ErrorKind::Invalid,
                "compare_set on one key cannot be pipelined: each needs the outcome of the last");
  }
  Client client;
  Run run(client, client.transport, workload, std::numeric_limits<std::uint64_t>::max());
  const bool is_wake = workload.operation == Operation::Wake;
  auto connected = client.loop.block_on(run.connect(workload.client_count + (is_wake ? 1 : 0)));
  if (!connected) return fail(std::move(connected.error()));
  auto prepared = client.loop.block_on(run.prepare());
  if (!prepared) return fail(std::move(prepared.error()));
  auto done = client.loop.block_on(is_wake ? run.wake() : run.closed_loop());
  if (!done) return fail(std::move(done.error()));
  return std::move(run.measurement);
}

Result<WireBytes> count_wire_bytes(const Workload& workload) {
  Client client;
  CountingTransport first(client.transport);
  CountingTransport second(client.transport);
  Workload one = workload;
  one.client_count = 1;
  one.depth = 1;
  if (workload.operation == Operation::Wake) {
    return client.loop.block_on(count_wake(client, one, first, second));
  }
  return count_operation(client, one, first);
}

}  // namespace muster::bench
