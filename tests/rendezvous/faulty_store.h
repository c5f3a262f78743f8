// FaultyStore: a store whose connection may break at the worst moment, for tests.
#pragma once

#include "muster/base/error.h"
#include "muster/base/task.h"
#include "muster/store/store.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous::testing {

// Owned by the test. Requires: `inner` outlives it.
class FaultyStore final : public store::Store {
 public:
  explicit FaultyStore(store::Store& inner) : inner_(inner) {}

  // Of the next compare_set.
  enum class Break {
    Never,
    Before,  // it does not take effect
    After,   // it does, and nobody says so
  };
  Break compare_set_breaks = Break::Never;
  bool unreachable = false;  // for everything
  bool cannot_delete = false;
  int compare_set_count = 0;

  Task<Result<>> set(std::string key, std::string value) override {
    if (unreachable) return broken<void>();
    return inner_.set(std::move(key), std::move(value));
  }
  Task<Result<std::string>> get(std::string key, TimePoint deadline) override {
    if (unreachable) return broken<std::string>();
    return inner_.get(std::move(key), deadline);
  }
  Task<Result<std::optional<std::string>>> try_get(std::string key) override {
    if (unreachable) return broken<std::optional<std::string>>();
    return inner_.try_get(std::move(key));
  }
  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override {
    if (unreachable) return broken<std::int64_t>();
    return inner_.add(std::move(key), delta);
  }
  Task<Result<store::CompareSet>> compare_set(std::string key, std::string expected,
                                              std::string desired) override {
    ++compare_set_count;
    const Break breaks = std::exchange(compare_set_breaks, Break::Never);
    if (unreachable || breaks == Break::Before) return broken<store::CompareSet>();
    auto task = inner_.compare_set(std::move(key), std::move(expected), std::move(desired));
    if (breaks == Break::After) return lose_answer(std::move(task));
    return task;
  }
  Task<Result<bool>> check(std::vector<std::string> keys) override {
    if (unreachable) return broken<bool>();
    return inner_.check(std::move(keys));
  }
  Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) override {
    if (unreachable) return broken<void>();
    return inner_.wait(std::move(keys), deadline);
  }
  Task<Result<bool>> delete_key(std::string key) override {
    if (unreachable) return broken<bool>();
    if (cannot_delete) return unknown<bool>();
    return inner_.delete_key(std::move(key));
  }
  Task<Result<std::int64_t>> num_keys() override { return inner_.num_keys(); }
  Task<Result<>> append(std::string key, std::string data) override {
    return inner_.append(std::move(key), std::move(data));
  }
  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys,
                                                   TimePoint deadline) override {
    if (unreachable) return broken<std::vector<std::string>>();
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
  // As TcpStore says it of a write that may have taken effect.
  template <typename T>
  static Task<Result<T>> broken() {
    co_return fail(ErrorKind::Closed, "the connection broke");
  }
  template <typename T>
  static Task<Result<T>> unknown() {
    co_return fail(ErrorKind::Unimplemented, "this store cannot do that");
  }
  static Task<Result<store::CompareSet>> lose_answer(Task<Result<store::CompareSet>> task) {
    auto outcome = co_await task;
    (void)outcome;
    co_return fail(ErrorKind::Closed, "the connection broke");
  }

  store::Store& inner_;
};

}  // namespace muster::rendezvous::testing
