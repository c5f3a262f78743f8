// Requests that are carried out and not answered, not carried out, or carried out late: nothing is
// done twice, and nobody is told the wrong outcome.
#include "muster/etcd/backend.h"
#include "muster/etcd/store.h"
#include "tests/etcd/cluster.h"
#include "tests/etcd/proxy.h"
#include "tests/net/drive.h"
#include "tests/store/contract.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::etcd {
namespace {

using namespace std::chrono_literals;
using store::CompareSet;
using store::testing::Call;
using store::testing::gives;
using testing::Cluster;
using testing::connect_to;
using testing::Proxy;
using Fault = Proxy::Fault;

constexpr const char* kTxn = "POST /v3/kv/txn";

class LostAnswers : public ::testing::TestWithParam<Fault> {
 protected:
  void SetUp() override {
    const std::string reason = testing::why_missing();
    if (!reason.empty()) GTEST_SKIP() << reason;
    Cluster& cluster = testing::shared_cluster();
    proxy_ = std::make_unique<Proxy>(loop_, cluster.endpoints()[0]);
    Options options = cluster.options();
    options.request_timeout = 500ms;
    direct_client_ = connect_to(loop_, random_, options);
    options.endpoints = {proxy_->endpoint()};
    client_ = connect_to(loop_, random_, options);
    const std::string root = client_->prefix() + "/s/";
    store_ = make_store(*client_, root);
    direct_ = make_store(*direct_client_, root);
    backend_ = make_backend(*client_, "run");
    direct_backend_ = make_backend(*direct_client_, "run");
    // So that what follows is the first transaction that matters.
    ASSERT_TRUE(loop_.block_on(store_->set("warm", "up")));
  }
  TimePoint patience() { return loop_.now() + 30s; }
  bool run_until(const std::function<bool()>& done) { return tests::run_until(loop_, done); }
  // The fault strikes the next transaction; one that is held is let go once somebody has noticed.
  void spoil() { proxy_->spoil_next(GetParam(), kTxn); }
  template <typename T>
  Result<T> finish(Task<Result<T>> task) {
    Call<T> call(std::move(task));
    EXPECT_TRUE(run_until([&] { return call.done(); }));
    EXPECT_EQ(proxy_->spoiled_count(), 1);
    proxy_->release();
    if (GetParam() == Fault::HoldRequest) {
      EXPECT_TRUE(run_until([&] { return proxy_->delivered_late_count() == 1; }));
    }
    return call.take();
  }

  Random random_{1};
  net::EpollLoop loop_;
  std::unique_ptr<Proxy> proxy_;
  std::unique_ptr<Client> direct_client_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<store::Store> direct_;
  std::unique_ptr<rendezvous::Backend> backend_;
  std::unique_ptr<rendezvous::Backend> direct_backend_;
};

TEST_P(LostAnswers, OfAFirstStateAreFoundOut) {
  spoil();
  const auto written = finish(backend_->set_state("x", std::nullopt, true));
  ASSERT_TRUE(written && *written) << written.error().message;
  EXPECT_TRUE((*written)->was_set);
  const auto state = loop_.block_on(direct_backend_->get_state());
  ASSERT_TRUE(state && *state);
  EXPECT_EQ(**state, (*written)->now);
}

TEST_P(LostAnswers, OfAStateAreFoundOut) {
  const auto first = loop_.block_on(backend_->set_state("x", std::nullopt, true));
  ASSERT_TRUE(first && *first);
  spoil();
  const auto written = finish(backend_->set_state("y", (*first)->now.token, true));
  ASSERT_TRUE(written && *written) << written.error().message;
  EXPECT_TRUE((*written)->was_set);
  const auto state = loop_.block_on(direct_backend_->get_state());
  ASSERT_TRUE(state && *state);
  EXPECT_EQ(**state, (*written)->now);
}

TEST_P(LostAnswers, OfALostRaceAreFoundOut) {
  const auto first = loop_.block_on(backend_->set_state("x", std::nullopt, true));
  ASSERT_TRUE(first && *first);
  const auto winner = loop_.block_on(direct_backend_->set_state("z", (*first)->now.token, true));
  ASSERT_TRUE(winner && *winner);
  spoil();
  const auto written = finish(backend_->set_state("y", (*first)->now.token, true));
  ASSERT_TRUE(written && *written) << written.error().message;
  EXPECT_FALSE((*written)->was_set);
  EXPECT_EQ((*written)->now, (*winner)->now);
}

TEST_P(LostAnswers, OfASetAreFoundOut) {
  spoil();
  ASSERT_TRUE(finish(store_->set("k", "v")));
  EXPECT_TRUE(gives(loop_.block_on(direct_->try_get("k")), "v"));
}

TEST_P(LostAnswers, OfASetDoNotUndoALaterOne) {
  spoil();
  Call<void> setting(store_->set("k", "v"));
  ASSERT_TRUE(run_until([&] { return setting.done(); }));
  EXPECT_TRUE(setting.result());
  ASSERT_TRUE(loop_.block_on(direct_->set("k", "later")));
  proxy_->release();
  if (GetParam() == Fault::HoldRequest) {
    ASSERT_TRUE(run_until([&] { return proxy_->delivered_late_count() == 1; }));
  }
  EXPECT_TRUE(gives(loop_.block_on(direct_->try_get("k")), "later"));
}

TEST_P(LostAnswers, OfACounterDoNotCountTwice) {
  for (int i = 1; i <= 3; ++i) {
    spoil();
    EXPECT_TRUE(gives(finish(store_->add("n", 1)), i));
    if (GetParam() == Fault::HoldRequest) break;  // the late one is counted once a test
  }
  const auto value = loop_.block_on(direct_->try_get("n"));
  EXPECT_TRUE(gives(value, GetParam() == Fault::HoldRequest ? "1" : "3"));
}

TEST_P(LostAnswers, OfAnAppendDoNotAppendTwice) {
  spoil();
  ASSERT_TRUE(finish(store_->append("k", "once")));
  EXPECT_TRUE(gives(loop_.block_on(direct_->try_get("k")), "once"));
}

TEST_P(LostAnswers, OfACompareSetAreFoundOut) {
  spoil();
  EXPECT_TRUE(gives(finish(store_->compare_set("k", "", "ours")), CompareSet{true, "ours"}));
  EXPECT_TRUE(gives(loop_.block_on(direct_->try_get("k")), "ours"));
}

TEST_P(LostAnswers, OfADeletionAreFoundOut) {
  ASSERT_TRUE(loop_.block_on(direct_->set("k", "v")));
  spoil();
  EXPECT_TRUE(gives(finish(store_->delete_key("k")), true));
  EXPECT_TRUE(gives(loop_.block_on(direct_->try_get("k")), std::nullopt));
}

TEST_P(LostAnswers, OfADeletionOfNothingAreFoundOut) {
  spoil();
  EXPECT_TRUE(gives(finish(store_->delete_key("k")), false));
}

TEST_P(LostAnswers, OfAPushDoNotPushTwice) {
  spoil();
  ASSERT_TRUE(finish(store_->queue_push("q", "item")));
  EXPECT_TRUE(gives(loop_.block_on(direct_->queue_length("q")), 1));
}

TEST_P(LostAnswers, OfAPopDoNotLoseTheItem) {
  ASSERT_TRUE(loop_.block_on(direct_->queue_push("q", "1")));
  ASSERT_TRUE(loop_.block_on(direct_->queue_push("q", "2")));
  spoil();
  EXPECT_TRUE(gives(finish(store_->queue_pop("q", patience())), "1"));
  EXPECT_TRUE(gives(loop_.block_on(direct_->try_queue_pop("q")), "2"));
  EXPECT_TRUE(gives(loop_.block_on(direct_->queue_length("q")), 0));
}

TEST_P(LostAnswers, OfABarrierDoNotCountTwice) {
  Call<void> first(direct_->barrier("b", 3, patience()));
  spoil();
  Call<void> second(store_->barrier("b", 3, patience()));
  ASSERT_TRUE(run_until([&] { return proxy_->spoiled_count() == 1; }));
  // The second has come when its answer is found out, or when it has come again.
  const auto came = [this] {
    Range range;
    range.key = client_->prefix() + "/s/b/b";
    const auto count = loop_.block_on(direct_client_->range(std::move(range)));
    return count && !count->kvs.empty() && count->kvs[0].version == 2;
  };
  for (const TimePoint limit = patience(); !came() && loop_.now() < limit;) {
  }
  proxy_->release();
  if (GetParam() == Fault::HoldRequest) {
    ASSERT_TRUE(run_until([&] { return proxy_->delivered_late_count() == 1; }));
  }
  EXPECT_TRUE(came());
  EXPECT_FALSE(first.done());
  EXPECT_FALSE(second.done());
  EXPECT_TRUE(loop_.block_on(direct_->barrier("b", 3, patience())));
  ASSERT_TRUE(run_until([&] { return first.done() && second.done(); }));
  EXPECT_TRUE(first.result());
  EXPECT_TRUE(second.result());
}

std::string fault_name(const ::testing::TestParamInfo<Fault>& info) {
  return ::testing::PrintToString(info.param);
}

INSTANTIATE_TEST_SUITE_P(Etcd, LostAnswers,
                         ::testing::Values(Fault::LoseAnswer, Fault::LoseRequest, Fault::HoldAnswer,
                                           Fault::HoldRequest),
                         fault_name);

class SpoiledLink : public LostAnswers {};
INSTANTIATE_TEST_SUITE_P(Etcd, SpoiledLink, ::testing::Values(Fault::HoldAnswer), fault_name);

TEST_P(SpoiledLink, GivesBackTheItemOfAPopThatIsCancelledWhileItTakesIt) {
  ASSERT_TRUE(loop_.block_on(direct_->queue_push("q", "item")));
  spoil();
  auto popping = std::make_unique<Call<std::string>>(store_->queue_pop("q", patience()));
  ASSERT_TRUE(run_until([&] { return proxy_->spoiled_count() == 1; }));
  popping.reset();
  EXPECT_TRUE(gives(loop_.block_on(direct_->queue_pop("q", patience())), "item"));
}

TEST_P(SpoiledLink, OpensAWatchAgainWhenItsConnectionIsCut) {
  Call<std::string> getting(store_->get("k", patience()));
  auto watch = loop_.block_on(store_->watch("w", store::Store::WatchScope::Key));
  ASSERT_TRUE(watch);
  using Kind = store::Change::Kind;
  EXPECT_TRUE(
      gives(loop_.block_on((*watch)->next(patience())), store::Change{Kind::Absent, "w", ""}));
  ASSERT_TRUE(loop_.block_on(direct_->set("w", "1")));
  EXPECT_TRUE(
      gives(loop_.block_on((*watch)->next(patience())), store::Change{Kind::Created, "w", "1"}));
  // Frozen, the link is silent; the probe notices, and everything is opened again, in vain at
  // first.
  proxy_->freeze();
  ASSERT_TRUE(loop_.block_on(direct_->set("w", "2")));
  ASSERT_TRUE(loop_.block_on(direct_->set("w", "3")));
  ASSERT_TRUE(loop_.block_on(direct_->set("k", "v")));
  const int before = proxy_->connection_count();
  Call<store::Change> changing((*watch)->next(patience()));
  ASSERT_TRUE(run_until([&] { return proxy_->connection_count() >= before + 3; }));
  proxy_->thaw();
  ASSERT_TRUE(run_until([&] { return getting.done() && changing.done(); }));
  EXPECT_TRUE(gives(getting.take(), "v"));
  EXPECT_TRUE(gives(changing.take(), store::Change{Kind::Updated, "w", "2"}));
  EXPECT_TRUE(
      gives(loop_.block_on((*watch)->next(patience())), store::Change{Kind::Updated, "w", "3"}));
}

}  // namespace
}  // namespace muster::etcd
