#include "muster/store/file_store.h"

#include "muster/base/assert.h"
#include "muster/base/log.h"
#include "muster/store/file_log.h"
#include "muster/store/log_file.h"
#include "muster/store/shared_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <string_view>

namespace muster::store {
namespace {

Result<> check_name(std::string_view name) {
  if (name.size() <= kFileKeyBytesMax) return {};
  return fail(ErrorKind::Invalid, fmt::format("the key {} has {} bytes, where {} are allowed",
                                              log::quote(name), name.size(), kFileKeyBytesMax));
}

Result<> check_pair(std::string_view name, std::string_view value) {
  if (auto fits = check_name(name); !fits) return fits;
  if (value.size() <= kFileValueBytesMax) return {};
  return fail(ErrorKind::Invalid, fmt::format("the value for {} has {} bytes, where {} are allowed",
                                              log::quote(name), value.size(), kFileValueBytesMax));
}

Result<> check_count(std::size_t count) {
  if (count <= kFileKeysMax) return {};
  return fail(ErrorKind::Invalid,
              fmt::format("{} keys in one call, where {} are allowed", count, kFileKeysMax));
}

Result<> check_names(const std::vector<std::string>& names) {
  if (auto fits = check_count(names.size()); !fits) return fits;
  for (const std::string& name : names) {
    if (auto fits = check_name(name); !fits) return fits;
  }
  return {};
}

class FileWatch final : public Watch, private LogObserver {
 public:
  FileWatch(SharedLog& log, std::string key, Store::WatchScope scope);
  Task<Result<Change>> next(TimePoint deadline) override;

 private:
  void observe(const FileChange& change) override;
  void lost(const Error& error) override;
  void wake() {
    if (waiting_ != nullptr) waiting_->set({});
  }

  SharedLog& log_;
  const std::string key_;
  const Store::WatchScope scope_;
  std::deque<Change> changes_;
  // How many of them are the present state, which may be larger than the limit.
  std::size_t initial_count_ = 0;
  std::optional<Error> ended_;
  Oneshot<Result<>>* waiting_ = nullptr;  // in the frame of `next`
};

class FileStore final : public Store {
 public:
  FileStore(Loop& loop, Random& random, FileStoreOptions options, LogFile file)
      : log_(loop, random, std::move(options), std::move(file)) {}

  Task<Result<>> set(std::string key, std::string value) override;
  Task<Result<std::string>> get(std::string key, TimePoint deadline) override;
  Task<Result<std::optional<std::string>>> try_get(std::string key) override;
  Task<Result<std::int64_t>> add(std::string key, std::int64_t delta) override;
  Task<Result<CompareSet>> compare_set(std::string key, std::string expected,
                                       std::string desired) override;
  Task<Result<bool>> check(std::vector<std::string> keys) override;
  Task<Result<>> wait(std::vector<std::string> keys, TimePoint deadline) override;
  Task<Result<bool>> delete_key(std::string key) override;
  Task<Result<std::int64_t>> num_keys() override;
  Task<Result<>> append(std::string key, std::string data) override;
  Task<Result<std::vector<std::string>>> multi_get(std::vector<std::string> keys,
                                                   TimePoint deadline) override;
  Task<Result<>> multi_set(std::vector<KeyValue> pairs) override;
  Task<Result<>> queue_push(std::string queue, std::string item) override;
  Task<Result<std::string>> queue_pop(std::string queue, TimePoint deadline) override;
  Task<Result<std::optional<std::string>>> try_queue_pop(std::string queue) override;
  Task<Result<std::int64_t>> queue_length(std::string queue) override;
  Task<Result<std::vector<std::string>>> list_keys(std::string prefix) override;
  Task<Result<>> barrier(std::string key, std::int64_t member_count, TimePoint deadline) override;
  Task<Result<std::unique_ptr<Watch>>> watch(std::string key, WatchScope scope) override;

 private:
  Task<Result<std::optional<std::string>>> pop(std::string queue, TimePoint deadline);
  const FileLog& content() const { return log_.content(); }

  SharedLog log_;
};

Task<Result<>> FileStore::set(std::string key, std::string value) {
  if (auto fits = check_pair(key, value); !fits) co_return fits;
  const Result<HeldLock> held = co_await log_.begin_write(kNever);
  if (!held) co_return fail(held.error());
  std::string records;
  append_set(key, value, records);
  co_return log_.commit(records);
}

Task<Result<std::string>> FileStore::get(std::string key, TimePoint deadline) {
  const std::vector<std::string> keys{std::move(key)};
  auto values = co_await multi_get(keys, deadline);
  if (!values) co_return fail(values.error());
  co_return std::move(values->front());
}

Task<Result<std::optional<std::string>>> FileStore::try_get(std::string key) {
  if (auto fits = check_name(key); !fits) co_return fail(fits.error());
  const Result<> current = co_await log_.catch_up(kNever);
  if (!current) co_return fail(current.error());
  const std::string* const value = content().find(key);
  co_return value == nullptr ? std::nullopt : std::optional<std::string>(*value);
}

Task<Result<std::int64_t>> FileStore::add(std::string key, std::int64_t delta) {
  if (auto fits = check_name(key); !fits) co_return fail(fits.error());
  const Result<HeldLock> held = co_await log_.begin_write(kNever);
  if (!held) co_return fail(held.error());
  const Result<std::int64_t> sum = content().sum(key, delta);
  if (!sum) co_return fail(sum.error());
  std::string records;
  append_set(key, std::to_string(*sum), records);
  if (auto written = log_.commit(records); !written) co_return fail(written.error());
  co_return *sum;
}

Task<Result<CompareSet>> FileStore::compare_set(std::string key, std::string expected,
                                                std::string desired) {
  if (auto fits = check_pair(key, desired); !fits) co_return fail(fits.error());
  const Result<HeldLock> held = co_await log_.begin_write(kNever);
  if (!held) co_return fail(held.error());
  const std::string* const value = content().find(key);
  CompareSet result;
  result.stored = value == nullptr ? expected.empty() : *value == expected;
  if (!result.stored) {
    result.value = value == nullptr ? std::move(expected) : *value;
    co_return result;
  }
  std::string records;
  append_set(key, desired, records);
  if (auto written = log_.commit(records); !written) co_return fail(written.error());
  result.value = std::move(desired);
  co_return result;
}

Task<Result<bool>> FileStore::check(std::vector<std::string> keys) {
  if (auto fits = check_names(keys); !fits) co_return fail(fits.error());
  const Result<> current = co_await log_.catch_up(kNever);
  if (!current) co_return fail(current.error());
  co_return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) {
    return log_.present(SharedLog::Awaited::Either, key);
  });
}

Task<Result<>> FileStore::wait(std::vector<std::string> keys, TimePoint deadline) {
  if (auto fits = check_names(keys); !fits) co_return fits;
  const Result<> current = co_await log_.catch_up(deadline);
  if (!current) co_return current;
  co_return co_await log_.until_present(SharedLog::Awaited::Either, std::move(keys), deadline);
}

Task<Result<bool>> FileStore::delete_key(std::string key) {
  if (auto fits = check_name(key); !fits) co_return fail(fits.error());
  const Result<HeldLock> held = co_await log_.begin_write(kNever);
  if (!held) co_return fail(held.error());
  if (content().find(key) == nullptr) co_return false;
  std::string records;
  append_delete(key, records);
  if (auto written = log_.commit(records); !written) co_return fail(written.error());
  co_return true;
}

Task<Result<std::int64_t>> FileStore::num_keys() {
  const Result<> current = co_await log_.catch_up(kNever);
  if (!current) co_return fail(current.error());
  co_return static_cast<std::int64_t>(content().key_count());
}

Task<Result<>> FileStore::append(std::string key, std::string data) {
  if (auto fits = check_pair(key, data); !fits) co_return fits;
  const Result<HeldLock> held = co_await log_.begin_write(kNever);
  if (!held) co_return fail(held.error());
  const std::string* const value = content().find(key);
  if (value != nullptr) data.insert(0, *value);
  if (auto fits = check_pair(key, data); !fits) co_return fits;
  std::string records;
  append_set(key, data, records);
  co_return log_.commit(records);
}

Task<Result<std::vector<std::string>>> FileStore::multi_get(std::vector<std::string> keys,
                                                            TimePoint deadline) {
  if (auto fits = check_names(keys); !fits) co_return fail(fits.error());
  const Result<> current = co_await log_.catch_up(deadline);
  if (!current) co_return fail(current.error());
  for (;;) {
    std::vector<std::string> values;
    values.reserve(keys.size());
    for (const std::string& key : keys) {
      const std::string* const value = content().find(key);
      if (value == nullptr) break;
      values.push_back(*value);
    }
    if (values.size() == keys.size()) co_return values;
    // One that was there may be deleted before the last one comes; then all are awaited again.
    const Result<> came = co_await log_.until_present(SharedLog::Awaited::Key, keys, deadline);
    if (!came) co_return fail(came.error());
  }
}

Task<Result<>> FileStore::multi_set(std::vector<KeyValue> pairs) {
  if (auto fits = check_count(pairs.size()); !fits) co_return fits;
  for (const KeyValue& pair : pairs) {
    if (auto fits = check_pair(pair.key, pair.value); !fits) co_return fits;
  }
  const Result<HeldLock> held = co_await log_.begin_write(kNever);
  if (!held) co_return fail(held.error());
  std::string records;
  for (const KeyValue& pair : pairs) append_set(pair.key, pair.value, records);
  co_return log_.commit(records);
}

Task<Result<>> FileStore::queue_push(std::string queue, std::string item) {
  if (auto fits = check_pair(queue, item); !fits) co_return fits;
  const Result<HeldLock> held = co_await log_.begin_write(kNever);
  if (!held) co_return fail(held.error());
  std::string records;
  append_push(queue, item, records);
  co_return log_.commit(records);
}

Task<Result<std::string>> FileStore::queue_pop(std::string queue, TimePoint deadline) {
  const std::vector<std::string> queues{queue};
  for (;;) {
    auto item = co_await pop(queue, deadline);
    if (!item) co_return fail(item.error());
    if (*item) co_return std::move(**item);
    // Others may be faster once it has come; then it is waited for again.
    const Result<> came = co_await log_.until_present(SharedLog::Awaited::Queue, queues, deadline);
    if (!came) co_return fail(came.error());
  }
}

Task<Result<std::optional<std::string>>> FileStore::try_queue_pop(std::string queue) {
  return pop(std::move(queue), kNever);
}

Task<Result<std::optional<std::string>>> FileStore::pop(std::string queue, TimePoint deadline) {
  if (auto fits = check_name(queue); !fits) co_return fail(fits.error());
  const Result<HeldLock> held = co_await log_.begin_write(deadline);
  if (!held) co_return fail(held.error());
  const std::string* const oldest = content().front(queue);
  if (oldest == nullptr) co_return std::optional<std::string>();
  std::optional<std::string> item(*oldest);
  std::string records;
  append_pop(queue, records);
  if (auto written = log_.commit(records); !written) co_return fail(written.error());
  co_return item;
}

Task<Result<std::int64_t>> FileStore::queue_length(std::string queue) {
  if (auto fits = check_name(queue); !fits) co_return fail(fits.error());
  const Result<> current = co_await log_.catch_up(kNever);
  if (!current) co_return fail(current.error());
  co_return static_cast<std::int64_t>(content().queue_length(queue));
}

Task<Result<std::vector<std::string>>> FileStore::list_keys(std::string prefix) {
  const Result<> current = co_await log_.catch_up(kNever);
  if (!current) co_return fail(current.error());
  co_return content().keys(prefix);
}

Task<Result<>> FileStore::barrier(std::string key, std::int64_t member_count, TimePoint deadline) {
  const std::string count_key = key + "/num_members";
  const std::string last_key = key + "/last_member";
  if (auto fits = check_name(count_key); !fits) co_return fits;
  {
    const Result<HeldLock> held = co_await log_.begin_write(deadline);
    if (!held) co_return fail(held.error());
    const Result<std::int64_t> count = content().sum(count_key, 1);
    if (!count) co_return fail(count.error());
    // In this order: if we are killed between the two, the others must not be left waiting for a
    // last member who has been counted already.
    std::string records;
    if (*count >= member_count && content().find(last_key) == nullptr) {
      append_set(last_key, "1", records);
    }
    append_set(count_key, std::to_string(*count), records);
    if (auto written = log_.commit(records); !written) co_return written;
  }
  const std::vector<std::string> keys{last_key};
  co_return co_await log_.until_present(SharedLog::Awaited::Key, keys, deadline);
}

Task<Result<std::unique_ptr<Watch>>> FileStore::watch(std::string key, WatchScope scope) {
  if (auto fits = check_name(key); !fits) co_return fail(fits.error());
  const Result<> current = co_await log_.catch_up(kNever);
  if (!current) co_return fail(current.error());
  std::unique_ptr<Watch> result = std::make_unique<FileWatch>(log_, std::move(key), scope);
  log_.hurry();
  co_return std::move(result);
}

FileWatch::FileWatch(SharedLog& log, std::string key, Store::WatchScope scope)
    : LogObserver(log), log_(log), key_(std::move(key)), scope_(scope) {
  if (scope_ == Store::WatchScope::Prefix) {
    for (std::string& name : log_.content().keys(key_)) {
      const std::string& value = *log_.content().find(name);
      changes_.push_back({.kind = Change::Kind::Present, .key = std::move(name), .value = value});
    }
  } else if (const std::string* const value = log_.content().find(key_)) {
    changes_.push_back({.kind = Change::Kind::Present, .key = key_, .value = *value});
  } else {
    changes_.push_back({.kind = Change::Kind::Absent, .key = key_, .value = {}});
  }
  initial_count_ = changes_.size();
}

Task<Result<Change>> FileWatch::next(TimePoint deadline) {
  MUSTER_ASSERT(waiting_ == nullptr);
  // Piece by piece, for a long log read at once would count as having fallen behind.
  for (bool more = true; more && changes_.empty() && !ended_;) {
    const Result<bool> read = co_await log_.read_piece(deadline);
    if (!read && read.error().kind == ErrorKind::Timeout) co_return fail(read.error());
    if (!read) lost(read.error());
    more = read && *read;
  }
  if (changes_.empty() && !ended_) {
    Oneshot<Result<>> came(log_.loop());
    struct Waiting {
      Waiting(FileWatch& owner, Oneshot<Result<>>& oneshot) : watch(owner) {
        watch.waiting_ = &oneshot;
      }
      ~Waiting() { watch.waiting_ = nullptr; }
      FileWatch& watch;
    } const waiting(*this, came);
    Timer timer(log_.loop(), [this, &came] {
      came.set(fail(ErrorKind::Timeout,
                    fmt::format("no change to {} before the deadline", log::quote(key_))));
    });
    timer.set(deadline);
    log_.hurry();
    const Result<> outcome = co_await came;
    if (!outcome) co_return fail(outcome.error());
  }
  if (changes_.empty()) co_return fail(*ended_);
  Change change = std::move(changes_.front());
  changes_.pop_front();
  if (initial_count_ > 0) --initial_count_;
  co_return std::move(change);
}

void FileWatch::observe(const FileChange& change) {
  if (ended_ || change.kind == FileChange::Kind::Pushed) return;
  if (scope_ == Store::WatchScope::Key ? change.name != key_ : !change.name.starts_with(key_)) {
    return;
  }
  if (changes_.size() - initial_count_ >= kWatchChangesMax) {
    changes_.clear();
    initial_count_ = 0;
    lost({ErrorKind::Unavailable,
          fmt::format("the watch of {} fell more than {} changes behind; begin again",
                      log::quote(key_), kWatchChangesMax)});
    return;
  }
  const Change::Kind kind = change.kind == FileChange::Kind::Created   ? Change::Kind::Created
                            : change.kind == FileChange::Kind::Updated ? Change::Kind::Updated
                                                                       : Change::Kind::Deleted;
  changes_.push_back(
      {.kind = kind, .key = std::string(change.name), .value = std::string(change.value)});
  wake();
}

void FileWatch::lost(const Error& error) {
  if (!ended_) ended_ = error;
  leave();
  wake();
}

}  // namespace

Result<std::unique_ptr<Store>> make_file_store(Loop& loop, Random& random,
                                               FileStoreOptions options) {
  Result<LogFile> file = LogFile::open(options.path);
  if (!file) return fail(file.error());
  return std::make_unique<FileStore>(loop, random, std::move(options), std::move(*file));
}

}  // namespace muster::store
