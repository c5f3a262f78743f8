#include "muster/launch/fake_facts_test.h"
#include "muster/rendezvous/options.h"
#include "muster/rendezvous/settings.h"

#include <chrono>

namespace muster::launch {
namespace {

using namespace std::chrono_literals;
using rendezvous::Value;

Value setting(const LaunchConfig& config, std::string_view name) {
  return config.rendezvous.get(name);
}

TEST(Nodes, AreANumberOrARange) {
  const auto one = launch_of({"--nnodes=3", "--master-port=1", "train.py"});
  EXPECT_EQ(one->rendezvous.min_nodes, 3);
  EXPECT_EQ(one->rendezvous.max_nodes, 3);
  const auto range = launch_of({"--nnodes=2:4", "--rdzv-backend=c10d", "train.py"});
  EXPECT_EQ(range->rendezvous.min_nodes, 2);
  EXPECT_EQ(range->rendezvous.max_nodes, 4);
}

TEST(Nodes, AreRefusedWithOneLine) {
  EXPECT_TRUE(contains(error_of({"--nnodes=1:2:3", "train.py"}), "MIN:MAX"));
  EXPECT_TRUE(contains(error_of({"--nnodes=two", "train.py"}), "\"two\""));
  EXPECT_TRUE(contains(error_of({"--nnodes=1:", "train.py"}), "no number"));
  EXPECT_TRUE(contains(error_of({"--nnodes=", "train.py"}), "no number"));
  EXPECT_TRUE(contains(error_of({"--nnodes=0", "train.py"}), "at least 1"));
  EXPECT_TRUE(contains(error_of({"--nnodes=-1:2", "train.py"}), "at least 1"));
  EXPECT_TRUE(contains(error_of({"--nnodes=3:2", "train.py"}), "minimum 3 is above the maximum 2"));
}

TEST(ElasticRange, IsRefusedForTheStaticBackend) {
  const std::string error = error_of({"--nnodes=1:2", "train.py"});
  EXPECT_TRUE(contains(error, "--rdzv-backend=c10d")) << error;
  EXPECT_FALSE(error_of({"--nnodes=2:4", "--rdzv-backend=static", "train.py"}).empty());
}

TEST(Standalone, IsAPrivateRendezvous) {
  const auto config = launch_of({"--standalone", "train.py"});
  ASSERT_TRUE(config);
  EXPECT_TRUE(config->standalone);
  EXPECT_EQ(config->rendezvous.backend, "c10d");
  EXPECT_EQ(config->rendezvous.endpoint, "localhost:0");
  EXPECT_EQ(config->rendezvous.run_id, kFakeRunId);
  EXPECT_EQ(setting(*config, "is_host"), Value(true));
  EXPECT_TRUE(config->warnings.empty());
}

TEST(Standalone, OverridesWhatWasGivenAndSaysSo) {
  const auto config = launch_of(
      {"--standalone", "--rdzv-backend=etcd", "--rdzv-endpoint=h:1", "--rdzv-id=job", "train.py"});
  EXPECT_EQ(config->rendezvous.backend, "c10d");
  EXPECT_EQ(config->rendezvous.endpoint, "localhost:0");
  EXPECT_EQ(config->rendezvous.run_id, kFakeRunId);
  EXPECT_TRUE(warns_of(*config, "--rdzv-backend"));
  EXPECT_TRUE(warns_of(*config, "--rdzv-endpoint"));
  EXPECT_TRUE(warns_of(*config, "--rdzv-id"));
}

TEST(Standalone, HasOneNode) {
  EXPECT_TRUE(contains(error_of({"--standalone", "--nnodes=2", "train.py"}), "--nnodes"));
  const auto config = launch_of({"--standalone", "--nnodes=1:4", "train.py"});
  EXPECT_EQ(config->rendezvous.max_nodes, 1);
}

TEST(Standalone, IsWhatAPlainStartOnOneNodeMeans) {
  const auto plain = launch_of({"train.py"});
  EXPECT_TRUE(plain->standalone);
  EXPECT_EQ(plain->rendezvous.backend, "c10d");
  EXPECT_EQ(plain->rendezvous.endpoint, "localhost:0");
  EXPECT_EQ(plain->rendezvous.run_id, kFakeRunId);
  for (const std::string option :
       {"--master-port=29500", "--rdzv-endpoint=h:1", "--rdzv-backend=c10d", "--nnodes=2"}) {
    EXPECT_FALSE(launch_of({option, "train.py"})->standalone) << option;
  }
  const Facts facts = fake_facts({{"PET_MASTER_PORT", "1234"}});
  EXPECT_EQ(launch_of({"train.py"}, facts)->rendezvous.endpoint, "127.0.0.1:1234");
}

TEST(StaticBackend, MeetsAtTheMaster) {
  const auto config = launch_of({"--nnodes=2", "--node-rank=1", "--master-addr=head", "train.py"});
  ASSERT_TRUE(config);
  EXPECT_EQ(config->rendezvous.backend, "static");
  EXPECT_EQ(config->rendezvous.endpoint, "head:29500");
  EXPECT_EQ(config->rendezvous.run_id, "none");
  EXPECT_EQ(config->node_rank, 1);
  EXPECT_EQ(setting(*config, "rank"), Value(1));
  EXPECT_EQ(setting(*config, "timeout"), Value(900));
  EXPECT_TRUE(setting(*config, "last_call_timeout").is_null());
  const auto v6 = launch_of({"--master-addr=fe80::1", "--master-port=7", "train.py"});
  EXPECT_EQ(v6->rendezvous.endpoint, "[fe80::1]:7");
  const auto endpoint =
      launch_of({"--nnodes=2", "--rdzv-endpoint=h:9", "--rdzv-conf=timeout=30", "train.py"});
  EXPECT_EQ(endpoint->rendezvous.endpoint, "h:9");
  EXPECT_EQ(setting(*endpoint, "timeout"), Value("30"));
}

TEST(StaticBackend, TakesTheRankFromItsOptionsIfNothingElseSaysIt) {
  const auto config = launch_of({"--nnodes=4", "--rdzv-conf=rank=3", "train.py"});
  EXPECT_EQ(config->node_rank, 3);
  const auto both = launch_of({"--nnodes=4", "--rdzv-conf=rank=3", "--node-rank=2", "train.py"});
  EXPECT_EQ(both->node_rank, 2);
  EXPECT_EQ(setting(*both, "rank"), Value(2));
}

TEST(StaticBackend, IsRefusedWithOneLine) {
  EXPECT_TRUE(contains(error_of({"--nnodes=2", "--node-rank=2", "train.py"}), "ranks 0 to 1"));
  EXPECT_TRUE(contains(error_of({"--nnodes=2", "--node-rank=-1", "train.py"}), "--node-rank"));
  EXPECT_TRUE(contains(error_of({"--nnodes=2", "--rdzv-endpoint=h", "train.py"}), "--master-addr"));
  EXPECT_TRUE(contains(error_of({"--nnodes=2", "--master-port=70000", "train.py"}), "65535"));
  EXPECT_TRUE(contains(error_of({"--nnodes=2", "--master-addr=", "train.py"}), "--master-addr"));
  EXPECT_TRUE(contains(error_of({"--nnodes=2", "--master-addr=a b", "train.py"}), "host name"));
}

TEST(Backend, IsCheckedWithASuggestion) {
  EXPECT_TRUE(contains(error_of({"--rdzv-backend=c01d", "train.py"}), "did you mean c10d?"));
  EXPECT_TRUE(contains(error_of({"--rdzv-backend=", "train.py"}), "is empty"));
  Facts facts = fake_facts();
  EXPECT_FALSE(error_of({"--rdzv-backend=mine", "train.py"}, facts).empty());
  facts.backends.push_back("mine");
  const auto config = launch_of({"--rdzv-backend=mine", "--rdzv-conf=a=b", "train.py"}, facts);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->rendezvous.config.size(), 1U);
}

TEST(DynamicBackends, NoticeSilentHostsSoonerThanPyTorch) {
  for (const std::string backend : {"c10d", "muster", "etcd", "etcd-v2"}) {
    const auto config = launch_of({"--nnodes=1:2", "--rdzv-backend=" + backend,
                                   "--rdzv-endpoint=h:1", "--rdzv-id=job", "train.py"});
    ASSERT_TRUE(config);
    EXPECT_TRUE(config->warnings.empty()) << config->warnings.front();
    const auto settings = rendezvous::settings_from(config->rendezvous);
    ASSERT_TRUE(settings) << settings.error().message;
    EXPECT_EQ(settings->window(), 4s) << backend;
    EXPECT_EQ(settings->keep_alive_interval, 1s);
    EXPECT_EQ(settings->timeouts.last_call, 1s);
    if (!backend.starts_with("etcd")) {
      EXPECT_EQ(settings->grace, 200ms);
    }
    // Whatever we added, the backend takes.
    EXPECT_TRUE(rendezvous::check_options(backend, config->rendezvous.config)) << backend;
  }
}

TEST(DynamicBackends, KeepWhatTheUserSet) {
  const auto config = launch_of(
      {"--rdzv-backend=c10d", "--rdzv-conf=last_call_timeout=9,keep_alive_interval=2", "train.py"});
  EXPECT_EQ(setting(*config, "last_call_timeout"), Value("9"));
  EXPECT_TRUE(setting(*config, "regroup_timeout").is_null());
  EXPECT_EQ(setting(*config, "keep_alive_interval"), Value("2"));
  EXPECT_EQ(setting(*config, "keep_alive_max_attempt"), Value("4"));
  EXPECT_TRUE(setting(*config, "timeout").is_null());
}

TEST(DynamicBackends, WarnOfWhatHasNoEffect) {
  const WordList base = {"--rdzv-backend=c10d"};
  const auto with = [&](const WordList& more) {
    WordList words = base;
    words.insert(words.end(), more.begin(), more.end());
    words.emplace_back("train.py");
    return *launch_of(words);
  };
  EXPECT_TRUE(warns_of(with({"--node-rank=1"}), "--node-rank 1 has no effect"));
  EXPECT_FALSE(warns_of(with({"--node-rank=0"}), "--node-rank"));
  EXPECT_TRUE(warns_of(with({"--master-addr=h"}), "--master-addr"));
  EXPECT_TRUE(warns_of(with({"--nnodes=2"}), "--rdzv-endpoint"));
  EXPECT_TRUE(warns_of(with({"--rdzv-conf=timeout=5"}), "timeout"));
}

TEST(RendezvousOptions, AreRefusedWithOneLine) {
  const auto error = [](const std::string& options) {
    return error_of({"--rdzv-backend=c10d", "--rdzv-conf", options, "train.py"});
  };
  EXPECT_TRUE(contains(error("=1"), "key=value"));
  EXPECT_TRUE(contains(error("join_timeout"), "needs a value"));
  EXPECT_TRUE(contains(error("bogus=1"), "no option"));
  EXPECT_TRUE(contains(error("join_timeuot=1"), "did you mean join_timeout?"));
  EXPECT_TRUE(contains(error("timeout=abc"), "timeout"));
  EXPECT_TRUE(contains(error("join_timeout=0"), "join_timeout must be above 0"));
  EXPECT_TRUE(contains(error("last_call_timeout=-1"), "last_call_timeout"));
}

TEST(RendezvousEndpoint, IsRefusedWithOneLine) {
  const auto error = [](const std::string& endpoint) {
    return error_of({"--rdzv-backend=c10d", "--rdzv-endpoint", endpoint, "train.py"});
  };
  EXPECT_TRUE(contains(error("host:99999"), "host:99999"));
  EXPECT_TRUE(contains(error("host:x"), "host:x"));
  EXPECT_TRUE(contains(error("ho$t:1"), "ho$t:1"));
  EXPECT_EQ(error("host"), "");
  EXPECT_EQ(error("[::1]:5"), "");
  EXPECT_EQ(error_of({"--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--rdzv-endpoint=/a b",
                      "train.py"}),
            "");
  EXPECT_EQ(error_of({"--rdzv-backend=etcd", "--rdzv-endpoint=a:1,b:2", "train.py"}), "");
}

TEST(RunId, IsInventedOnlyForOneNode) {
  const auto config = launch_of({"--rdzv-backend=c10d", "--rdzv-id=", "train.py"});
  EXPECT_EQ(config->rendezvous.run_id, kFakeRunId);
  EXPECT_TRUE(warns_of(*config, "--rdzv-id is empty"));
  EXPECT_TRUE(contains(error_of({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=", "train.py"}),
                       "--rdzv-id"));
}

TEST(LocalAddress, IsPassedOn) {
  EXPECT_EQ(launch_of({"--local-addr=10.0.0.7", "train.py"})->rendezvous.local_addr, "10.0.0.7");
}

}  // namespace
}  // namespace muster::launch
