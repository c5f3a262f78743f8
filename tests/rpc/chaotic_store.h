// ChaoticStore: a store as one worker sees it over a bad network, on the worker's own loop.
//
// Every operation takes a while, before it takes effect and after. With `failures_per_thousand`,
// one fails with Closed; it may have taken effect or not. What a worker gets from the store it gets
// on its own loop, so that a worker that is stopped (LocalLoop::stop) does nothing, and goes on
// with what it knew.
#pragma once

#include "muster/base/loop.h"
#include "muster/base/random.h"
#include "muster/base/task.h"
#include "muster/store/store.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rpc::testing {

// Owned by the test. Requires: `loop` and `inner` outlive it.
class ChaoticStore final : public store::Store {
 public:
  ChaoticStore(Loop& loop, store::Store& inner, std::uint64_t seed)
      : loop_(loop), inner_(inner), random_(seed) {}

  std::uint64_t failures_per_thousand = 0;
  Duration delay_min = Duration::zero();
  Duration delay_max = std::chrono::milliseconds(20);

  Task<Result<>> set(std::string key, std::string value) override {
    return delayed(inner_.set(std::move(key), std::move(value)));
  }
  Task<Result<std::string>> get(std::string key, TimePoint deadline) override {
    return delayed(inner_.get(std::move(key), deadline));
  }
  Task<Result<std::optional<std::string>>> try_get(std::string key) override {
    return delayed(inner_.try_get(std::move(key)));
  }
  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override {
    return delayed(inner_.add(std::move(key), delta));
  }
  Task<Result<store::CompareSet>> compare_set(std::string key, std::string expected,
                                              std::string desired) override {
    return delayed(inner_.compare_set(std::move(key), std::move(expected), std::move(desired)));
  }
  Task<Result<bool>> check(std::vector<std::string> keys) override {
    return delayed(inner_.check(std::move(keys)));
  }
  Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) override {
    return delayed(inner_.wait(std::move(keys), deadline));
  }
  Task<Result<bool>> delete_key(std::string key) override {
    return delayed(inner_.delete_key(std::move(key)));
  }
  Task<Result<std::int64_t>> num_keys() override { return delayed(inner_.num_keys()); }
  Task<Result<>> append(std::string key, std::string data) override {
    return delayed(inner_.append(std::move(key), std::move(data)));
  }
  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys,
                                                   TimePoint deadline) override {
    return delayed(inner_.multi_get(std::move(keys), deadline));
  }
  Task<Result<>> multi_set(std::vector<store::KeyValue> pairs) override {
    return delayed(inner_.multi_set(std::move(pairs)));
  }
  Task<Result<>> queue_push(std::string queue, std::string item) override {
    return delayed(inner_.queue_push(std::move(queue), std::move(item)));
  }
  Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) override {
    return delayed(inner_.queue_pop(std::move(queue), deadline));
  }
  Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) override {
    return delayed(inner_.try_queue_pop(std::move(queue)));
  }
  Task<Result<std::int64_t>> queue_length(std::string queue) override {
    return delayed(inner_.queue_length(std::move(queue)));
  }
  Task<Result<std::vector<std::string>>> list_keys(std::string prefix) override {
    return delayed(inner_.list_keys(std::move(prefix)));
  }
  Task<Result<>> barrier(std::string key, std::int64_t member_count, TimePoint deadline) override {
    return delayed(inner_.barrier(std::move(key), member_count, deadline));
  }
  Task<Result<std::unique_ptr<store::Watch>>> watch(std::string key, WatchScope scope) override {
    return wrapped(delayed(inner_.watch(std::move(key), scope)));
  }

 private:
  class ChaoticWatch final : public store::Watch {
   public:
    ChaoticWatch(ChaoticStore& store, std::unique_ptr<store::Watch> inner)
        : store_(store), inner_(std::move(inner)) {}
    Task<Result<store::Change>> next(TimePoint deadline) override {
      return store_.delayed(inner_->next(deadline));
    }

   private:
    ChaoticStore& store_;
    std::unique_ptr<store::Watch> inner_;
  };

  // A whole millisecond, so that a simulation of many workers has few moments.
  TimePoint some_time() {
    const auto most = static_cast<std::uint64_t>(delay_max / std::chrono::milliseconds(1));
    const auto delay = std::chrono::milliseconds(random_.below(most + 1));
    return std::chrono::ceil<std::chrono::milliseconds>(loop_.now() + delay_min) + delay;
  }

  template <typename T>
  Task<Result<T>> delayed(Task<Result<T>> task) {
    const TimePoint before = some_time();
    co_await sleep_until(loop_, before);
    if (random_.chance(failures_per_thousand)) co_return fail(ErrorKind::Closed, "lost before");
    auto outcome = co_await task;
    const TimePoint later = some_time();
    co_await sleep_until(loop_, later);
    if (random_.chance(failures_per_thousand)) co_return fail(ErrorKind::Closed, "lost after");
    co_return outcome;
  }

  Task<Result<std::unique_ptr<store::Watch>>> wrapped(
      Task<Result<std::unique_ptr<store::Watch>>> task) {
    auto watch = co_await task;
    if (!watch) co_return fail(watch.error());
    std::unique_ptr<store::Watch> result = std::make_unique<ChaoticWatch>(*this, std::move(*watch));
    co_return result;
  }

  Loop& loop_;
  store::Store& inner_;
  Random random_;
};

}  // namespace muster::rpc::testing
