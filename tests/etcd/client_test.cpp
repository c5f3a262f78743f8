// The client against real etcd: users, certificates, watches and compaction.
#include "muster/etcd/client.h"

#include "muster/etcd/backend.h"
#include "muster/etcd/store.h"
#include "muster/net/tcp.h"
#include "tests/etcd/cluster.h"
#include "tests/net/drive.h"
#include "tests/server/log_capture.h"
#include "tests/store/contract.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::etcd {
namespace {

using namespace std::chrono_literals;
using store::testing::gives;
using testing::Cluster;
using testing::connect_to;

class EtcdClient : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = testing::why_missing();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  TimePoint patience() { return loop_.now() + 30s; }
  void put(Client& client, std::string key, std::string value) {
    Txn txn;
    txn.success.emplace_back(Put{std::move(key), std::move(value)});
    const auto reply = loop_.block_on(client.txn(std::move(txn), Client::Repeat::Allowed));
    ASSERT_TRUE(reply) << reply.error().message;
  }
  void compact(const Cluster& cluster, std::int64_t revision) {
    ASSERT_TRUE(cluster.control({"compact", "--physical", std::to_string(revision)}));
  }
  template <typename T>
  void expect_invalid(const Result<T>& result, std::string_view part) {
    ASSERT_FALSE(result);
    EXPECT_EQ(name_of(result.error().kind), name_of(ErrorKind::Invalid)) << result.error().message;
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  }

  Random random_{1};
  net::EpollLoop loop_;
};

TEST_F(EtcdClient, RefusesOptionsThatMakeNoSense) {
  Options none;
  expect_invalid(loop_.block_on(connect(loop_, random_, none)), "no endpoint");
  Options options;
  options.endpoints = {{"127.0.0.1", 1}};
  options.password = "secret";
  expect_invalid(loop_.block_on(connect(loop_, random_, options)), "no user");
  options.user = "me";
  options.tls_files.ca = "ca.pem";
  expect_invalid(loop_.block_on(connect(loop_, random_, options)), "TLS is off");
  options.tls = true;
  options.tls_files.key = "key.pem";
  expect_invalid(loop_.block_on(connect(loop_, random_, options)), "no certificate");
}

TEST_F(EtcdClient, SaysThatNobodyAnswers) {
  // A port that was free a moment ago.
  Options options;
  {
    net::TcpTransport transport(loop_);
    const auto listener = transport.listen({"127.0.0.1", 0}, [](auto) {});
    ASSERT_TRUE(listener);
    options.endpoints = {{"127.0.0.1", (*listener)->port()}};
  }
  options.retry_timeout = 200ms;
  const auto client = loop_.block_on(connect(loop_, random_, options));
  ASSERT_FALSE(client);
  EXPECT_EQ(name_of(client.error().kind), name_of(ErrorKind::Unavailable));
  EXPECT_NE(client.error().message.find(net::describe(options.endpoints[0])), std::string::npos)
      << client.error().message;
}

TEST_F(EtcdClient, FindsAMemberByName) {
  Options options = testing::shared_cluster().options();
  options.endpoints[0].host = "localhost";
  const auto client = connect_to(loop_, random_, options);
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(loop_.block_on(client->status()));
}

TEST_F(EtcdClient, CanBeGivenUpWhileANameIsResolved) {
  Options options;
  options.endpoints = {{"no-such-host.invalid", 1}};
  const auto never = std::make_unique<store::testing::Call<std::unique_ptr<Client>>>(
      connect(loop_, random_, options));
  ASSERT_TRUE(tests::run_until(loop_, [] { return true; }));
}

TEST_F(EtcdClient, SpeaksTls) {
  const Cluster cluster({1, true});
  const auto client = connect_to(loop_, random_, cluster.options());
  ASSERT_NE(client, nullptr);
  const auto store = make_store(*client, client->prefix() + "/");
  ASSERT_TRUE(loop_.block_on(store->set("k", std::string(100'000, 'x'))));
  EXPECT_TRUE(gives(loop_.block_on(store->get("k", patience())), std::string(100'000, 'x')));
  const auto backend = make_backend(*client, "run");
  EXPECT_TRUE(loop_.block_on(backend->beat("n", 60s)));
  store::testing::Call<bool> waiting(backend->wait_signal(std::nullopt, true, patience()));
  EXPECT_TRUE(loop_.block_on(backend->set_state("x", std::nullopt, true)));
  EXPECT_TRUE(tests::run_until(loop_, [&] { return waiting.done(); }));

  // Neither a stranger's server nor our certificate at a stranger's.
  Options options = cluster.options();
  options.tls_files.ca = cluster.foreign_tls_files().ca;
  expect_invalid(loop_.block_on(connect(loop_, random_, options)), "certificate");
  options = cluster.options();
  options.tls_files.ca = "no such file";
  expect_invalid(loop_.block_on(connect(loop_, random_, options)), "no such file");
  options = cluster.options();
  options.tls_files.certificate.clear();
  options.tls_files.key.clear();
  options.retry_timeout = 300ms;
  EXPECT_FALSE(loop_.block_on(connect(loop_, random_, options)));
  options.tls = false;
  options.tls_files = {};
  EXPECT_FALSE(loop_.block_on(connect(loop_, random_, options)));
}

TEST_F(EtcdClient, ShowsUserAndPasswordAndGetsANewTokenWhenItsOwnIsNoLongerValid) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.control({"user", "add", "root:secret"}));
  ASSERT_TRUE(cluster.control({"user", "grant-role", "root", "root"}));
  ASSERT_TRUE(cluster.control({"auth", "enable"}));

  Options options = cluster.options();
  expect_invalid(loop_.block_on(connect(loop_, random_, options)), "user name is empty");
  options.user = "root";
  options.password = "wrong";
  expect_invalid(loop_.block_on(connect(loop_, random_, options)), "password");
  options.password = "secret";
  const auto client = connect_to(loop_, random_, options);
  ASSERT_NE(client, nullptr);
  const auto backend = make_backend(*client, "run");
  const auto written = loop_.block_on(backend->set_state("x", std::nullopt, true));
  ASSERT_TRUE(written && *written) << written.error().message;
  const Result<bool> first = loop_.block_on(backend->wait_signal(std::nullopt, true, patience()));
  ASSERT_TRUE(first) << first.error().message;
  store::testing::Call<bool> waiting(backend->wait_signal((*written)->now.token, true, patience()));

  // Tokens do not survive a restart, which also breaks the watch.
  cluster.kill(0);
  cluster.restart(0);
  const auto again = loop_.block_on(backend->set_state("y", (*written)->now.token, true));
  ASSERT_TRUE(again) << again.error().message;
  ASSERT_TRUE(*again);
  EXPECT_TRUE((*again)->was_set);
  ASSERT_TRUE(tests::run_until(loop_, [&] { return waiting.done(); }));
  EXPECT_TRUE(gives(waiting.take(), true));
}

TEST_F(EtcdClient, DoesWithoutATokenWhereNoneIsNeeded) {
  const tests::LogCapture log;
  Options options = testing::shared_cluster().options();
  options.user = "somebody";
  options.password = "secret";
  const auto client = connect_to(loop_, random_, options);
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(loop_.block_on(client->status()));
  EXPECT_EQ(log.warnings().size(), 1U);
}

TEST_F(EtcdClient, ReportsRightsThatAreMissing) {
  Cluster cluster({});
  const std::string prefix = "/ours";
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"user", "add", "root:secret"},
           {"user", "grant-role", "root", "root"},
           {"user", "add", "worker:w"},
           {"role", "add", "ours"},
           {"role", "grant-permission", "ours", "readwrite", "--prefix=true", prefix},
           {"user", "grant-role", "worker", "ours"},
           {"auth", "enable"}}) {
    ASSERT_TRUE(cluster.control(command));
  }
  Options options = cluster.options();
  options.prefix = prefix;
  options.user = "worker";
  options.password = "w";
  const auto client = connect_to(loop_, random_, options);
  ASSERT_NE(client, nullptr);
  const auto backend = make_backend(*client, "run");
  EXPECT_TRUE(loop_.block_on(backend->set_state("x", std::nullopt, true)));
  EXPECT_TRUE(loop_.block_on(backend->wait_signal(std::nullopt, false, patience())));
  const auto elsewhere = make_store(*client, "/theirs/");
  expect_invalid(loop_.block_on(elsewhere->set("k", "v")), "permission denied");
  const auto watcher = client->watch({"/theirs/k", {}, 1, true, true});
  expect_invalid(loop_.block_on(watcher->next()), "ermission");
}

TEST_F(EtcdClient, SaysWhenWhatAWatchNeedsWasCompacted) {
  Cluster cluster({});
  const auto client = connect_to(loop_, random_, cluster.options());
  for (int i = 0; i < 5; ++i) put(*client, "k", std::to_string(i));
  const std::int64_t revision = client->revision();
  compact(cluster, revision);
  const auto watcher = client->watch({"k", {}, 2, true, true});
  const auto batch = loop_.block_on(watcher->next());
  ASSERT_TRUE(batch) << batch.error().message;
  EXPECT_TRUE(batch->compacted);
  const auto history = loop_.block_on(client->history("k", 1, 0));
  ASSERT_FALSE(history);
  EXPECT_EQ(name_of(history.error().kind), name_of(ErrorKind::Conflict));
}

// While a watcher sleeps with a broken stream, the past may be thrown away.
TEST_F(EtcdClient, BeginsAgainWithAReadAfterACompaction) {
  Cluster cluster({});
  Options options = cluster.options();
  options.retry_timeout = 1s;
  const auto client = connect_to(loop_, random_, options);
  const auto store = make_store(*client, "/s/");
  ASSERT_TRUE(loop_.block_on(store->set("stays", "1")));
  ASSERT_TRUE(loop_.block_on(store->set("goes", "1")));
  auto watch = loop_.block_on(store->watch("", store::Store::WatchScope::Prefix));
  ASSERT_TRUE(watch) << watch.error().message;
  using Kind = store::Change::Kind;
  using store::Change;
  EXPECT_TRUE(
      gives(loop_.block_on((*watch)->next(patience())), Change{Kind::Present, "goes", "1"}));
  EXPECT_TRUE(
      gives(loop_.block_on((*watch)->next(patience())), Change{Kind::Present, "stays", "1"}));
  // Not yet open: the stream begins with the first wait for more.
  for (int i = 2; i < 5; ++i) ASSERT_TRUE(loop_.block_on(store->set("stays", std::to_string(i))));
  ASSERT_TRUE(loop_.block_on(store->delete_key("goes")));
  compact(cluster, client->revision());
  EXPECT_TRUE(
      gives(loop_.block_on((*watch)->next(patience())), Change{Kind::Present, "stays", "4"}));
  EXPECT_TRUE(gives(loop_.block_on((*watch)->next(patience())), Change{Kind::Deleted, "goes", ""}));
  ASSERT_TRUE(loop_.block_on(store->set("goes", "5")));
  EXPECT_TRUE(
      gives(loop_.block_on((*watch)->next(patience())), Change{Kind::Created, "goes", "5"}));
}

}  // namespace
}  // namespace muster::etcd
