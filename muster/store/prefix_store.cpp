#include "muster/store/prefix_store.h"

namespace muster::store {
namespace {

// No `this`: the watch may go while a call of `next` waits.
Task<Result<Change>> strip_change(Task<Result<Change>> task, std::size_t prefix_bytes) {
  Result<Change> change = co_await task;
  if (change) change->key.erase(0, prefix_bytes);
  co_return change;
}

class PrefixWatch final : public Watch {
 public:
  PrefixWatch(std::unique_ptr<Watch> inner, std::size_t prefix_bytes)
      : inner_(std::move(inner)), prefix_bytes_(prefix_bytes) {}

  Task<Result<Change>> next(TimePoint deadline) override {
    return strip_change(inner_->next(deadline), prefix_bytes_);
  }

 private:
  std::unique_ptr<Watch> inner_;
  std::size_t prefix_bytes_;
};

Task<Result<std::unique_ptr<Watch>>> strip_watch(Task<Result<std::unique_ptr<Watch>>> task,
                                                 std::size_t prefix_bytes) {
  Result<std::unique_ptr<Watch>> inner = co_await task;
  if (!inner) co_return inner;
  std::unique_ptr<Watch> outer = std::make_unique<PrefixWatch>(std::move(*inner), prefix_bytes);
  co_return outer;
}

Task<Result<std::vector<std::string>>> strip_keys(Task<Result<std::vector<std::string>>> task,
                                                  std::size_t prefix_bytes) {
  Result<std::vector<std::string>> keys = co_await task;
  if (keys) {
    for (std::string& key : *keys) key.erase(0, prefix_bytes);
  }
  co_return keys;
}

// Most calls are the inner store's own tasks, with another key: no coroutine in between.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, Store& inner) : start_(std::move(prefix) + "/"), inner_(inner) {}

  Task<Result<>> set(std::string key, std::string value) override {
    return inner_.set(join(std::move(key)), std::move(value));
  }
  Task<Result<std::string>> get(std::string key, TimePoint deadline) override {
    return inner_.get(join(std::move(key)), deadline);
  }
  Task<Result<std::optional<std::string>>> try_get(std::string key) override {
    return inner_.try_get(join(std::move(key)));
  }
  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override {
    return inner_.add(join(std::move(key)), delta);
  }
  Task<Result<CompareSet>> compare_set(std::string key, std::string expected,
                                       std::string desired) override {
    return inner_.compare_set(join(std::move(key)), std::move(expected), std::move(desired));
  }
  Task<Result<bool>> check(std::vector<std::string> keys) override {
    return inner_.check(join(std::move(keys)));
  }
  Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) override {
    return inner_.wait(join(std::move(keys)), deadline);
  }
  Task<Result<bool>> delete_key(std::string key) override {
    return inner_.delete_key(join(std::move(key)));
  }
  Task<Result<std::int64_t>> num_keys() override { return inner_.num_keys(); }
  Task<Result<>> append(std::string key, std::string data) override {
    return inner_.append(join(std::move(key)), std::move(data));
  }
  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys,
                                                   TimePoint deadline) override {
    return inner_.multi_get(join(std::move(keys)), deadline);
  }
  Task<Result<>> multi_set(std::vector<KeyValue> pairs) override {
    for (KeyValue& pair : pairs) pair.key.insert(0, start_);
    return inner_.multi_set(std::move(pairs));
  }
  Task<Result<>> queue_push(std::string queue, std::string item) override {
    return inner_.queue_push(join(std::move(queue)), std::move(item));
  }
  Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) override {
    return inner_.queue_pop(join(std::move(queue)), deadline);
  }
  Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) override {
    return inner_.try_queue_pop(join(std::move(queue)));
  }
  Task<Result<std::int64_t>> queue_length(std::string queue) override {
    return inner_.queue_length(join(std::move(queue)));
  }
  Task<Result<std::vector<std::string>>> list_keys(std::string prefix) override {
    return strip_keys(inner_.list_keys(join(std::move(prefix))), start_.size());
  }
  Task<Result<>> barrier(std::string key, std::int64_t member_count, TimePoint deadline) override {
    return inner_.barrier(join(std::move(key)), member_count, deadline);
  }
  Task<Result<std::unique_ptr<Watch>>> watch(std::string key, WatchScope scope) override {
    return strip_watch(inner_.watch(join(std::move(key)), scope), start_.size());
  }

 private:
  std::string join(std::string key) const { return std::move(key.insert(0, start_)); }
  std::vector<std::string> join(std::vector<std::string> keys) const {
    for (std::string& key : keys) key.insert(0, start_);
    return keys;
  }

  const std::string start_;  // the prefix and its "/", which an empty prefix has, too
  Store& inner_;
};

}  // namespace

std::unique_ptr<Store> make_prefix_store(std::string prefix, Store& inner) {
  return std::make_unique<PrefixStore>(std::move(prefix), inner);
}

}  // namespace muster::store
