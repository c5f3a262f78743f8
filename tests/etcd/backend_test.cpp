// The rendezvous backend against real etcd.
#include "muster/etcd/backend.h"

#include "tests/etcd/cluster.h"
#include "tests/etcd/proxy.h"
#include "tests/net/drive.h"
#include "tests/rendezvous/backend_contract.h"
#include "tests/store/contract.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::rendezvous::testing {
namespace {

using namespace std::chrono_literals;
using store::testing::Call;

class EtcdFixture final : public BackendFixture {
 public:
  EtcdFixture() : options_(etcd::testing::shared_cluster().options()) {}

  Backend& client(std::size_t index) override {
    One& one = ones_[index];
    if (one.client == nullptr) {
      one.client = etcd::testing::connect_to(loop_, random_, options_);
      one.backend = etcd::make_backend(*one.client, "run/1");
    }
    return *one.backend;
  }
  Loop& loop() override { return loop_; }
  void overwrite_state(std::string junk) override {
    client(0);
    etcd::Txn txn;
    txn.success.emplace_back(etcd::Put{key(), std::move(junk)});
    EXPECT_TRUE(
        loop_.block_on(ones_[0].client->txn(std::move(txn), etcd::Client::Repeat::Allowed)));
  }
  std::string raw_state() override {
    etcd::Range range;
    range.key = key();
    const auto reply = loop_.block_on(ones_[0].client->range(std::move(range)));
    return reply && !reply->kvs.empty() ? reply->kvs[0].value : "nothing";
  }
  bool run_until(const std::function<bool()>& done) override {
    return tests::run_until(loop_, done);
  }

 private:
  struct One {
    std::unique_ptr<etcd::Client> client;
    std::unique_ptr<Backend> backend;
  };
  std::string key() { return etcd::state_key(*ones_[0].client, "run/1"); }

  const etcd::Options options_;
  Random random_{1};
  net::EpollLoop loop_;
  std::map<std::size_t, One> ones_;
};

INSTANTIATE_TEST_SUITE_P(Etcd, BackendContract,
                         ::testing::Values(BackendKind{
                             "Etcd", [] { return std::make_unique<EtcdFixture>(); },
                             etcd::testing::why_missing}),
                         backend_kind_name);

class EtcdBackend : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = etcd::testing::why_missing();
    if (!reason.empty()) GTEST_SKIP() << reason;
    options_ = etcd::testing::shared_cluster().options();
    a_client_ = etcd::testing::connect_to(loop_, random_, options_);
    b_client_ = etcd::testing::connect_to(loop_, random_, options_);
    a_ = etcd::make_backend(*a_client_, "run");
    b_ = etcd::make_backend(*b_client_, "run");
  }

  TimePoint patience() { return loop_.now() + 30s; }
  bool is_alive(std::string name) {
    std::vector<std::string> names = {std::move(name)};
    const auto signs = loop_.block_on(b_->signs(std::move(names)));
    EXPECT_TRUE(signs) << signs.error().message;
    return signs && signs->at(0).present;
  }
  Written write(Backend& backend, std::string blob, std::optional<Token> token, bool signal) {
    const auto written =
        loop_.block_on(backend.set_state(std::move(blob), std::move(token), signal));
    EXPECT_TRUE(written && *written);
    return written && *written ? **written : Written{};
  }

  etcd::Options options_;
  Random random_{1};
  net::EpollLoop loop_;
  std::unique_ptr<etcd::Client> a_client_;
  std::unique_ptr<etcd::Client> b_client_;
  std::unique_ptr<Backend> a_;
  std::unique_ptr<Backend> b_;
};

TEST_F(EtcdBackend, LosesTheSignOfANodeThatNoLongerBeats) {
  ASSERT_TRUE(loop_.block_on(a_->beat("n1", 1s)));
  ASSERT_TRUE(is_alive("n1"));
  const auto woken = loop_.block_on(b_->wait_signal(std::nullopt, true, patience()));
  ASSERT_TRUE(woken) << woken.error().message;
  EXPECT_TRUE(*woken);
  EXPECT_FALSE(is_alive("n1"));
}

Task<void> beat_for(Loop& loop, Backend& backend, int count, int& beaten_count) {
  while (beaten_count < count) {
    const auto beaten = co_await backend.beat("n1", 1s);
    EXPECT_TRUE(beaten) << beaten.error().message;
    ++beaten_count;
    const TimePoint next = loop.now() + 500ms;
    co_await sleep_until(loop, next);
  }
}

TEST_F(EtcdBackend, KeepsTheSignOfANodeThatBeats) {
  // Longer than the longest lease that etcd makes of a second.
  int beaten_count = 0;
  loop_.block_on(beat_for(loop_, *a_, 8, beaten_count));
  EXPECT_TRUE(is_alive("n1"));
}

TEST_F(EtcdBackend, GivesASignAgainAfterItsLeaseWasLost) {
  ASSERT_TRUE(loop_.block_on(a_->beat("n1", 1s)));
  ASSERT_TRUE(loop_.block_on(a_->beat("n2", 1s)));
  auto lost = loop_.block_on(b_->wait_signal(std::nullopt, true, patience()));
  ASSERT_TRUE(lost && *lost);
  ASSERT_FALSE(is_alive("n1"));
  ASSERT_TRUE(loop_.block_on(a_->beat("n1", 1s)));
  EXPECT_TRUE(is_alive("n1"));
  EXPECT_TRUE(is_alive("n2"));
}

TEST_F(EtcdBackend, FollowsAChangedWindow) {
  ASSERT_TRUE(loop_.block_on(a_->beat("n1", 60s)));
  ASSERT_TRUE(loop_.block_on(a_->beat("n1", 1s)));
  ASSERT_TRUE(is_alive("n1"));
  const auto woken = loop_.block_on(b_->wait_signal(std::nullopt, true, patience()));
  EXPECT_TRUE(woken && *woken);
}

TEST_F(EtcdBackend, WakesOncePerLossAndOnlyThoseWhoWantToKnow) {
  const Written state = write(*a_, "x", std::nullopt, true);
  ASSERT_TRUE(loop_.block_on(a_->beat("n1", 60s)));
  ASSERT_TRUE(is_alive("n1"));
  // Lost before anybody waits: still news.
  ASSERT_TRUE(loop_.block_on(a_->retire("n1")));
  const auto woken = loop_.block_on(b_->wait_signal(state.now.token, true, patience()));
  ASSERT_TRUE(woken) << woken.error().message;
  EXPECT_TRUE(*woken);
  const auto quiet = loop_.block_on(b_->wait_signal(state.now.token, true, loop_.now() + 50ms));
  ASSERT_TRUE(quiet) << quiet.error().message;
  EXPECT_FALSE(*quiet);
  ASSERT_TRUE(loop_.block_on(a_->beat("n1", 60s)));
  ASSERT_TRUE(loop_.block_on(a_->retire("n1")));
  const auto deaf = loop_.block_on(b_->wait_signal(state.now.token, false, loop_.now() + 50ms));
  ASSERT_TRUE(deaf) << deaf.error().message;
  EXPECT_FALSE(*deaf);
}

TEST_F(EtcdBackend, ShowsEverybodysWishesUntilTheyAreWithdrawn) {
  ASSERT_TRUE(loop_.block_on(a_->beat("n1", 60s)));
  ASSERT_TRUE(loop_.block_on(b_->beat("n2", 60s)));
  ASSERT_TRUE(loop_.block_on(a_->wish("n1", 0, "one")));
  ASSERT_TRUE(loop_.block_on(b_->wish("n2", 0, "two")));
  auto wishes = loop_.block_on(b_->wishes({}));
  ASSERT_TRUE(wishes) << wishes.error().message;
  EXPECT_EQ(*wishes, (std::vector<rendezvous::Wish>{{0, "one"}, {0, "two"}}));
  ASSERT_TRUE(loop_.block_on(a_->withdraw("n1", 0)));
  wishes = loop_.block_on(b_->wishes({}));
  ASSERT_TRUE(wishes) << wishes.error().message;
  EXPECT_EQ(*wishes, (std::vector<rendezvous::Wish>{{0, "two"}}));
}

TEST_F(EtcdBackend, ForgetsTheWishOfANodeThatIsGone) {
  ASSERT_TRUE(loop_.block_on(a_->beat("n1", 60s)));
  ASSERT_TRUE(loop_.block_on(a_->wish("n1", 0, "one")));
  ASSERT_TRUE(loop_.block_on(a_->retire("n1")));
  auto wishes = loop_.block_on(b_->wishes({}));
  ASSERT_TRUE(wishes) << wishes.error().message;
  EXPECT_TRUE(wishes->empty());
  // One that gives no sign of life has no wishes either.
  ASSERT_TRUE(loop_.block_on(a_->wish("n1", 0, "one")));
  wishes = loop_.block_on(b_->wishes({}));
  ASSERT_TRUE(wishes) << wishes.error().message;
  EXPECT_TRUE(wishes->empty());
}

TEST_F(EtcdBackend, KeepsRunsApart) {
  const auto other = etcd::make_backend(*a_client_, "run/alive");
  const auto encoded = etcd::make_backend(*a_client_, "run%2Falive");
  write(*a_, "x", std::nullopt, true);
  ASSERT_TRUE(loop_.block_on(a_->beat("state", 60s)));
  for (const auto& backend : {other.get(), encoded.get()}) {
    const auto state = loop_.block_on(backend->get_state());
    ASSERT_TRUE(state) << state.error().message;
    EXPECT_FALSE(*state);
  }
  write(*other, "other", std::nullopt, false);
  const auto state = loop_.block_on(encoded->get_state());
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_FALSE(*state);
}

TEST_F(EtcdBackend, SaysWhatItFoundInsteadOfAState) {
  write(*a_, "x", std::nullopt, false);
  etcd::Txn txn;
  txn.success.emplace_back(etcd::Put{etcd::state_key(*a_client_, "run"), "pickled nonsense"});
  ASSERT_TRUE(loop_.block_on(a_client_->txn(std::move(txn), etcd::Client::Repeat::Allowed)));
  const auto state = loop_.block_on(a_->get_state());
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().kind, ErrorKind::Corrupt);
  for (const char* const part : {"run", "not written by Muster", "pickled nonsense"})
    EXPECT_NE(state.error().message.find(part), std::string::npos) << state.error().message;
}

TEST_F(EtcdBackend, OpensNoStreamForEachWait) {
  etcd::testing::Proxy proxy(loop_, options_.endpoints[0]);
  options_.endpoints = {proxy.endpoint()};
  const auto client = etcd::testing::connect_to(loop_, random_, options_);
  const auto backend = etcd::make_backend(*client, "run");
  Written last = write(*a_, "0", std::nullopt, true);
  for (int i = 1; i <= 50; ++i) {
    Call<bool> waiting(backend->wait_signal(last.now.token, true, patience()));
    last = write(*a_, std::to_string(i), last.now.token, true);
    ASSERT_TRUE(tests::run_until(loop_, [&] { return waiting.done(); }));
  }
  // One for requests, one for signals, one for losses.
  EXPECT_LE(proxy.connection_count(), 3);
}

}  // namespace
}  // namespace muster::rendezvous::testing
