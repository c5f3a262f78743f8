#include "muster/store/prefix_store.h"

#include "muster/store/memory_store.h"
#include "tests/store/contract.h"
#include "tests/store/test_loop.h"

#include <gtest/gtest.h>

namespace muster::store::testing {
namespace {

class PrefixFixture final : public StoreFixture {
 public:
  explicit PrefixFixture(std::string prefix)
      : store_(make_prefix_store(prefix, *inner_)), other_(make_prefix_store(prefix, *inner_)) {
    // A neighbour that must stay invisible.
    const Call<void> set(inner_->set("elsewhere/k", "x"));
  }
  Store& store() override { return *store_; }
  Store& other() override { return *other_; }
  Loop& loop() override { return loop_; }
  bool run_until(const std::function<bool()>& done) override { return loop_.run_until(done); }
  void settle() override { ASSERT_TRUE(loop_.run_until_idle()); }

 private:
  TestLoop loop_;
  std::unique_ptr<Store> inner_ = make_memory_store(loop_);
  std::unique_ptr<Store> store_;
  std::unique_ptr<Store> other_;
};

std::unique_ptr<StoreFixture> make_named() { return std::make_unique<PrefixFixture>("job/7"); }
std::unique_ptr<StoreFixture> make_unnamed() { return std::make_unique<PrefixFixture>(""); }

INSTANTIATE_TEST_SUITE_P(Prefix, StoreContract,
                         ::testing::Values(StoreKind{"PrefixOverMemory", make_named, {}},
                                           StoreKind{"EmptyPrefixOverMemory", make_unnamed, {}}),
                         kind_name);

class PrefixStoreTest : public ::testing::Test {
 protected:
  template <typename T>
  Result<T> await(Task<Result<T>> task) {
    Call<T> call(std::move(task));
    EXPECT_TRUE(loop.run_until([&] { return call.done(); }));
    return call.take();
  }
  std::vector<std::string> inner_keys() { return *await(inner->list_keys("")); }

  TestLoop loop;
  std::unique_ptr<Store> inner = make_memory_store(loop);
};

using PrefixStore = PrefixStoreTest;
using Keys = std::vector<std::string>;

TEST_F(PrefixStore, JoinsPrefixAndKeyWithASlash) {
  const auto view = make_prefix_store("pre/fix", *inner);
  ASSERT_TRUE(await(view->set("kk", "v")));
  EXPECT_EQ(inner_keys(), Keys{"pre/fix/kk"});
}

TEST_F(PrefixStore, ContributesASlashThoughThePrefixIsEmpty) {
  const auto view = make_prefix_store("", *inner);
  ASSERT_TRUE(await(view->set("kk", "v")));
  EXPECT_EQ(inner_keys(), Keys{"/kk"});
}

TEST_F(PrefixStore, NestsWithTheOuterPrefixNextToTheKey) {
  const auto middle = make_prefix_store("pre/fix", *inner);
  const auto empty = make_prefix_store("", *middle);
  const auto outer = make_prefix_store("x", *empty);
  ASSERT_TRUE(await(empty->set("kk", "v")));
  ASSERT_TRUE(await(outer->set("kk", "v")));
  EXPECT_EQ(inner_keys(), (Keys{"pre/fix//kk", "pre/fix//x/kk"}));
  EXPECT_TRUE(gives(await(outer->list_keys("k")), Keys{"kk"}));
  EXPECT_TRUE(gives(await(middle->list_keys("")), Keys{"/kk", "/x/kk"}));
}

TEST_F(PrefixStore, PrefixesTheKeysOfEveryOperation) {
  const auto view = make_prefix_store("p", *inner);
  const std::vector<KeyValue> pairs = {{"multi", "1"}};
  ASSERT_TRUE(await(view->add("add", 1)));
  ASSERT_TRUE(await(view->append("append", "x")));
  ASSERT_TRUE(await(view->barrier("barrier", 1, kNever)));
  ASSERT_TRUE(await(view->compare_set("compare", "", "x")));
  ASSERT_TRUE(await(view->multi_set(pairs)));
  ASSERT_TRUE(await(view->queue_push("queue", "item")));
  EXPECT_EQ(inner_keys(), (Keys{"p/add", "p/append", "p/barrier", "p/compare", "p/multi"}));
  EXPECT_TRUE(gives(await(inner->queue_length("p/queue")), 1));

  EXPECT_TRUE(gives(await(view->check({"add", "queue"})), true));
  EXPECT_TRUE(await(view->wait({"add", "append"}, kNever)));
  EXPECT_TRUE(gives(await(view->multi_get({"add", "multi"}, kNever)), Keys{"1", "1"}));
  EXPECT_TRUE(gives(await(view->queue_pop("queue", kNever)), "item"));
  EXPECT_TRUE(gives(await(view->delete_key("add")), true));
  EXPECT_TRUE(gives(await(inner->check({"p/add"})), false));
}

TEST_F(PrefixStore, CountsTheKeysOfTheWholeStore) {
  const auto view = make_prefix_store("p", *inner);
  ASSERT_TRUE(await(inner->set("outside", "x")));
  ASSERT_TRUE(await(view->set("inside", "x")));
  EXPECT_TRUE(gives(await(view->num_keys()), 2));
}

TEST_F(PrefixStore, ListsOnlyWhatIsBehindItsSlash) {
  const auto view = make_prefix_store("p", *inner);
  for (const char* key : {"p", "p/", "p/b", "p/a", "pp/c", "q"})
    ASSERT_TRUE(await(inner->set(key, "x")));
  EXPECT_TRUE(gives(await(view->list_keys("")), Keys{"", "a", "b"}));
  EXPECT_TRUE(gives(await(view->list_keys("a")), Keys{"a"}));
}

TEST_F(PrefixStore, ReportsChangesUnderTheNamesOfTheView) {
  const auto view = make_prefix_store("p", *inner);
  Result<std::unique_ptr<Watch>> one = await(view->watch("k", Store::WatchScope::Key));
  Result<std::unique_ptr<Watch>> all = await(view->watch("", Store::WatchScope::Prefix));
  ASSERT_TRUE(one && all);
  ASSERT_TRUE(await(inner->set("p/k", "1")));
  ASSERT_TRUE(await(inner->set("k", "outside")));
  ASSERT_TRUE(await(inner->set("p/l", "2")));
  EXPECT_TRUE(gives(await((*one)->next(kNever)), Change{Change::Kind::Absent, "k", ""}));
  EXPECT_TRUE(gives(await((*one)->next(kNever)), Change{Change::Kind::Created, "k", "1"}));
  EXPECT_TRUE(gives(await((*all)->next(kNever)), Change{Change::Kind::Created, "k", "1"}));
  EXPECT_TRUE(gives(await((*all)->next(kNever)), Change{Change::Kind::Created, "l", "2"}));
}

TEST_F(PrefixStore, ClosesANextWhoseWatchIsDestroyed) {
  const auto view = make_prefix_store("p", *inner);
  Result<std::unique_ptr<Watch>> watch = await(view->watch("k", Store::WatchScope::Key));
  ASSERT_TRUE(watch);
  ASSERT_TRUE(await((*watch)->next(kNever)));
  Call<Change> next((*watch)->next(kNever));
  watch->reset();
  loop.run_until_idle();
  ASSERT_TRUE(next.done());
  EXPECT_EQ(next.result().error().kind, ErrorKind::Closed);
}

}  // namespace
}  // namespace muster::store::testing
