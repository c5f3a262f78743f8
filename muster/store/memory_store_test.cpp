#include "muster/store/memory_store.h"

#include "tests/store/contract.h"
#include "tests/store/test_loop.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace muster::store::testing {
namespace {

using namespace std::chrono_literals;

class MemoryFixture final : public StoreFixture {
 public:
  Store& store() override { return *store_; }
  Store& other() override { return *store_; }
  Loop& loop() override { return loop_; }
  bool run_until(const std::function<bool()>& done) override { return loop_.run_until(done); }
  void settle() override { ASSERT_TRUE(loop_.run_until_idle()); }

 private:
  TestLoop loop_;
  std::unique_ptr<Store> store_ = make_memory_store(loop_);
};

std::unique_ptr<StoreFixture> make_fixture() { return std::make_unique<MemoryFixture>(); }

INSTANTIATE_TEST_SUITE_P(Memory, StoreContract,
                         ::testing::Values(StoreKind{"Memory", make_fixture, {}}), kind_name);

class MemoryStoreTest : public ::testing::Test {
 protected:
  template <typename T>
  Result<T> await(Task<Result<T>> task) {
    Call<T> call(std::move(task));
    EXPECT_TRUE(loop.run_until([&] { return call.done(); }));
    return call.take();
  }

  TestLoop loop;
  std::unique_ptr<Store> store = make_memory_store(loop);
};

using MemoryStore = MemoryStoreTest;

TEST_F(MemoryStore, NeverRunsAWaiterInsideTheCallThatReleasesIt) {
  Call<std::string> get(store->get("k", kNever));
  Call<void> wait(store->wait({"k"}, kNever));
  Call<std::string> pop(store->queue_pop("q", kNever));
  Call<void> barrier(store->barrier("b", 2, kNever));
  const Call<void> set(store->set("k", "v"));
  const Call<void> push(store->queue_push("q", "item"));
  const Call<void> last(store->barrier("b", 2, kNever));
  EXPECT_TRUE(set.done() && push.done() && last.done());
  EXPECT_FALSE(get.done() || wait.done() || pop.done() || barrier.done());
  loop.run_until_idle();
  EXPECT_TRUE(get.done() && wait.done() && pop.done() && barrier.done());
}

TEST_F(MemoryStore, TimesOutAtTheDeadlineAndNotBefore) {
  const Call<std::string> get(store->get("k", loop.now() + 5s));
  loop.advance(4999ms);
  EXPECT_FALSE(get.done());
  loop.advance(1ms);
  ASSERT_TRUE(get.done());
  EXPECT_EQ(get.result().error(),
            (Error{ErrorKind::Timeout, "timed out after 5s waiting for key \"k\""}));
}

TEST_F(MemoryStore, NamesNoMoreThanThreeKeysThatDidNotCome) {
  ASSERT_TRUE(await(store->set("c", "x")));
  const Result<> wait = await(store->wait({"a", "b", "c", "d", "e", "f"}, loop.now() + 1s));
  ASSERT_FALSE(wait);
  EXPECT_EQ(wait.error().message,
            "timed out after 1s waiting for 5 of 6 keys: \"a\", \"b\", \"d\" and 2 more");
  const Result<std::vector<std::string>> values =
      await(store->multi_get({"c", "a"}, loop.now() + 1s));
  ASSERT_FALSE(values);
  EXPECT_EQ(values.error().message, "timed out after 1s waiting for 1 of 2 keys: \"a\"");
}

TEST_F(MemoryStore, NamesTheQueueAndTheBarrierThatTimedOut) {
  const Result<std::string> pop = await(store->queue_pop("q", loop.now() + 250ms));
  ASSERT_FALSE(pop);
  EXPECT_EQ(pop.error().message, "timed out after 250ms waiting for an item in queue \"q\"");
  const Result<> barrier = await(store->barrier("b", 2, loop.now() + 1s));
  ASSERT_FALSE(barrier);
  EXPECT_EQ(barrier.error().message,
            "timed out after 1s waiting for all to come to barrier \"b\" (\"1\" of 2 came)");
}

TEST_F(MemoryStore, DeliversAValueThatComesInTheInstantOfTheDeadline) {
  const TimePoint deadline = loop.now() + 1s;
  Call<std::string> get(store->get("k", deadline));
  std::optional<Call<void>> set;
  Timer timer(loop, [&] { set.emplace(store->set("k", "v")); });  // expires after that of the call
  timer.set(deadline);
  loop.advance(1s);
  ASSERT_TRUE(get.done());
  EXPECT_TRUE(gives(get.result(), "v"));
}

TEST_F(MemoryStore, WaitsOnWhenItsKeyIsDeletedBeforeItsTurn) {
  Call<std::string> get(store->get("k", kNever));
  Call<std::vector<std::string>> values(store->multi_get({"k", "l"}, kNever));
  {
    const Call<void> set(store->set("k", "old"));
    const Call<void> set_other(store->set("l", "x"));
    const Call<bool> erase(store->delete_key("k"));
  }
  loop.run_until_idle();
  EXPECT_FALSE(get.done() || values.done());
  ASSERT_TRUE(await(store->set("k", "new")));
  loop.run_until_idle();
  ASSERT_TRUE(get.done() && values.done());
  EXPECT_TRUE(gives(get.result(), "new"));
  const std::vector<std::string> expected = {"new", "x"};
  EXPECT_TRUE(gives(values.result(), expected));
}

TEST_F(MemoryStore, CompletesAWaitWhoseKeyIsDeletedBeforeItsTurn) {
  Call<void> wait(store->wait({"k"}, kNever));
  {
    const Call<void> set(store->set("k", "v"));
    const Call<bool> erase(store->delete_key("k"));
  }
  loop.run_until_idle();
  EXPECT_TRUE(wait.done());
}

TEST_F(MemoryStore, PassesAnItemOnWhenThePopItWokeIsDestroyedBeforeItsTurn) {
  std::optional<Call<std::string>> first(store->queue_pop("q", kNever));
  Call<std::string> second(store->queue_pop("q", kNever));
  const Call<void> push(store->queue_push("q", "item"));
  first.reset();
  loop.run_until_idle();
  ASSERT_TRUE(second.done());
  EXPECT_TRUE(gives(second.result(), "item"));
}

TEST_F(MemoryStore, PassesAnItemOnWhenAWaitDoesNotPopIt) {
  Call<void> wait(store->wait({"q"}, kNever));
  Call<std::string> pop(store->queue_pop("q", kNever));
  const Call<void> push(store->queue_push("q", "item"));
  loop.run_until_idle();
  EXPECT_TRUE(wait.done());
  ASSERT_TRUE(pop.done());
  EXPECT_TRUE(gives(pop.result(), "item"));
}

TEST_F(MemoryStore, WaitsOnWhenItsItemIsTakenBeforeItsTurn) {
  Call<std::string> pop(store->queue_pop("q", kNever));
  const Call<void> push(store->queue_push("q", "1"));
  Call<std::optional<std::string>> thief(store->try_queue_pop("q"));
  loop.run_until_idle();
  EXPECT_TRUE(gives(thief.result(), "1"));
  EXPECT_FALSE(pop.done());
  ASSERT_TRUE(await(store->queue_push("q", "2")));
  loop.run_until_idle();
  ASSERT_TRUE(pop.done());
  EXPECT_TRUE(gives(pop.result(), "2"));
}

TEST_F(MemoryStore, LeavesAnItemToTheNextWhenTheDeadlineComesFirst) {
  const TimePoint deadline = loop.now() + 1s;
  Call<std::string> late(store->queue_pop("q", deadline));
  Call<std::string> next(store->queue_pop("q", kNever));
  std::optional<Call<void>> push;
  Timer timer(loop, [&] { push.emplace(store->queue_push("q", "item")); });
  timer.set(deadline);
  loop.advance(1s);
  ASSERT_TRUE(late.done() && next.done());
  EXPECT_FALSE(late.result());
  EXPECT_TRUE(gives(next.result(), "item"));
}

TEST_F(MemoryStore, KeepsGetAndPopOfOneNameApart) {
  ASSERT_TRUE(await(store->queue_push("x", "item")));
  Call<std::string> get(store->get("x", kNever));
  loop.run_until_idle();
  EXPECT_FALSE(get.done());
  ASSERT_TRUE(await(store->set("x", "value")));
  EXPECT_TRUE(gives(await(store->queue_pop("x", kNever)), "item"));
  Call<std::string> pop(store->queue_pop("x", kNever));
  loop.run_until_idle();
  EXPECT_TRUE(gives(get.result(), "value"));
  EXPECT_FALSE(pop.done());
}

TEST_F(MemoryStore, RefusesABarrierOnAText) {
  ASSERT_TRUE(await(store->set("b", "text")));
  const Result<> result = await(store->barrier("b", 2, kNever));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::Invalid);
}

TEST_F(MemoryStore, EndsAWatchThatFallsTooFarBehind) {
  Result<std::unique_ptr<Watch>> slow = await(store->watch("k", Store::WatchScope::Key));
  ASSERT_TRUE(slow);
  for (std::size_t i = 0; i < kWatchChangesMax; ++i) ASSERT_TRUE(await(store->set("k", "v")));
  EXPECT_EQ((*await((*slow)->next(kNever))).kind, Change::Kind::Absent);
  EXPECT_EQ((*await((*slow)->next(kNever))).kind, Change::Kind::Created);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(await(store->set("k", "v")));
  for (int i = 0; i < 2; ++i) {
    const Result<Change> ended = await((*slow)->next(kNever));
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().kind, ErrorKind::Unavailable);
  }
}

TEST_F(MemoryStore, BeginsAWatchOfMoreKeysThanItMayFallBehind) {
  const std::size_t key_count = kWatchChangesMax + 10;
  for (std::size_t i = 0; i < key_count; ++i)
    ASSERT_TRUE(await(store->set("p/" + std::to_string(i), "v")));
  Result<std::unique_ptr<Watch>> watch = await(store->watch("p/", Store::WatchScope::Prefix));
  ASSERT_TRUE(watch);
  ASSERT_TRUE(await(store->set("p/new", "w")));
  for (std::size_t i = 0; i < key_count; ++i) {
    const Result<Change> change = await((*watch)->next(kNever));
    ASSERT_TRUE(change);
    EXPECT_EQ(change->kind, Change::Kind::Present);
  }
  EXPECT_TRUE(gives(await((*watch)->next(kNever)), Change{Change::Kind::Created, "p/new", "w"}));
}

TEST_F(MemoryStore, ClosesANextWhoseWatchIsDestroyed) {
  Result<std::unique_ptr<Watch>> watch = await(store->watch("k", Store::WatchScope::Key));
  ASSERT_TRUE(watch);
  ASSERT_TRUE(await((*watch)->next(kNever)));
  Call<Change> next((*watch)->next(kNever));
  watch->reset();
  loop.run_until_idle();
  ASSERT_TRUE(next.done());
  EXPECT_EQ(next.result().error().kind, ErrorKind::Closed);
}

TEST_F(MemoryStore, RefusesASecondNextWhileOneWaits) {
  Result<std::unique_ptr<Watch>> watch = await(store->watch("k", Store::WatchScope::Key));
  ASSERT_TRUE(watch);
  ASSERT_TRUE(await((*watch)->next(kNever)));
  Call<Change> next((*watch)->next(kNever));
  const Result<Change> second = await((*watch)->next(kNever));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, ErrorKind::Invalid);
}

TEST_F(MemoryStore, ReleasesTenThousandWaitersOfOneKey) {
  std::vector<std::unique_ptr<Call<std::string>>> waiting;
  for (int i = 0; i < 10'000; ++i)
    waiting.push_back(std::make_unique<Call<std::string>>(store->get("k", kNever)));
  for (std::size_t i = 0; i < waiting.size(); i += 2) waiting[i].reset();
  ASSERT_TRUE(await(store->set("k", "v")));
  loop.run_until_idle();
  for (std::size_t i = 1; i < waiting.size(); i += 2) EXPECT_TRUE(waiting[i]->done());
}

TEST(Change, HasANameForEveryKind) {
  EXPECT_EQ(name_of(Change::Kind::Present), "present");
  EXPECT_EQ(name_of(Change::Kind::Absent), "absent");
  EXPECT_EQ(name_of(Change::Kind::Created), "created");
  EXPECT_EQ(name_of(Change::Kind::Updated), "updated");
  EXPECT_EQ(name_of(Change::Kind::Deleted), "deleted");
}

}  // namespace
}  // namespace muster::store::testing
