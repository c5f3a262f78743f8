#include "muster/store/file_store.h"

#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/store/file_log.h"
#include "tests/store/contract.h"
#include "tests/store/store_folder.h"
#include "tests/store/test_loop.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <vector>

namespace muster::store {
namespace {

using namespace std::chrono_literals;
using testing::expect_error;

// One process, several stores: virtual time.
class FileStore : public ::testing::Test, protected testing::StoreFolder {
 protected:
  FileStore() {
    log::set_sink([this](log::Level, std::string_view, std::string_view message) {
      log_lines_.emplace_back(message);
    });
  }
  ~FileStore() override { log::set_sink({}); }

  std::unique_ptr<Store> open() { return open({.path = path()}); }
  std::unique_ptr<Store> open(FileStoreOptions options) {
    return testing::open_store(loop_, random_, std::move(options));
  }
  TimePoint now() const { return loop_.now(); }
  TimePoint bound() const { return now() + 60s; }
  template <typename T>
  Result<T> run(Task<Result<T>> task) {
    testing::Call<T> call(std::move(task));
    if (!loop_.run_until([&] { return call.done(); })) ADD_FAILURE() << "the call does not end";
    return call.take();
  }
  template <typename T>
  Result<T> join(testing::Call<T>& call) {
    if (!loop_.run_until([&] { return call.done(); })) ADD_FAILURE() << "the call does not end";
    return call.take();
  }

  testing::TestLoop loop_;
  Random random_{1};
  std::vector<std::string> log_lines_;
};

TEST_F(FileStore, ShowsOneStoreWhatAnotherWrote) {
  const auto writer = open();
  const auto reader = open();
  EXPECT_TRUE(run(writer->set("k", "v")));
  EXPECT_EQ(*run(reader->get("k", bound())), "v");
  EXPECT_EQ(*run(reader->try_get("other")), std::nullopt);
  EXPECT_TRUE(run(reader->set("k", "")));
  EXPECT_EQ(*run(writer->try_get("k")), std::optional<std::string>(""));
  EXPECT_TRUE(is_unlocked());
}

TEST_F(FileStore, WritesTheFileThatPyTorchWrites) {
  const auto store = open();
  EXPECT_TRUE(run(store->set("k", "v1")));
  EXPECT_EQ(*run(store->add("c", 5)), 5);
  EXPECT_EQ(*run(store->add("c", -7)), -2);
  EXPECT_TRUE(*run(store->delete_key("k")));
  EXPECT_FALSE(*run(store->delete_key("k")));
  std::string expected;
  append_set("k", "v1", expected);
  append_set("c", "5", expected);
  append_set("c", "-2", expected);
  append_delete("k", expected);
  EXPECT_EQ(file(), expected);
}

TEST_F(FileStore, ComparesAndSetsAsTheProtocolSays) {
  const auto store = open();
  EXPECT_EQ(*run(store->compare_set("k", "other", "1")), (CompareSet{false, "other"}));
  EXPECT_EQ(*run(store->compare_set("k", "", "1")), (CompareSet{true, "1"}));
  EXPECT_EQ(*run(store->compare_set("k", "", "2")), (CompareSet{false, "1"}));
  EXPECT_EQ(*run(store->compare_set("k", "1", "2")), (CompareSet{true, "2"}));
  EXPECT_EQ(*run(open()->try_get("k")), "2");
}

TEST_F(FileStore, AppendsCountsAndLists) {
  const auto store = open();
  EXPECT_TRUE(run(store->append("log", "one ")));
  EXPECT_TRUE(run(store->append("log", "two")));
  EXPECT_TRUE(run(store->multi_set({{"b", "2"}, {"a", "1"}})));
  EXPECT_TRUE(run(store->queue_push("q", "item")));
  const auto other = open();
  EXPECT_EQ(*run(other->multi_get({"log", "a", "b"}, bound())),
            (std::vector<std::string>{"one two", "1", "2"}));
  EXPECT_EQ(*run(other->num_keys()), 3);
  EXPECT_EQ(*run(other->list_keys("")), (std::vector<std::string>{"a", "b", "log"}));
  EXPECT_EQ(*run(other->list_keys("lo")), std::vector<std::string>{"log"});
  EXPECT_TRUE(*run(other->check({"a", "q"})));
  EXPECT_FALSE(*run(other->check({"a", "missing"})));
  expect_error(run(other->add("log", 1)), ErrorKind::Invalid, "is not a number");
}

TEST_F(FileStore, KeepsQueuesInOrderAndApartFromKeys) {
  const auto left = open();
  const auto right = open();
  EXPECT_TRUE(run(left->queue_push("q", "1")));
  EXPECT_TRUE(run(right->queue_push("q", "")));
  EXPECT_TRUE(run(left->set("q", "a key")));
  EXPECT_EQ(*run(right->queue_length("q")), 2);
  EXPECT_EQ(*run(right->queue_pop("q", bound())), "1");
  EXPECT_EQ(*run(left->try_queue_pop("q")), std::optional<std::string>(""));
  EXPECT_EQ(*run(right->try_queue_pop("q")), std::nullopt);
  EXPECT_EQ(*run(left->queue_length("q")), 0);
  EXPECT_EQ(*run(left->get("q", bound())), "a key");
}

TEST_F(FileStore, ReleasesWaitersOfAnotherStore) {
  const auto waiting = open();
  const auto writing = open();
  testing::Call<std::string> get(waiting->get("k", bound()));
  testing::Call<void> wait(waiting->wait({"k", "q"}, bound()));
  testing::Call<std::string> pop(waiting->queue_pop("q", bound()));
  EXPECT_FALSE(get.done() || wait.done() || pop.done());
  EXPECT_TRUE(run(writing->queue_push("q", "item")));
  EXPECT_EQ(*join(pop), "item");
  EXPECT_TRUE(run(writing->set("k", "v")));
  EXPECT_EQ(*join(get), "v");
  EXPECT_TRUE(join(wait));
}

TEST_F(FileStore, ReleasesAWaiterThoughTheKeyIsGoneAgain) {
  const auto waiting = open();
  const auto writing = open();
  testing::Call<void> wait(waiting->wait({"k"}, bound()));
  EXPECT_TRUE(run(writing->set("k", "v")));
  EXPECT_TRUE(*run(writing->delete_key("k")));
  EXPECT_TRUE(join(wait));
}

TEST_F(FileStore, SaysWhatAWaitThatTimedOutWasWaitingFor) {
  const auto store = open();
  EXPECT_TRUE(run(store->set("here", "")));
  const TimePoint past = now() - 1s;
  expect_error(run(store->get("k", past)), ErrorKind::Timeout, R"(waiting for "k" in the store)");
  expect_error(run(store->wait({"here", "a", "b"}, now() + 20ms)), ErrorKind::Timeout,
               R"(waiting for "a" and 1 more in the store)");
  expect_error(run(store->queue_pop("q", past)), ErrorKind::Timeout, R"(waiting for "q")");
  EXPECT_EQ(*run(store->get("here", past)), "");
}

TEST_F(FileStore, GivesAnItemToOneOfSeveralWaiters) {
  const auto left = open();
  const auto right = open();
  testing::Call<std::string> first(left->queue_pop("q", bound()));
  testing::Call<std::string> second(right->queue_pop("q", bound()));
  EXPECT_TRUE(run(left->queue_push("q", "1")));
  EXPECT_TRUE(run(right->queue_push("q", "2")));
  const std::string one = *join(first);
  const std::string other = *join(second);
  EXPECT_EQ(std::min(one, other) + std::max(one, other), "12");
}

TEST_F(FileStore, HoldsABarrierUntilAllHaveCome) {
  const auto one = open();
  const auto two = open();
  testing::Call<void> first(one->barrier("b", 3, bound()));
  testing::Call<void> second(two->barrier("b", 3, bound()));
  EXPECT_EQ(*run(one->get("b/num_members", bound())), "2");
  EXPECT_FALSE(first.done() || second.done());
  EXPECT_TRUE(run(one->barrier("b", 3, bound())));
  EXPECT_TRUE(join(first));
  EXPECT_TRUE(join(second));
  EXPECT_EQ(*run(one->get("b/last_member", bound())), "1");
  EXPECT_TRUE(run(two->barrier("b", 3, bound())));
  expect_error(run(two->barrier("c", 2, now() + 10ms)), ErrorKind::Timeout, "c/last");
}

TEST_F(FileStore, ReportsChangesToAWatchedKeyInOrder) {
  const auto watching = open();
  const auto writing = open();
  const auto watch = *run(watching->watch("k", Store::WatchScope::Key));
  EXPECT_TRUE(run(writing->set("k", "1")));
  EXPECT_TRUE(run(writing->set("kk", "not watched")));
  EXPECT_TRUE(run(writing->set("k", "1")));
  EXPECT_TRUE(*run(writing->delete_key("k")));
  EXPECT_TRUE(run(watching->set("k", "own")));
  using Kind = Change::Kind;
  EXPECT_EQ(*run(watch->next(bound())), (Change{Kind::Absent, "k", ""}));
  EXPECT_EQ(*run(watch->next(bound())), (Change{Kind::Created, "k", "1"}));
  EXPECT_EQ(*run(watch->next(bound())), (Change{Kind::Updated, "k", "1"}));
  EXPECT_EQ(*run(watch->next(bound())), (Change{Kind::Deleted, "k", ""}));
  EXPECT_EQ(*run(watch->next(bound())), (Change{Kind::Created, "k", "own"}));
  expect_error(run(watch->next(now() + 20ms)), ErrorKind::Timeout, R"("k")");
  testing::Call<Change> next(watch->next(bound()));
  EXPECT_TRUE(run(writing->set("k", "last")));
  EXPECT_EQ(*join(next), (Change{Kind::Updated, "k", "last"}));
}

TEST_F(FileStore, BeginsAPrefixWatchWithWhatIsThere) {
  const auto watching = open();
  const auto writing = open();
  EXPECT_TRUE(run(writing->multi_set({{"a/2", "x"}, {"a/1", "y"}, {"b", "z"}})));
  const auto watch = *run(watching->watch("a/", Store::WatchScope::Prefix));
  EXPECT_TRUE(run(writing->set("a/3", "w")));
  using Kind = Change::Kind;
  EXPECT_EQ(*run(watch->next(bound())), (Change{Kind::Present, "a/1", "y"}));
  EXPECT_EQ(*run(watch->next(bound())), (Change{Kind::Present, "a/2", "x"}));
  EXPECT_EQ(*run(watch->next(bound())), (Change{Kind::Created, "a/3", "w"}));
}

Task<Result<std::int64_t>> count_updates(Watch& watch, std::int64_t count_max, TimePoint deadline) {
  std::int64_t count = 0;
  while (count < count_max) {
    const auto change = co_await watch.next(deadline);
    if (!change) co_return fail(change.error());
    if (change->kind == Change::Kind::Created) ++count;
  }
  co_return count;
}

TEST_F(FileStore, DoesNotEndAWatchForABurstOfWrites) {
  const std::int64_t burst = 5 * static_cast<std::int64_t>(kWatchChangesMax);
  const auto watching = open();
  const auto writing = open();
  const auto watch = *run(watching->watch("", Store::WatchScope::Prefix));
  testing::Call<std::int64_t> count(count_updates(*watch, burst, bound()));
  std::vector<KeyValue> pairs;
  for (std::int64_t index = 0; index < burst; ++index) pairs.push_back({std::to_string(index), ""});
  EXPECT_TRUE(run(writing->multi_set(pairs)));
  const auto counted = join(count);
  ASSERT_TRUE(counted) << counted.error().message;
  EXPECT_EQ(*counted, burst);
}

TEST_F(FileStore, EndsAWatchThatFallsTooFarBehind) {
  const auto store = open();
  std::vector<KeyValue> pairs(kWatchChangesMax, {"k", "v"});
  const auto at_the_limit = *run(store->watch("k", Store::WatchScope::Key));
  const auto past_it = *run(store->watch("", Store::WatchScope::Prefix));
  EXPECT_TRUE(run(store->multi_set(pairs)));
  EXPECT_EQ(run(at_the_limit->next(bound()))->kind, Change::Kind::Absent);
  for (std::size_t index = 0; index < kWatchChangesMax; ++index) {
    ASSERT_TRUE(run(at_the_limit->next(bound())));
  }
  EXPECT_TRUE(run(store->set("other", "v")));
  expect_error(run(past_it->next(bound())), ErrorKind::Unavailable, "4096 changes behind");
  expect_error(run(past_it->next(bound())), ErrorKind::Unavailable, "4096 changes behind");
}

TEST_F(FileStore, RefusesWhatIsLargerThanItsLimits) {
  const auto store = open();
  const std::string key(kFileKeyBytesMax, 'k');
  const std::string value(kFileValueBytesMax, 'v');
  EXPECT_TRUE(run(store->set(key, value)));
  EXPECT_TRUE(run(store->queue_push(key, value)));
  EXPECT_EQ(*run(open()->try_get(key)), value);
  EXPECT_EQ(*run(open()->try_queue_pop(key)), value);
  EXPECT_TRUE(*run(store->delete_key(key)));
  const std::string before = file();
  expect_error(run(store->set(key + "k", "")), ErrorKind::Invalid, "8193 bytes");
  expect_error(run(store->set("k", value + "v")), ErrorKind::Invalid, "8388609 bytes");
  expect_error(run(store->queue_push("q", value + "v")), ErrorKind::Invalid, "8388609 bytes");
  expect_error(run(store->compare_set("k", "", value + "v")), ErrorKind::Invalid, "8388609");
  expect_error(run(store->barrier(key, 1, bound())), ErrorKind::Invalid, "8204 bytes");
  EXPECT_EQ(file(), before);
  EXPECT_TRUE(run(store->set("k", value)));
  expect_error(run(store->append("k", "v")), ErrorKind::Invalid, "8388609 bytes");
  std::vector<std::string> keys(kFileKeysMax, "k");
  EXPECT_TRUE(*run(store->check(keys)));
  keys.emplace_back("k");
  expect_error(run(store->check(keys)), ErrorKind::Invalid, "131073 keys");
}

// --- Damage

TEST_F(FileStore, CutsOffARecordWhoseWriterWasKilledAtAnyByte) {
  std::string whole;
  append_set("k", "v", whole);
  std::string unfinished;
  append_set("lost", "value", unfinished);
  for (std::size_t size = 1; size < unfinished.size(); ++size) {
    for (const bool reads_first : {true, false}) {
      write_file(whole + unfinished.substr(0, size));
      const auto store = open();
      if (reads_first) {
        EXPECT_EQ(*run(store->try_get("k")), "v");
        EXPECT_EQ(file(), whole);
      }
      EXPECT_EQ(*run(store->add("c", 1)), 1);
      std::string expected = whole;
      append_set("c", "1", expected);
      EXPECT_EQ(file(), expected);
      std::filesystem::remove(path());
    }
  }
}

TEST_F(FileStore, LogsARecordThatItCutsOffOnce) {
  write_file("\x05");
  const auto store = open();
  EXPECT_EQ(*run(store->num_keys()), 0);
  EXPECT_EQ(*run(open()->num_keys()), 0);
  ASSERT_EQ(log_lines_.size(), 1U);
  EXPECT_EQ(log_lines_[0],
            "cut off a record whose writer was killed file=\"" + path() + "\" offset=0");
}

TEST_F(FileStore, ReadsUpToAnUnfinishedRecordThatItCannotCutYet) {
  std::string bytes;
  append_set("k", "v", bytes);
  write_file(bytes + "\x05");
  const auto store = open();
  {
    const Fd reader = lock_as_another(LOCK_SH);
    EXPECT_EQ(*run(store->try_get("k")), "v");
    EXPECT_EQ(*run(store->num_keys()), 1);
    EXPECT_EQ(file(), bytes + "\x05");
  }
  EXPECT_EQ(*run(store->num_keys()), 1);
  EXPECT_EQ(file(), bytes);
}

TEST_F(FileStore, LeavesAFileThatIsNotAStoresAsItIs) {
  std::string damaged;
  append_set("k", "v", damaged);
  damaged += std::string(16, '\xff');
  for (const std::string& bytes : {std::string("#!/bin/sh\nexit 0\n"), damaged}) {
    write_file(bytes);
    const auto store = open();
    const std::string text = path() + " is not a store file, or was damaged: there is a key of";
    expect_error(run(store->try_get("k")), ErrorKind::Invalid, text);
    expect_error(run(store->set("k", "v")), ErrorKind::Invalid, text);
    expect_error(run(store->add("k", 1)), ErrorKind::Invalid,
                 bytes == damaged ? "at offset 11" : "at offset 0");
    expect_error(run(store->wait({"k"}, bound())), ErrorKind::Invalid, text);
    EXPECT_EQ(file(), bytes);
    EXPECT_TRUE(is_unlocked());
  }
}

TEST_F(FileStore, TellsWaitersOfDamage) {
  const auto store = open();
  testing::Call<std::string> get(store->get("k", bound()));
  const auto watch = *run(store->watch("k", Store::WatchScope::Key));
  EXPECT_TRUE(run(watch->next(bound())));
  write_file("not a store");
  expect_error(join(get), ErrorKind::Invalid, "is not a store file");
  expect_error(run(watch->next(bound())), ErrorKind::Invalid, "is not a store file");
}

TEST_F(FileStore, IsClosedWhenItsFileIsRemoved) {
  const auto store = open();
  EXPECT_TRUE(run(store->set("k", "v")));
  testing::Call<void> wait(store->wait({"other"}, bound()));
  std::filesystem::remove(path());
  expect_error(join(wait), ErrorKind::Closed, path() + " was removed");
  expect_error(run(store->set("k", "w")), ErrorKind::Closed, "was removed");
  write_file("");
  expect_error(run(store->try_get("k")), ErrorKind::Closed, "was removed");
  EXPECT_EQ(file(), "");
}

TEST_F(FileStore, IsClosedWhenItsFileIsReplacedOrEmptied) {
  const auto replaced = open();
  EXPECT_TRUE(run(replaced->set("k", "v")));
  const auto emptied = open();
  EXPECT_TRUE(run(emptied->try_get("k")));
  std::filesystem::resize_file(path(), 3);
  expect_error(run(emptied->set("k", "w")), ErrorKind::Closed, "was cut to 3 bytes after 11");
  std::filesystem::rename(path(), path() + ".old");
  write_file("");
  expect_error(run(replaced->set("k", "w")), ErrorKind::Closed, path() + " was replaced");
  EXPECT_EQ(file(), "");
}

TEST_F(FileStore, SaysWhyAFileCannotBeOpened) {
  const auto fails = [&](const std::string& path, std::string_view reason) {
    const auto store = make_file_store(loop_, random_, {.path = path});
    expect_error(store, ErrorKind::Invalid, reason);
  };
  fails("", "is empty");
  fails(folder(), folder() + ": is a directory");
  fails(folder() + "/no/store", "/no/store: no such file or directory");
  fails("/dev/null", "/dev/null: it is not a regular file");
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  fails(path(), "it is not a regular file");
}

TEST_F(FileStore, FindsItsFileAfterAChangeOfDirectory) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder());
  const auto store = open({.path = "store"});
  std::filesystem::current_path(before);
  EXPECT_TRUE(run(store->set("k", "v")));
  EXPECT_EQ(*run(open()->try_get("k")), "v");
}

TEST_F(FileStore, EndsWaitsAndWatchesWhenTheLockIsKeptFromIt) {
  const auto store = open({.path = path(), .lock_patience = 50ms});
  const auto watch = *run(store->watch("k", Store::WatchScope::Key));
  EXPECT_TRUE(run(watch->next(bound())));
  testing::Call<std::string> get(store->get("k", bound()));
  testing::Call<Change> next(watch->next(bound()));
  const Fd held = lock_as_another(LOCK_EX);
  expect_error(join(get), ErrorKind::Unavailable, "locked for 50ms");
  expect_error(join(next), ErrorKind::Unavailable, "locked for 50ms");
}

// --- What every store must do

class FileFixture final : public testing::StoreFixture, private testing::StoreFolder {
 public:
  Store& store() override { return *store_; }
  Store& other() override { return *other_; }
  Loop& loop() override { return loop_; }
  bool run_until(const std::function<bool()>& done) override { return loop_.run_until(done); }
  void settle() override { loop_.advance(1s); }

 private:
  testing::TestLoop loop_;
  Random random_{1};
  std::unique_ptr<Store> store_ = testing::open_store(loop_, random_, {.path = path()});
  std::unique_ptr<Store> other_ = testing::open_store(loop_, random_, {.path = path()});
};

testing::StoreKind file_kind() {
  return {.name = "File",
          .make = [] { return std::make_unique<FileFixture>(); },
          .can = {.empty_is_no_number = false}};
}

}  // namespace

namespace testing {
INSTANTIATE_TEST_SUITE_P(File, StoreContract, ::testing::Values(file_kind()), kind_name);
}  // namespace testing

}  // namespace muster::store
