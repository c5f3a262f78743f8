#include "muster/store/tcp_store.h"

#include "tests/net/talker.h"
#include "tests/server/requests.h"
#include "tests/server/tcp_store_base.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace muster::store::testing {
namespace {

using tests::Talker;

// A transport that can be told to refuse at once, as a kernel does for its own addresses.
class RefusingTransport final : public net::Transport {
 public:
  explicit RefusingTransport(net::Transport& inner) : inner_(inner) {}
  bool refuses = false;

  Task<Result<std::unique_ptr<net::Stream>>> connect(net::Endpoint endpoint) override {
    if (refuses) co_return fail(ErrorKind::Unavailable, "cannot connect: refused at once");
    co_return co_await inner_.connect(std::move(endpoint));
  }
  Result<std::unique_ptr<net::Listener>> listen(
      const net::Endpoint& endpoint,
      std::function<void(std::unique_ptr<net::Stream>)> accepted) override {
    return inner_.listen(endpoint, std::move(accepted));
  }

 private:
  net::Transport& inner_;
};

// What holds whatever the server speaks.
class TcpStoreTest : public TcpStoreBase, public ::testing::TestWithParam<Dialect> {
 protected:
  TcpStoreTest() { store = connect_to(client_host, GetParam(), default_options()); }
  bool has_queues() const { return GetParam() != Dialect::Legacy; }
};
using EveryTcpStore = TcpStoreTest;
INSTANTIATE_TEST_SUITE_P(Dialect, EveryTcpStore,
                         ::testing::Values(Dialect::Extension, Dialect::Modern, Dialect::Legacy),
                         dialect_name);

TEST_P(EveryTcpStore, RepeatsReadsThatAResetInterrupted) {
  ASSERT_TRUE(await(writer->set("k", "v")));
  for (const Duration moment : moments()) {
    const auto try_get = begin(store->try_get("k"));
    const auto absent = begin(store->try_get("absent"));
    const auto get = begin(store->get("k", kNever));
    const auto check = begin(store->check({"k"}));
    const auto count = begin(store->num_keys());
    const auto many = begin(store->multi_get({"k", "k"}, kNever));
    const auto ping = begin(store->ping());
    loop.advance(moment);
    network.reset_all(client_host);
    EXPECT_TRUE(gives(finish(*try_get), "v")) << describe(moment);
    EXPECT_TRUE(gives(finish(*absent), std::nullopt)) << describe(moment);
    EXPECT_TRUE(gives(finish(*get), "v")) << describe(moment);
    EXPECT_TRUE(gives(finish(*check), true)) << describe(moment);
    EXPECT_TRUE(gives(finish(*count), 1)) << describe(moment);
    EXPECT_TRUE(gives(finish(*many), std::vector<std::string>{"v", "v"})) << describe(moment);
    EXPECT_TRUE(finish(*ping)) << describe(moment);
  }
}

TEST_P(EveryTcpStore, WaitsOnAfterAReset) {
  const auto get = begin(store->get("k", kNever));
  const auto wait = begin(store->wait({"k", "l"}, kNever));
  const auto many = begin(store->multi_get({"l", "k"}, kNever));
  settle();
  network.reset_all(client_host);
  loop.advance(10s);
  EXPECT_FALSE(get->done() || wait->done() || many->done());
  ASSERT_TRUE(await(writer->set("k", "1")));
  EXPECT_TRUE(gives(finish(*get), "1"));
  EXPECT_FALSE(wait->done());
  ASSERT_TRUE(await(writer->set("l", "2")));
  EXPECT_TRUE(finish(*wait));
  EXPECT_TRUE(gives(finish(*many), std::vector<std::string>{"2", "1"}));
}

TEST_P(EveryTcpStore, WaitsOnAfterTheServerWasStartedAgain) {
  const auto get = begin(store->get("k", kNever));
  settle();
  stop_server();
  loop.advance(30s);
  EXPECT_FALSE(get->done());
  start_server();
  loop.advance(30s);
  EXPECT_FALSE(get->done());
  ASSERT_TRUE(await(writer->set("k", "v")));
  EXPECT_TRUE(gives(finish(*get), "v"));
}

TEST_P(EveryTcpStore, SaysThatAWriteIsUncertainWhenItWasSentAndTheConnectionBroke) {
  ASSERT_TRUE(await(writer->set("counter", "1")));
  const auto set = begin(store->set("k", "v"));
  const auto add = begin(store->add("counter", 1));
  const auto compare = begin(store->compare_set("c", "", "v"));
  const auto erase = begin(store->delete_key("d"));
  const auto many = begin(store->multi_set({{"a", "1"}, {"b", "2"}}));
  if (GetParam() == Dialect::Extension) {
    loop.run_until_idle();  // all five are on the way now
  } else {
    loop.advance(1ms + 20us);  // four connections had to be opened first
  }
  network.reset_all(client_host);
  const auto expect_uncertain = [](const auto& result, std::string_view operation) {
    if (result && operation != "SET") return;  // it was answered before the reset
    expect_error(result, ErrorKind::Closed, "it may or may not have taken effect");
    expect_error(result, ErrorKind::Closed, "lost the connection to the store at server:4400");
    expect_error(result, ErrorKind::Closed, operation);
  };
  if (GetParam() == Dialect::Extension) expect_uncertain(finish(*set), "SET");
  const bool all = GetParam() == Dialect::Extension;
  const auto added = finish(*add);
  const auto compared = finish(*compare);
  const auto erased = finish(*erase);
  const auto multi = finish(*many);
  if (all) {
    EXPECT_FALSE(added || compared || erased || multi);
  }
  expect_uncertain(added, "ADD");
  expect_uncertain(compared, "COMPARE_SET");
  expect_uncertain(erased, "DELETE_KEY");
  if (!multi) expect_error(multi, ErrorKind::Closed, "it may or may not have taken effect");
}

TEST_P(EveryTcpStore, NeverDoesAWriteTwiceWhenAResetInterruptsIt) {
  std::int64_t sum = 0;
  int uncertain_count = 0;
  for (const Duration moment : moments()) {
    const auto add = begin(store->add("n", 1));
    loop.advance(moment);
    network.reset_all(client_host);
    const Result<std::int64_t> added = finish(*add);
    const Result<std::int64_t> now = await(writer->add("n", 0));
    ASSERT_TRUE(now);
    if (added) {
      EXPECT_EQ(*now, sum + 1) << describe(moment);
    } else {
      ++uncertain_count;
      expect_error(added, ErrorKind::Closed, "may or may not");
      EXPECT_TRUE(*now == sum || *now == sum + 1) << describe(moment);
    }
    sum = *now;
  }
  EXPECT_GT(uncertain_count, 0);
  EXPECT_LT(uncertain_count, static_cast<int>(moments().size()));
}

TEST_P(EveryTcpStore, CarriesOutAWriteThatWasNotSentBeforeTheConnectionBroke) {
  stop_server();
  loop.advance(1s);
  const auto add = begin(store->add("n", 1));
  const auto set = begin(store->set("k", "v"));
  loop.advance(10s);
  EXPECT_FALSE(add->done() || set->done());
  start_server();
  EXPECT_TRUE(gives(finish(*add), 1));
  EXPECT_TRUE(finish(*set));
  EXPECT_TRUE(gives(await(writer->try_get("k")), "v"));
  EXPECT_TRUE(gives(await(writer->add("n", 0)), 1));
}

TEST_P(EveryTcpStore, EndsAGetAtItsDeadlineWhileTheServerIsAway) {
  stop_server();
  loop.advance(1s);
  const TimePoint start = loop.now();
  const auto result = await(store->get("k", start + 5s));
  expect_error(result, ErrorKind::Unavailable, "server:4400");
  EXPECT_LE(loop.now() - start, 5s);
  EXPECT_GT(loop.now() - start, 4s);  // and did try until then
  start_server();
  ASSERT_TRUE(await(writer->set("k", "v")));
  EXPECT_TRUE(gives(await(store->get("k", loop.now() + 30s)), "v"));
}

TEST_P(EveryTcpStore, EndsAnOperationAtTheReplyTimeoutWhileTheServerIsAway) {
  stop_server();
  loop.advance(1s);
  const TimePoint start = loop.now();
  const auto result = await(store->set("k", "v"));
  expect_error(result, ErrorKind::Unavailable, "server:4400");
  EXPECT_LE(loop.now() - start, default_options().reply_timeout);
}

TEST_P(EveryTcpStore, SaysThatTheServerDoesNotAnswer) {
  network.pause(server_host);
  const auto result = await(store->set("k", "v"));
  expect_error(result, ErrorKind::Timeout,
               "the store at server:4400 did not answer SET within 60s");
  network.resume(server_host);
  EXPECT_TRUE(gives(await(store->add("n", 1)), 1));
  // The late answer to the set is nobody's.
  EXPECT_TRUE(gives(await(store->try_get("k")), "v"));
}

TEST_P(EveryTcpStore, TakesItsWaitsBackFromTheServerWhenTheyTimeOutOrAreDestroyed) {
  expect_error(await(store->get("k", loop.now() + 1s)), ErrorKind::Timeout, "key \"k\"");
  settle();
  EXPECT_EQ(server_says("waiting"), "0");
  auto get = begin(store->get("k", kNever));
  settle();
  EXPECT_EQ(server_says("waiting"), "1");
  get.reset();
  settle();
  EXPECT_EQ(server_says("waiting"), "0");
}

TEST_P(EveryTcpStore, GivesUpAfterTheConnectTimeoutAndTriesAgainWhenAskedAgain) {
  TcpStoreOptions options = default_options();
  options.connect_timeout = 10s;
  store = connect_to(client_host, GetParam(), options);
  stop_server();
  const TimePoint start = loop.now();
  expect_error(await(store->get("k", kNever)), ErrorKind::Unavailable,
               "cannot connect to server:4400: connection refused");
  EXPECT_LE(loop.now() - start, 11s);
  loop.advance(1h);
  start_server();
  ASSERT_TRUE(await(writer->set("k", "v")));
  EXPECT_TRUE(gives(await(store->get("k", kNever)), "v"));
}

TEST_P(EveryTcpStore, ReportsThatNobodyAnswersAtTheEndpoint) {
  TcpStoreOptions options = default_options();
  options.endpoint.port = 4401;
  options.connect_timeout = 10s;
  TimePoint start = loop.now();
  expect_error(try_connect(client_host, GetParam(), options), ErrorKind::Unavailable,
               "cannot reach the store: cannot connect to server:4401: connection refused");
  EXPECT_LE(loop.now() - start, 10s);

  network.cut(client_host, server_host);
  options.endpoint.port = 4400;
  start = loop.now();
  expect_error(try_connect(client_host, GetParam(), options), ErrorKind::Unavailable,
               "cannot connect to server:4400: no answer in time");
  EXPECT_LE(loop.now() - start, 10s);
}

TEST_P(EveryTcpStore, FailsAtOnceWhenThereIsNoTimeToTryAgain) {
  RefusingTransport refusing(*transports.back());
  TcpStoreOptions options = default_options();
  options.connect_timeout = 1s;
  options.backoff.first = 1h;
  options.backoff.max = 1h;
  auto connected = loop.block_on(connect_tcp_store(client_host.loop(), refusing, random, options));
  ASSERT_TRUE(connected) << connected.error().message;
  std::unique_ptr<TcpStore> hasty = std::move(*connected);
  refusing.refuses = true;
  stop_server();
  loop.advance(1min);
  // Nobody tries any more; each call tries once and must not wait for anybody else.
  for (int round = 0; round < 3; ++round) {
    expect_error(await(hasty->get("k", kNever)), ErrorKind::Unavailable, "refused at once");
  }
}

TEST_P(EveryTcpStore, CanBeDestroyedAtAnyMomentOfAReconnection) {
  for (const Duration moment : moments()) {
    store = connect_to(client_host, GetParam(), default_options());
    network.reset_all(client_host);
    loop.advance(moment);
    store.reset();
  }
}

TEST_P(EveryTcpStore, LetsCallsBeDestroyedAtAnyMoment) {
  ASSERT_TRUE(await(writer->set("k", "v")));
  for (const Duration moment : moments()) {
    auto get = begin(store->get("k", kNever));
    auto wait = begin(store->wait({"never"}, kNever));
    auto set = begin(store->set("other", "x"));
    auto add = begin(store->add("n", 1));
    loop.advance(moment);
    if (moment % 50us == Duration::zero()) network.reset_all(client_host);
    get.reset();
    wait.reset();
    set.reset();
    add.reset();
    EXPECT_TRUE(gives(await(store->try_get("k")), "v")) << describe(moment);
  }
  settle();
  EXPECT_EQ(server_says("waiting"), "0");
}

TEST_P(EveryTcpStore, CountsItselfAsAWorkerOnce) {
  const auto counted = [&] {
    Talker reader([&] {
      auto stream = loop.block_on(writer_host.connect({"server", 4400}));
      EXPECT_TRUE(stream) << stream.error().message;
      return std::move(*stream);
    }());
    reader.send(tests::opening(Dialect::Modern) +
                tests::request_bytes(Dialect::Modern, wire::Operation::Get, wire::kWorkerCountKey));
    settle();
    return reader.received();
  };
  EXPECT_EQ(counted(), tests::blob(""));  // nobody asked to be counted
  TcpStoreOptions options = default_options();
  options.count_as_worker = true;
  store = connect_to(client_host, GetParam(), options);
  EXPECT_EQ(counted(), tests::blob("1"));
  network.reset_all(client_host);
  ASSERT_TRUE(await(store->set("k", "v")));
  EXPECT_EQ(counted(), tests::blob("1"));
  ASSERT_TRUE(await(store->count_as_worker()));
  EXPECT_EQ(counted(), tests::blob("2"));
  EXPECT_TRUE(gives(await(store->worker_count()), 2));
  EXPECT_EQ(counted(), tests::blob("2"));  // looking does not count
}

TEST_P(EveryTcpStore, RefusesWhatIsOverTheLimitsWithoutSendingIt) {
  constexpr wire::Limits kLimits;
  const std::string key(kLimits.key_bytes, 'k');  // with the slash, one byte too long
  const std::string value(kLimits.value_bytes + 1, 'v');
  const std::vector<std::string> keys(kLimits.key_count + 1, "k");
  const std::vector<KeyValue> pairs(kLimits.key_count + 1, KeyValue{"k", ""});
  const std::string requests_before = server_says("requests");

  expect_error(await(store->set(key, "v")), ErrorKind::Invalid, "a key of 8193 bytes");
  expect_error(await(store->set("k", value)), ErrorKind::Invalid, "a value of 8388609 bytes");
  expect_error(await(store->get(key, kNever)), ErrorKind::Invalid, "a key of 8193 bytes");
  expect_error(await(store->try_get(key)), ErrorKind::Invalid, "a key of 8193 bytes");
  expect_error(await(store->add(key, 1)), ErrorKind::Invalid, "a key of 8193 bytes");
  expect_error(await(store->compare_set("k", value, "")), ErrorKind::Invalid, "8388609 bytes");
  expect_error(await(store->compare_set("k", "", value)), ErrorKind::Invalid, "8388609 bytes");
  expect_error(await(store->check(keys)), ErrorKind::Invalid, "131073 keys at once");
  expect_error(await(store->wait(keys, kNever)), ErrorKind::Invalid, "131073 keys at once");
  expect_error(await(store->multi_get(keys, kNever)), ErrorKind::Invalid, "131073 keys at once");
  expect_error(await(store->delete_key(key)), ErrorKind::Invalid, "a key of 8193 bytes");
  if (GetParam() != Dialect::Legacy) {
    // Legacy emulates these; what is too large is found when it comes to it.
    expect_error(await(store->append("k", value)), ErrorKind::Invalid, "a value of 8388609 bytes");
    expect_error(await(store->multi_set(pairs)), ErrorKind::Invalid, "131073 keys at once");
    expect_error(await(store->queue_push("q", value)), ErrorKind::Invalid, "8388609 bytes");
    expect_error(await(store->queue_pop(key, kNever)), ErrorKind::Invalid, "a key of 8193 bytes");
    expect_error(await(store->try_queue_pop(key)), ErrorKind::Invalid, "a key of 8193 bytes");
    expect_error(await(store->queue_length(key)), ErrorKind::Invalid, "a key of 8193 bytes");
  }
  expect_error(await(store->barrier(key, 1, kNever)), ErrorKind::Invalid, "limit");
  EXPECT_EQ(server_says("requests"), requests_before);
}

TEST_P(EveryTcpStore, TakesWhatIsExactlyAtTheLimits) {
  constexpr wire::Limits kLimits;
  const std::string key(kLimits.key_bytes - 1, 'k');
  const std::string value(kLimits.value_bytes, 'v');
  const std::vector<std::string> keys(kLimits.key_count, "k");
  ASSERT_TRUE(await(store->set(key, "v")));
  EXPECT_TRUE(gives(await(store->get(key, kNever)), "v"));
  ASSERT_TRUE(await(store->set("k", value)));
  const auto found = await(store->get("k", kNever));
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_TRUE(*found == value);
  EXPECT_TRUE(gives(await(store->check(keys)), true));
  EXPECT_TRUE(await(store->wait(keys, kNever)));
}

TEST_P(EveryTcpStore, WaitsAgainForAKeyThatWasDeletedWhileItWaitedForOthers) {
  ASSERT_TRUE(await(writer->set("a", "old")));
  const auto many = begin(store->multi_get({"a", "b"}, kNever));
  settle();
  ASSERT_TRUE(await(writer->delete_key("a")));
  ASSERT_TRUE(await(writer->set("b", "2")));
  loop.advance(1s);
  EXPECT_FALSE(many->done());
  ASSERT_TRUE(await(writer->set("a", "1")));
  EXPECT_TRUE(gives(finish(*many), std::vector<std::string>{"1", "2"}));
}

TEST_P(EveryTcpStore, TimesOutWhenAKeyThatWasDeletedDoesNotComeBack) {
  ASSERT_TRUE(await(writer->set("a", "old")));
  const TimePoint start = loop.now();
  const auto many = begin(store->multi_get({"a", "b"}, start + 5s));
  settle();
  ASSERT_TRUE(await(writer->delete_key("a")));
  ASSERT_TRUE(await(writer->set("b", "2")));
  expect_error(finish(*many), ErrorKind::Timeout, "timed out waiting for");
  EXPECT_GE(loop.now() - start, 5s);
  EXPECT_LE(loop.now() - start, 6s);
}

TEST_P(EveryTcpStore, DoesNotTakeAQueueForAKey) {
  ASSERT_TRUE(await(writer->queue_push("q", "item")));
  EXPECT_TRUE(gives(await(store->try_get("q")), std::nullopt));
  const auto get = begin(store->get("q", kNever));
  loop.advance(1s);
  EXPECT_FALSE(get->done());
  ASSERT_TRUE(await(writer->set("q", "value")));
  EXPECT_TRUE(gives(finish(*get), "value"));
}

TEST_P(EveryTcpStore, RefusesWhatTheServerDoesNotHave) {
  if (GetParam() == Dialect::Extension)
    GTEST_SKIP() << "not applicable: a Muster server has everything";
  expect_error(await(store->info()), ErrorKind::Unimplemented, "PyTorch");
  expect_error(await(store->drop_namespace("x")), ErrorKind::Unimplemented, "no namespaces");
  TcpStoreOptions options = default_options();
  options.namespace_name = "job-1";
  expect_error(try_connect(client_host, GetParam(), options), ErrorKind::Invalid, "no namespaces");
  if (GetParam() == Dialect::Modern) return;
  expect_error(await(store->queue_push("q", "x")), ErrorKind::Unimplemented, "no queues");
  expect_error(await(store->queue_pop("q", kNever)), ErrorKind::Unimplemented, "no queues");
  expect_error(await(store->try_queue_pop("q")), ErrorKind::Unimplemented, "no queues");
  expect_error(await(store->queue_length("q")), ErrorKind::Unimplemented, "no queues");
  expect_error(await(store->list_keys("")), ErrorKind::Unimplemented, "no listing keys");
  expect_error(await(store->watch("k", Store::WatchScope::Prefix)), ErrorKind::Unimplemented,
               "no watching a prefix");
}

TEST_P(EveryTcpStore, SaysThatTheServerWasReplacedByOneOfAnotherKind) {
  const Dialect replaced_by =
      GetParam() == Dialect::Extension ? Dialect::Modern : Dialect::Extension;
  transports.back()->set_dialect(replaced_by);
  network.reset_all(client_host);
  loop.advance(1s);
  const auto result = await(store->set("k", "v"));
  expect_error(result, ErrorKind::Closed,
               GetParam() == Dialect::Extension
                   ? "the store at server:4400 is no longer a Muster server"
                   : "the store at server:4400 has been replaced by one of another kind");
  // The old one is back.
  transports.back()->set_dialect(GetParam());
  EXPECT_TRUE(gives(await(store->add("n", 1)), 1));
}

}  // namespace
}  // namespace muster::store::testing
