// Three real members, some of which die, hang, and come back.
#include "muster/etcd/backend.h"
#include "muster/etcd/store.h"
#include "tests/etcd/cluster.h"
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
using store::testing::Call;
using store::testing::gives;
using testing::Cluster;
using testing::connect_to;

class EtcdFailover : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = testing::why_missing();
    if (!reason.empty()) GTEST_SKIP() << reason;
    cluster_ = std::make_unique<Cluster>(Cluster::Settings{3, false});
    options_ = cluster_->options();
    a_client_ = connect_to(loop_, random_, options_);
    b_client_ = connect_to(loop_, random_, options_);
    a_ = make_backend(*a_client_, "run");
    b_ = make_backend(*b_client_, "run");
  }
  TimePoint patience() { return loop_.now() + 30s; }
  bool run_until(const std::function<bool()>& done) { return tests::run_until(loop_, done); }

  rendezvous::Written write(rendezvous::Backend& backend, std::string blob,
                            std::optional<rendezvous::Token> token, bool signal) {
    const auto written =
        loop_.block_on(backend.set_state(std::move(blob), std::move(token), signal));
    if (!written || !*written) {
      ADD_FAILURE() << (written ? "nothing" : written.error().message);
      return {};
    }
    return **written;
  }

  // A member fails that both clients use, while one of them waits: the write goes on elsewhere and
  // wakes the waiter.
  void expect_to_survive(const std::function<void(std::size_t)>& harm) {
    const rendezvous::Written first = write(*a_, "x", std::nullopt, true);
    ASSERT_TRUE(loop_.block_on(b_->wait_signal(std::nullopt, true, patience())));
    Call<bool> waiting(b_->wait_signal(first.now.token, true, patience()));
    harm(cluster_->member_at(b_client_->endpoint()));
    const rendezvous::Written second = write(*a_, "y", first.now.token, true);
    EXPECT_TRUE(second.was_set);
    ASSERT_TRUE(run_until([&] { return waiting.done(); }));
    EXPECT_TRUE(gives(waiting.take(), true));
    const auto state = loop_.block_on(b_->get_state());
    ASSERT_TRUE(state && *state);
    EXPECT_EQ(**state, second.now);
  }

  std::unique_ptr<Cluster> cluster_;
  Options options_;
  Random random_{1};
  net::EpollLoop loop_;
  std::unique_ptr<Client> a_client_;
  std::unique_ptr<Client> b_client_;
  std::unique_ptr<rendezvous::Backend> a_;
  std::unique_ptr<rendezvous::Backend> b_;
};

TEST_F(EtcdFailover, GoesOnWhenAMemberIsKilled) {
  expect_to_survive([this](std::size_t member) { cluster_->kill(member); });
}

TEST_F(EtcdFailover, GoesOnWhenAMemberHangs) {
  expect_to_survive([this](std::size_t member) { cluster_->stop(member); });
}

TEST_F(EtcdFailover, WakesAWaiterThatHangsOnAStoppedMemberThoughNobodyElseDoes) {
  // The writer uses another member, so nothing but the probe tells the waiter's client.
  const rendezvous::Written first = write(*a_, "x", std::nullopt, true);
  ASSERT_TRUE(loop_.block_on(b_->wait_signal(std::nullopt, true, patience())));
  const std::size_t member = cluster_->member_at(b_client_->endpoint());
  Options elsewhere = options_;
  elsewhere.endpoints.erase(elsewhere.endpoints.begin() + static_cast<std::ptrdiff_t>(member));
  const auto c_client = connect_to(loop_, random_, elsewhere);
  const auto c = make_backend(*c_client, "run");
  Call<bool> waiting(b_->wait_signal(first.now.token, false, patience()));
  cluster_->stop(member);
  const rendezvous::Written second = write(*c, "y", first.now.token, true);
  EXPECT_TRUE(second.was_set);
  ASSERT_TRUE(run_until([&] { return waiting.done(); }));
  EXPECT_TRUE(gives(waiting.take(), true));
}

TEST_F(EtcdFailover, LosesNothingWhenAllMembersStopAndResume) {
  const rendezvous::Written first = write(*a_, "x", std::nullopt, true);
  ASSERT_TRUE(loop_.block_on(a_->beat("n1", 60s)));
  const auto store = make_store(*a_client_, "/s/");
  ASSERT_TRUE(gives(loop_.block_on(store->add("n", 1)), 1));
  Call<std::string> getting(store->get("later", kNever));
  Call<bool> waiting(b_->wait_signal(first.now.token, true, kNever));
  for (std::size_t member = 0; member < 3; ++member) cluster_->stop(member);
  Call<std::optional<rendezvous::Written>> writing(a_->set_state("y", first.now.token, true));
  Call<std::int64_t> adding(store->add("n", 1));
  // Long enough for everything to be tried at every member at least once.
  const TimePoint long_enough = loop_.now() + 5 * options_.request_timeout;
  ASSERT_TRUE(run_until([&] { return loop_.now() >= long_enough; }));
  EXPECT_FALSE(writing.done());
  for (std::size_t member = 0; member < 3; ++member) cluster_->resume(member);
  ASSERT_TRUE(run_until([&] { return writing.done() && adding.done(); }));
  ASSERT_TRUE(writing.result() && *writing.result()) << writing.result().error().message;
  EXPECT_TRUE((*writing.result())->was_set);
  EXPECT_TRUE(gives(adding.take(), 2));
  ASSERT_TRUE(run_until([&] { return waiting.done(); }));
  EXPECT_TRUE(gives(waiting.take(), true));
  ASSERT_TRUE(loop_.block_on(store->set("later", "v")));
  ASSERT_TRUE(run_until([&] { return getting.done(); }));
  EXPECT_TRUE(gives(getting.take(), "v"));
  EXPECT_TRUE(gives(loop_.block_on(store->try_get("n")), "2"));
}

TEST_F(EtcdFailover, SaysThatNobodyAnswersWhenTheTimeIsUp) {
  Options options = options_;
  options.request_timeout = 200ms;
  options.retry_timeout = 1s;
  const auto client = connect_to(loop_, random_, options);
  const auto backend = make_backend(*client, "run");
  const rendezvous::Written first = write(*backend, "x", std::nullopt, true);
  Call<bool> waiting(backend->wait_signal(first.now.token, true, kNever));
  for (std::size_t member = 0; member < 3; ++member) cluster_->stop(member);
  const auto state = loop_.block_on(backend->get_state());
  ASSERT_FALSE(state);
  EXPECT_EQ(name_of(state.error().kind), name_of(ErrorKind::Unavailable));
  const auto written = loop_.block_on(backend->set_state("y", first.now.token, true));
  ASSERT_FALSE(written);
  EXPECT_EQ(name_of(written.error().kind), name_of(ErrorKind::Unavailable));
  ASSERT_TRUE(run_until([&] { return waiting.done(); }));
  ASSERT_FALSE(waiting.result());
  EXPECT_EQ(name_of(waiting.result().error().kind), name_of(ErrorKind::Unavailable));
  for (std::size_t member = 0; member < 3; ++member) cluster_->resume(member);
  EXPECT_TRUE(loop_.block_on(backend->get_state()));
}

Task<void> add_many(store::Store& store, int count, int& done_count, std::int64_t& last) {
  for (int i = 0; i < count; ++i) {
    const Result<std::int64_t> sum = co_await store.add("n", 1);
    EXPECT_TRUE(sum) << sum.error().message;
    if (sum) {
      EXPECT_GT(*sum, last);
      last = *sum;
    }
    ++done_count;
  }
}

TEST_F(EtcdFailover, CountsExactlyThoughMembersDieAndHangInTurn) {
  const auto a = make_store(*a_client_, "/s/");
  const auto b = make_store(*b_client_, "/s/");
  constexpr int kAdditions = 120;
  int a_count = 0;
  int b_count = 0;
  std::int64_t a_last = 0;
  std::int64_t b_last = 0;
  TaskScope scope;
  scope.start(add_many(*a, kAdditions, a_count, a_last));
  scope.start(add_many(*b, kAdditions, b_count, b_last));
  const auto reach = [&](int count) {
    return run_until([&] { return a_count >= count && b_count >= count; });
  };
  ASSERT_TRUE(reach(20));
  std::size_t member = cluster_->member_at(a_client_->endpoint());
  cluster_->kill(member);
  ASSERT_TRUE(reach(50));
  cluster_->restart(member);
  member = cluster_->member_at(b_client_->endpoint());
  cluster_->stop(member);
  ASSERT_TRUE(reach(80));
  cluster_->resume(member);
  ASSERT_TRUE(reach(kAdditions));
  EXPECT_TRUE(gives(loop_.block_on(a->try_get("n")), std::to_string(2 * kAdditions)));
}

Task<void> keep_beating(Loop& loop, rendezvous::Backend& backend, std::string name) {
  while (true) {
    const auto beaten = co_await backend.beat(name, 5s);
    EXPECT_TRUE(beaten) << beaten.error().message;
    const TimePoint next = loop.now() + 500ms;
    co_await sleep_until(loop, next);
  }
}

TEST_F(EtcdFailover, KeepsTheLivingAndLosesTheDeadThoughAMemberDies) {
  ASSERT_TRUE(loop_.block_on(a_->beat("dies", 5s)));
  const auto c_client = connect_to(loop_, random_, options_);
  const auto c = make_backend(*c_client, "run");
  TaskScope scope;
  scope.start(keep_beating(loop_, *c, "lives"));
  cluster_->kill(cluster_->member_at(c_client->endpoint()));
  const std::vector<std::string> names = {"dies", "lives"};
  bool dead = false;
  for (const TimePoint limit = patience(); !dead && loop_.now() < limit;) {
    ASSERT_TRUE(loop_.block_on(b_->wait_signal(std::nullopt, true, patience())));
    const auto signs = loop_.block_on(b_->signs(names));
    ASSERT_TRUE(signs) << signs.error().message;
    dead = !signs->at(0).present;
    EXPECT_TRUE(signs->at(1).present);
  }
  EXPECT_TRUE(dead);
}

}  // namespace
}  // namespace muster::etcd
