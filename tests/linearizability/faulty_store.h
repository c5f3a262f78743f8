// FaultyStore: a store with one fault, to prove that a test would notice it. All else goes through.
#pragma once

#include "muster/store/store.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::linearizability {

enum class Fault {
  StaleRead,      // every third try_get answers what an earlier one did
  LostWrite,      // every third set is acknowledged and not done
  RepeatedWrite,  // an addition whose connection broke is sent again, though it may have been done
};

// Requires: `inner` outlives it.
class FaultyStore final : public store::Store {
 public:
  FaultyStore(store::Store& inner, Fault fault) : inner_(inner), fault_(fault) {}

  Task<Result<>> set(std::string key, std::string value) override {
    if (fault_ == Fault::LostWrite && ++count_ % 3 == 0) co_return Result<>();
    co_return co_await inner_.set(std::move(key), std::move(value));
  }
  Task<Result<std::optional<std::string>>> try_get(std::string key) override {
    const auto old = seen_.find(key);
    if (fault_ == Fault::StaleRead && old != seen_.end() && ++count_ % 3 == 0) {
      co_return old->second;
    }
    auto value = co_await inner_.try_get(key);
    if (value) seen_.emplace(key, *value);
    co_return value;
  }
  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override {
    for (;;) {
      auto sum = co_await inner_.add(key, delta);
      const bool broke = !sum && sum.error().kind == ErrorKind::Closed;
      if (fault_ != Fault::RepeatedWrite || !broke) co_return sum;
    }
  }

  Task<Result<std::string>> get(std::string key, TimePoint deadline) override {
    return inner_.get(std::move(key), deadline);
  }
  Task<Result<store::CompareSet>> compare_set(std::string key, std::string expected,
                                              std::string desired) override {
    return inner_.compare_set(std::move(key), std::move(expected), std::move(desired));
  }
  Task<Result<bool>> check(std::vector<std::string> keys) override {
    return inner_.check(std::move(keys));
  }
  Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) override {
    return inner_.wait(std::move(keys), deadline);
  }
  Task<Result<bool>> delete_key(std::string key) override {
    return inner_.delete_key(std::move(key));
  }
  Task<Result<std::int64_t>> num_keys() override { return inner_.num_keys(); }
  Task<Result<>> append(std::string key, std::string data) override {
    return inner_.append(std::move(key), std::move(data));
  }
  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys,
                                                   TimePoint deadline) override {
    return inner_.multi_get(std::move(keys), deadline);
  }
  Task<Result<>> multi_set(std::vector<store::KeyValue> pairs) override {
    return inner_.multi_set(std::move(pairs));
  }
  Task<Result<>> queue_push(std::string queue, std::string item) override {
    return inner_.queue_push(std::move(queue), std::move(item));
  }
  Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) override {
    return inner_.queue_pop(std::move(queue), deadline);
  }
  Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) override {
    return inner_.try_queue_pop(std::move(queue));
  }
  Task<Result<std::int64_t>> queue_length(std::string queue) override {
    return inner_.queue_length(std::move(queue));
  }
  Task<Result<std::vector<std::string>>> list_keys(std::string prefix) override {
    return inner_.list_keys(std::move(prefix));
  }
  Task<Result<>> barrier(std::string key, std::int64_t member_count, TimePoint deadline) override {
    return inner_.barrier(std::move(key), member_count, deadline);
  }
  Task<Result<std::unique_ptr<store::Watch>>> watch(std::string key, WatchScope scope) override {
    return inner_.watch(std::move(key), scope);
  }

 private:
  store::Store& inner_;
  const Fault fault_;
  int count_ = 0;
  std::map<std::string, std::optional<std::string>> seen_;  // the first answer for each key
};

}  // namespace muster::linearizability
