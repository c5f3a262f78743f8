#include "muster/store/memory_store.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/store/table.h"

#include <fmt/format.h>

#include <deque>
#include <span>
#include <unordered_map>

namespace muster::store {
namespace {

class MemoryStore;

// "key "a"", or "3 of 5 keys: "a", "b", "c"" with no more than kNamedMax of them.
std::string name_keys(std::span<const std::string_view> missing, std::size_t key_count) {
  constexpr std::size_t kNamedMax = 3;
  if (key_count == 1) return fmt::format("key {}", log::quote(missing.front()));
  std::string text = fmt::format("{} of {} keys:", missing.size(), key_count);
  for (std::size_t i = 0; i < missing.size() && i < kNamedMax; ++i) {
    text += fmt::format("{} {}", i == 0 ? "" : ",", log::quote(missing[i]));
  }
  if (missing.size() > kNamedMax) text += fmt::format(" and {} more", missing.size() - kNamedMax);
  return text;
}

// One call that waits: a waiter of the table as long as it lives. In the call's frame, so that
// cancelling the call withdraws the waiter and passes its claim on a queue item to the next one.
class Blocked {
 public:
  explicit Blocked(MemoryStore& store);
  ~Blocked();
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

  WaiterId id() const { return id_; }
  void release() { released_.set(true); }

  // `co_await blocked.until(deadline)`: whether it was released by then.
  Oneshot<bool>& until(TimePoint deadline);

  tl::unexpected<Error> timed_out(std::string_view what) const;

 private:
  MemoryStore& store_;
  const WaiterId id_;
  const TimePoint since_;
  Oneshot<bool> released_;
  Timer timer_;
};

class MemoryWatch final : public Watch {
 public:
  MemoryWatch(MemoryStore& store, WatcherId id, std::string name, std::deque<Change> present);
  ~MemoryWatch() override;

  Task<Result<Change>> next(TimePoint deadline) override;
  void tell(Change change);

 private:
  // A call of `next` that waits. Knows when the watch goes before it does.
  struct Pending {
    Pending(Loop& loop, MemoryWatch& owner)
        : watch(&owner), changed(loop), timer(loop, [this] { changed.set(false); }) {
      owner.pending_ = this;
    }
    ~Pending() {
      if (watch != nullptr) watch->pending_ = nullptr;
    }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;

    MemoryWatch* watch;
    Oneshot<bool> changed;
    Timer timer;
  };

  std::optional<Result<Change>> take();

  MemoryStore& store_;
  const WatcherId id_;
  const std::string name_;
  std::deque<Change>
      present_;  // what is left of the state when the watch began; not limited, unlike what follows
  std::deque<Change> changes_;
  bool fell_behind_ = false;
  Pending* pending_ = nullptr;
};

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(Loop& loop) : loop_(loop) {}
  ~MemoryStore() override {
    // Calls and watches use the store to the end.
    MUSTER_ASSERT(blocked_.empty() && watches_.empty());
  }

  Task<Result<>> set(std::string key, std::string value) override {
    table_.set(key, value, outcome_);
    carry_out();
    co_return Result<>();
  }

  Task<Result<std::string>> get(std::string key, TimePoint deadline) override {
    const std::string_view name = key;
    // Again if the key was deleted between our release and our turn.
    for (;;) {
      const std::string* const value = table_.find(name);
      if (value != nullptr) co_return *value;
      Blocked blocked(*this);
      table_.wait(blocked.id(), std::span(&name, 1), Table::Need::Key);
      const bool released = co_await blocked.until(deadline);
      if (!released && table_.find(name) == nullptr) {
        co_return blocked.timed_out(name_keys(std::span(&name, 1), 1));
      }
    }
  }

  Task<Result<std::optional<std::string>>> try_get(std::string key) override {
    const std::string* const value = table_.find(key);
    if (value == nullptr) co_return std::optional<std::string>();
    co_return std::optional<std::string>(*value);
  }

  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override {
    Result<std::int64_t> sum = table_.add(key, delta, outcome_);
    carry_out();
    co_return sum;
  }

  Task<Result<CompareSet>> compare_set(std::string key, std::string expected,
                                       std::string desired) override {
    CompareSet result = table_.compare_set(key, expected, desired, outcome_);
    carry_out();
    co_return result;
  }

  Task<Result<bool>> check(std::vector<std::string> keys) override {
    for (const std::string& key : keys) {
      if (!table_.present(key)) co_return false;
    }
    co_return true;
  }

  Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) override {
    const std::vector<std::string_view> names(keys.begin(), keys.end());
    Blocked blocked(*this);
    if (table_.wait(blocked.id(), names, Table::Need::Any)) co_return Result<>();
    const bool released = co_await blocked.until(deadline);
    if (released) co_return Result<>();
    std::vector<std::string_view> missing;
    for (const std::string_view name : names) {
      if (!table_.present(name)) missing.push_back(name);
    }
    // All are here when others have claims on the queues we waited for.
    if (missing.empty()) missing = names;
    co_return blocked.timed_out(name_keys(missing, names.size()));
  }

  Task<Result<bool>> delete_key(std::string key) override {
    const bool deleted = table_.erase(key, outcome_);
    carry_out();
    co_return deleted;
  }

  Task<Result<std::int64_t>> num_keys() override {
    co_return static_cast<std::int64_t>(table_.key_count());
  }

  Task<Result<>> append(std::string key, std::string data) override {
    table_.append(key, data, outcome_);
    carry_out();
    co_return Result<>();
  }

  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys,
                                                   TimePoint deadline) override {
    // Again if a key was deleted while we waited for others.
    for (;;) {
      std::vector<std::string> values;
      std::vector<std::string_view> missing;
      for (const std::string& key : keys) {
        const std::string* const value = table_.find(key);
        if (value == nullptr) {
          missing.push_back(key);
        } else {
          values.push_back(*value);
        }
      }
      if (missing.empty()) co_return values;
      values.clear();
      Blocked blocked(*this);
      table_.wait(blocked.id(), missing, Table::Need::Key);
      const bool released = co_await blocked.until(deadline);
      std::erase_if(missing,
                    [this](std::string_view name) { return table_.find(name) != nullptr; });
      if (released || missing.empty()) continue;
      co_return blocked.timed_out(name_keys(missing, keys.size()));
    }
  }

  Task<Result<>> multi_set(std::vector<KeyValue> pairs) override {
    for (const KeyValue& pair : pairs) table_.set(pair.key, pair.value, outcome_);
    carry_out();
    co_return Result<>();
  }

  Task<Result<>> queue_push(std::string queue, std::string item) override {
    table_.push(queue, item, outcome_);
    carry_out();
    co_return Result<>();
  }

  Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) override {
    const std::string_view name = queue;
    // Again if someone who had not waited took the item between our release and our turn.
    for (;;) {
      Blocked blocked(*this);
      if (!table_.wait(blocked.id(), std::span(&name, 1), Table::Need::Queue)) {
        const bool released = co_await blocked.until(deadline);
        if (!released) {
          co_return blocked.timed_out(fmt::format("an item in queue {}", log::quote(name)));
        }
      }
      std::optional<std::string> item = table_.pop(name, blocked.id());
      if (item) co_return std::move(*item);
    }
  }

  Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) override {
    co_return table_.pop(queue, 0);
  }

  Task<Result<std::int64_t>> queue_length(std::string queue) override {
    co_return static_cast<std::int64_t>(table_.queue_length(queue));
  }

  Task<Result<std::vector<std::string>>> list_keys(std::string prefix) override {
    co_return table_.keys(prefix);
  }

  Task<Result<>> barrier(std::string key, std::int64_t member_count, TimePoint deadline) override {
    Blocked blocked(*this);
    const Result<bool> complete = table_.barrier(blocked.id(), key, member_count, outcome_);
    carry_out();
    if (!complete) co_return fail(complete.error());
    if (*complete) co_return Result<>();
    const bool released = co_await blocked.until(deadline);
    if (released) co_return Result<>();
    const std::string* const count = table_.find(key);
    const std::string came = count == nullptr ? "none" : log::quote(*count);
    co_return blocked.timed_out(fmt::format("all to come to barrier {} ({} of {} came)",
                                            log::quote(key), came, member_count));
  }

  Task<Result<std::unique_ptr<Watch>>> watch(std::string key, WatchScope scope) override {
    std::deque<Change> present;
    const WatcherId id = ++last_id_;
    if (scope == WatchScope::Key) {
      const std::string* const value = table_.find(key);
      present.push_back(value != nullptr ? Change{Change::Kind::Present, key, *value}
                                         : Change{Change::Kind::Absent, key, ""});
      table_.watch_key(id, key);
    } else {
      for (std::string& name : table_.keys(key)) {
        const std::string& value = *table_.find(name);
        present.push_back(Change{Change::Kind::Present, std::move(name), value});
      }
      table_.watch_prefix(id, key);
    }
    std::unique_ptr<Watch> watch =
        std::make_unique<MemoryWatch>(*this, id, std::move(key), std::move(present));
    co_return watch;
  }

 private:
  friend class Blocked;
  friend class MemoryWatch;

  // Tells those whom the last request concerned. Runs none of them: they go on in their own turn.
  void carry_out() {
    for (const WaiterId id : outcome_.released) blocked_.find(id)->second->release();
    for (Notice& notice : outcome_.notices) {
      Change change{notice.kind, std::move(notice.key), std::move(notice.new_value)};
      watches_.find(notice.watcher)->second->tell(std::move(change));
    }
    outcome_.clear();
  }

  Loop& loop_;
  Table table_;
  Outcome outcome_;
  std::uint64_t last_id_ = 0;  // of waiters and watchers
  std::unordered_map<WaiterId, Blocked*> blocked_;
  std::unordered_map<WatcherId, MemoryWatch*> watches_;
};

Blocked::Blocked(MemoryStore& store)
    : store_(store),
      id_(++store.last_id_),
      since_(store.loop_.now()),
      released_(store.loop_),
      timer_(store.loop_, [this] { released_.set(false); }) {
  store_.blocked_.emplace(id_, this);
}

Blocked::~Blocked() {
  store_.blocked_.erase(id_);
  store_.table_.forget(id_, store_.outcome_);
  store_.carry_out();
}

Oneshot<bool>& Blocked::until(TimePoint deadline) {
  if (deadline <= store_.loop_.now()) {
    released_.set(false);
  } else {
    timer_.set(deadline);
  }
  return released_;
}

tl::unexpected<Error> Blocked::timed_out(std::string_view what) const {
  return fail(ErrorKind::Timeout, fmt::format("timed out after {} waiting for {}",
                                              describe(store_.loop_.now() - since_), what));
}

MemoryWatch::MemoryWatch(MemoryStore& store, WatcherId id, std::string name,
                         std::deque<Change> present)
    : store_(store), id_(id), name_(std::move(name)), present_(std::move(present)) {
  store_.watches_.emplace(id_, this);
}

MemoryWatch::~MemoryWatch() {
  store_.watches_.erase(id_);
  store_.table_.unwatch(id_);
  if (pending_ != nullptr) {
    pending_->watch = nullptr;
    pending_->changed.set(false);
  }
}

Task<Result<Change>> MemoryWatch::next(TimePoint deadline) {
  std::optional<Result<Change>> first = take();
  if (first) co_return std::move(*first);
  if (pending_ != nullptr) {
    co_return fail(ErrorKind::Invalid,
                   "another call waits for the next change of this watch already");
  }
  Loop& loop = store_.loop_;
  const TimePoint since = loop.now();
  const std::string name = name_;
  Pending pending(loop, *this);
  if (deadline <= since) {
    pending.changed.set(false);
  } else {
    pending.timer.set(deadline);
  }
  co_await pending.changed;
  if (pending.watch == nullptr) co_return fail(ErrorKind::Closed, "the watch was ended");
  // Whatever woke us: a change that came in the same turn as the deadline counts.
  std::optional<Result<Change>> change = take();
  if (change) co_return std::move(*change);
  co_return fail(ErrorKind::Timeout, fmt::format("timed out after {} waiting for a change of {}",
                                                 describe(loop.now() - since), log::quote(name)));
}

void MemoryWatch::tell(Change change) {
  if (fell_behind_) return;
  if (changes_.size() >= kWatchChangesMax) {
    fell_behind_ = true;
    present_.clear();
    changes_.clear();
    store_.table_.unwatch(id_);
  } else {
    changes_.push_back(std::move(change));
  }
  if (pending_ != nullptr) pending_->changed.set(true);
}

std::optional<Result<Change>> MemoryWatch::take() {
  if (fell_behind_) {
    return fail(ErrorKind::Unavailable,
                fmt::format("the watch of {} fell more than {} changes behind", log::quote(name_),
                            kWatchChangesMax));
  }
  std::deque<Change>& changes = present_.empty() ? changes_ : present_;
  if (changes.empty()) return std::nullopt;
  Result<Change> change = std::move(changes.front());
  changes.pop_front();
  return change;
}

}  // namespace

std::unique_ptr<Store> make_memory_store(Loop& loop) { return std::make_unique<MemoryStore>(loop); }

}  // namespace muster::store
