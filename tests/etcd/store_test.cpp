// The store contract against real etcd, and what is particular to a store there.
#include "muster/etcd/store.h"

#include "tests/etcd/cluster.h"
#include "tests/net/drive.h"
#include "tests/store/contract.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::store::testing {
namespace {

using namespace std::chrono_literals;

class EtcdFixture final : public StoreFixture {
 public:
  EtcdFixture() {
    const etcd::Options options = etcd::testing::shared_cluster().options();
    client_ = etcd::testing::connect_to(loop_, random_, options);
    other_client_ = etcd::testing::connect_to(loop_, random_, options);
    const std::string root = client_->prefix() + "/store/";
    store_ = etcd::make_store(*client_, root);
    other_ = etcd::make_store(*other_client_, root);
  }

  Store& store() override { return *store_; }
  Store& other() override { return *other_; }
  Loop& loop() override { return loop_; }
  bool run_until(const std::function<bool()>& done) override {
    return tests::run_until(loop_, done);
  }
  // A wait is a read and a watch; a write is a lease, a read and a write.
  void settle() override {
    for (int trip = 0; trip < 4; ++trip) {
      EXPECT_TRUE(loop_.block_on(client_->status()));
      EXPECT_TRUE(loop_.block_on(other_client_->status()));
    }
  }

 private:
  Random random_{1};
  net::EpollLoop loop_;
  std::unique_ptr<etcd::Client> client_;
  std::unique_ptr<etcd::Client> other_client_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Store> other_;
};

std::vector<StoreKind> kinds() {
  if (!etcd::testing::why_missing().empty()) return {};
  return {StoreKind{"Etcd", [] { return std::make_unique<EtcdFixture>(); }, {}}};
}

INSTANTIATE_TEST_SUITE_P(Etcd, StoreContract, ::testing::ValuesIn(kinds()), kind_name);

class EtcdStore : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = etcd::testing::why_missing();
    if (!reason.empty()) GTEST_SKIP() << reason;
    client_ = etcd::testing::connect_to(loop_, random_, etcd::testing::shared_cluster().options());
    root_ = client_->prefix() + "/store/";
    store_ = etcd::make_store(*client_, root_);
    other_ = etcd::make_store(*client_, root_);
  }
  TimePoint patience() { return loop_.now() + 30s; }

  Random random_{1};
  net::EpollLoop loop_;
  std::unique_ptr<etcd::Client> client_;
  std::string root_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Store> other_;
};

TEST_F(EtcdStore, KeepsQueuesApartWhoseNamesBeginAlike) {
  ASSERT_TRUE(loop_.block_on(store_->queue_push("a/b", "of a/b")));
  ASSERT_TRUE(loop_.block_on(store_->queue_push("a", "of a")));
  EXPECT_TRUE(gives(loop_.block_on(store_->queue_length("a")), 1));
  EXPECT_TRUE(gives(loop_.block_on(store_->queue_pop("a", patience())), "of a"));
  EXPECT_TRUE(gives(loop_.block_on(other_->queue_pop("a/b", patience())), "of a/b"));
}

TEST_F(EtcdStore, PopsInOrderWhatMoreThanOneLookBrings) {
  for (int i = 0; i < 150; ++i)
    ASSERT_TRUE(loop_.block_on(store_->queue_push("q", std::to_string(i))));
  for (int i = 0; i < 150; ++i) {
    Store& taker = i % 3 == 0 ? *store_ : *other_;
    ASSERT_TRUE(gives(loop_.block_on(taker.queue_pop("q", patience())), std::to_string(i)));
  }
  EXPECT_TRUE(gives(loop_.block_on(store_->queue_length("q")), 0));
}

TEST_F(EtcdStore, ListsMoreKeysThanFitOnAPage) {
  std::vector<KeyValue> pairs;
  pairs.reserve(2500);
  for (int i = 0; i < 2500; ++i) pairs.push_back({"key-" + std::to_string(10'000 + i), ""});
  ASSERT_TRUE(loop_.block_on(store_->multi_set(pairs)));
  const auto keys = loop_.block_on(store_->list_keys("key-"));
  ASSERT_TRUE(keys) << keys.error().message;
  ASSERT_EQ(keys->size(), pairs.size());
  EXPECT_EQ(keys->front(), pairs.front().key);
  EXPECT_EQ(keys->back(), pairs.back().key);
}

TEST_F(EtcdStore, RefusesAValueThatIsTooLargeForEtcd) {
  const auto result = loop_.block_on(store_->set("k", std::string(3 << 20, 'x')));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::Invalid) << result.error().message;
}

TEST_F(EtcdStore, ReadsMoreAtOnceThanIsKeptUnread) {
  std::vector<std::string> keys;
  std::vector<std::string> values;
  for (int i = 0; i < 10; ++i) {
    keys.push_back("k" + std::to_string(i));
    values.emplace_back(1'000'000, static_cast<char>('a' + i));
    ASSERT_TRUE(loop_.block_on(store_->set(keys.back(), values.back())));
  }
  const auto found = loop_.block_on(other_->multi_get(keys, patience()));
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_TRUE(*found == values);
  auto watch = loop_.block_on(store_->watch("k", Store::WatchScope::Prefix));
  ASSERT_TRUE(watch) << watch.error().message;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto change = loop_.block_on((*watch)->next(patience()));
    ASSERT_TRUE(change) << change.error().message;
    EXPECT_TRUE(change->value == values[i]);
  }
}

TEST_F(EtcdStore, FindsAKeyThatExistedOnlyForAMomentWhileOthersWereMissing) {
  const auto waiting = std::make_unique<Call<void>>(store_->wait({"a", "b"}, patience()));
  // It has looked when its watch is open.
  for (int trip = 0; trip < 4; ++trip) ASSERT_TRUE(loop_.block_on(client_->status()));
  ASSERT_TRUE(loop_.block_on(other_->set("b", "v")));
  ASSERT_TRUE(loop_.block_on(other_->delete_key("b")));
  ASSERT_TRUE(loop_.block_on(other_->set("a", "v")));
  ASSERT_TRUE(tests::run_until(loop_, [&] { return waiting->done(); }));
  EXPECT_TRUE(waiting->result());
}

TEST_F(EtcdStore, IsEmptyAfterItIsCleared) {
  ASSERT_TRUE(loop_.block_on(store_->set("k", "v")));
  ASSERT_TRUE(loop_.block_on(store_->queue_push("q", "v")));
  ASSERT_TRUE(loop_.block_on(etcd::clear_store(*client_, root_)));
  EXPECT_TRUE(gives(loop_.block_on(store_->num_keys()), 0));
  EXPECT_TRUE(gives(loop_.block_on(store_->queue_length("q")), 0));
}

TEST_F(EtcdStore, HoldsAHundredAtABarrier) {
  std::vector<std::unique_ptr<Call<void>>> calls;
  for (int i = 0; i < 100; ++i) {
    Store& store = i % 2 == 0 ? *store_ : *other_;
    calls.push_back(std::make_unique<Call<void>>(store.barrier("b", 100, patience())));
  }
  for (const auto& call : calls) {
    ASSERT_TRUE(tests::run_until(loop_, [&call] { return call->done(); }));
    EXPECT_TRUE(call->result()) << call->result().error().message;
  }
}

}  // namespace
}  // namespace muster::store::testing
